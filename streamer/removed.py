"""Recognises names, arguments and options of earlier releases, and says what is written now.

Public classes and functions use it for their arguments, some modules for their names, and commands for their options
(`cli/parser.py`). An old spelling is refused by an error that says the new one. The few that many programs use still
work in 0.2, with a `FutureWarning` that says the same.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import pairwise
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

from streamer.errors import ConfigError

C = TypeVar("C", bound=type)
P = ParamSpec("P")
R = TypeVar("R")

# Arguments of StreamingDataset and of MixedDataset.
_OF_BOTH = {
    "lanes": "order=Order(lanes=...)",
    "shuffle_window": "order=Order(shuffle_window=...)",
    "last_batch": "order=Order(last_batch=...)",
    "drop_last": 'order=Order(last_batch="drop")',
    "stream": "order=Order(name=...)",
    "error_budget": "on_error=Skip(budget=...)",
}
# Arguments of classes and functions, and what to write instead.
ARGUMENTS: dict[str, dict[str, str]] = {
    "StreamingDataset": {
        **_OF_BOTH,
        "cut": 'order=Order(lanes_by=...), where "fixed" is called "seed", "common" "key" and "redrawn" "epoch"',
        "peers": "share_caches=",
        "index_limit": "manifest=Index(max_seconds=...)",
        "index_errors": "manifest=Index(damaged=...)",
        "on_change": "manifest=Index(on_change=...)",
        "extensions": 'format=Folder(extensions=["jpg", "png"]) of streamer.formats',
        "allow_pickle": "decode=Decode(allow_pickle=True)",
    },
    "MixedDataset": {
        **_OF_BOTH,
        "temperature": "weights=Weights(temperature=...)",
        "unit": "weights=Weights(..., unit=...)",
        "epoch_samples": "weights=Weights(..., epoch_samples=...)",
        "stop": "weights=Weights(..., stopping_strategy=...)",
        "group": "batching=Homogeneous(group=...)",
    },
    "StreamingDataLoader": {
        "last_batch": "order=Order(last_batch=...) of the dataset",
        "on_error": "on_error= of the dataset",
        "error_budget": "on_error=Skip(budget=...) of the dataset",
        "worker_start": 'multiprocessing_context="forkserver" or "spawn"',
        "pin": 'pin_memory=..., where True, an error if it fails, is called "required"',
        "report_seconds": "report_every=, seconds or None",
        "reports": "report_every=, seconds or None, and on_report=, the function",
        "stateful": "saved by you: packer.state_dict() beside loader.state_dict(), on each rank; rows that the loader "
        "plans carry nothing over (docs/sequences.md)",
    },
    "Order": {
        "cut": 'lanes_by=, where "fixed" is called "seed", "by_key" "key" and "redrawn" "epoch"',
        "stream": "name=",
    },
    "pack": {
        "source_format": "format=, which was the format of the shards, now output_format=",
        "format_options": "format=, a format of streamer.formats with these options",
        "extensions": 'format=Folder(extensions=["jpg", "png"]) of streamer.formats',
        "vocabulary": "vocab_size=",
        "on": "executor=",
    },
    "measure_lengths": {"to": "path=", "known": "resume_from=", "on": "executor="},
    "Index": {"limit_seconds": "max_seconds=", "on_error": "damaged="},
    "Packing": {"cost": "lengths=", "set_rows": "rows_per_set="},
    "Buckets": {
        "budget": "max_tokens=",
        "most": "max_samples=",
        "cost": "lengths=",
        "set_rows": "rows_per_set=",
    },
    "Balance": {"rows": "rows_per_rank=", "cost": "coefficients="},
    "Estimate": {"safety": "margin="},
    "Annotations": {"on": "sample_field="},
    "StreamingDataset.join": {
        "how": 'validate=, where "one" is called "many_to_one", and "many" is called "many_to_many"',
    },
    "Audio": {"policy": "at_end="},
    "Video": {"policy": "at_end="},
    "VideoClip": {"policy": "at_end="},
    "NestedDecoder": {"picture": "image="},
    "DevicePrefetcher": {"ahead": "depth=", "mover": "chosen by device=: leave it out"},
    "Growing": {"grow": "round_bytes="},
    "Weights": {"values": "weights=", "stop": "stopping_strategy="},
}


def _split_reports(value: object) -> dict[str, object]:
    """Returns the new arguments for a value of `reports=` of a loader: a function, seconds, or both as `Reports`."""
    if callable(value):
        return {"on_report": value}
    interval = getattr(value, "seconds", value)
    return {"report_every": interval, "on_report": getattr(value, "call", None)}


# Old arguments that still work in this release, with the new one that takes the value, or a function that returns the
# new arguments.
_STILL_TAKEN: dict[tuple[str, str], str | Callable[[object], dict[str, object]]] = {
    ("Index", "on_error"): "damaged",
    ("Packing", "cost"): "lengths",
    ("StreamingDataLoader", "reports"): _split_reports,
}
# Old values that still work in this release, by the argument that takes them, and the new ones.
_OLD_VALUES: dict[tuple[str, str], dict[object, str]] = {
    ("Annotations", "missing"): {"empty": "none"},
    ("StreamingDataset.join", "missing"): {"null": "none"},
}
# Names that modules had, and the names that have taken their place.
NAMES = {
    "streamer.decode.transforms": {"CentreCrop": "CenterCrop"},
    "streamer.formats": {"Mds": "MDS"},
    "streamer.shards.settle": {"Packed": "PackResult"},
}
# Old names that still work in this release.
_NAMES_STILL_TAKEN = {("streamer.shards.settle", "Packed")}
# Methods of classes in earlier releases, and what to write instead.
METHODS = {
    "StreamingDataset": {"find": "StreamingDataset.index_of(key) finds the number of a sample"},
    "MixedDataset": {
        "from_file": "read the file with tomllib, and pass its values: MixedDataset({name: StreamingDataset(**member) "
        "for name, member in members.items()}, weights=...); docs/mixing.md",
    },
    "StreamingDataLoader": {
        "headspace": "keep a few batches (clone them), train on them in turn and take the time: docs/tuning.md",
    },
}


# Options of commands, and what to write instead. A key with a value, "--format tar", is an option whose meaning has
# changed: it is refused with this value, unless the new option is there as well. FILE stands for every name of a file.
_DAMAGED = {"--index-errors": "--damaged"}
_EXECUTOR = {"--on": "--executor"}
_JSON_FILE = {"--json FILE": "--json-file FILE; --json alone prints the figures as JSON"}
OPTIONS: dict[str, dict[str, str]] = {
    "index": {
        **_DAMAGED,
        **_EXECUTOR,
        "--explain": "a command: streamer explain URL --global-batch-size N",
        "--nodes": "--nodes of streamer explain",
        "--seed": "--seed of streamer explain",
        "--packing": "--packing of streamer explain",
        "--measure": "a command: streamer measure URL --field NAME, or --function MODULE:NAME, and --out FILE.npy",
        "--cost": "--lengths of streamer explain, and --out of streamer measure, which writes the file",
    },
    "pack": {
        **_EXECUTOR,
        "--source-format": "--format; the format of the shards is --output-format",
        "--format tar": "--output-format webdataset; --format is the format of SRC",
        "--format parquet": "--output-format parquet; --format is the format of SRC: if that is Parquet, give both",
        "--format tokens": "--output-format tokens; --format is the format of SRC: if that is tokens, give both",
        "--shard-size": "--shard-bytes",
        "--vocabulary": "--vocab-size",
    },
    "verify": _EXECUTOR,
    "warm": _DAMAGED,
    "show": _DAMAGED,
    "bench": {**_JSON_FILE, "--like": "python -m benchmarks.feed NAME, in a clone of the repository"},
    "plan": {**_DAMAGED, **_JSON_FILE, "--on": "a part of --join: --join URL:KEY, or URL:LEFT=RIGHT"},
}


def find_old_option(removed: Mapping[str, str], words: Sequence[str]) -> str | None:
    """Returns a sentence about the first option of an earlier release among the words of a command; None without one.

    Args:
        removed: Old options of the command, as a value of `OPTIONS`.
        words: Words after the name of the command. Those after `--` are no options, and are not looked at.
    """
    if "--" in words:
        words = words[: words.index("--")]
    options = {word.partition("=")[0] for word in words}
    for word, following in pairwise([*words, ""]):
        option, _, value = word.partition("=")
        for old, now in removed.items():
            name, _, meant = old.partition(" ")
            if name != option or (meant and now.split()[0].rstrip(";") in options):
                continue
            if meant in ("", value or following) or (meant == "FILE" and _is_file_to_write(value or following)):
                return f"{old} is now {now}"
    return None


def _is_file_to_write(word: str) -> bool:
    """Whether a word after an option names the file that the option was to write.

    It does not if it is another option, a url, or the path of something that exists, unless that ends in .json.
    """
    if not word or word.startswith("-") or "://" in word:
        return False
    return word.endswith(".json") or not os.path.exists(word)


def refuse_old_names(of: str, given: Mapping[str, object]) -> None:
    """Refuses arguments that earlier releases had, also those that still work.

    Args:
        of: Name of the class or function, a key of `ARGUMENTS`.
        given: Arguments by name. Those that no earlier release had are not looked at.

    Raises:
        ConfigError: an earlier release had one of them; the message names its replacement.
    """
    for name in given:
        if (now := ARGUMENTS[of].get(name)) is not None:
            raise ConfigError(f"{name}= of {of} is now {now}", field=name)


def refuse_name(module: str, name: str) -> NoReturn:
    """Refuses a name that a module does not have. The module's `__getattr__` calls it.

    Args:
        module: Full name of the module, a key of `NAMES`.
        name: The name.

    Raises:
        ImportError: an earlier release had the name; the message says the new one. Python would replace the text of an
            AttributeError by "cannot import name".
        AttributeError: no release had the name.
    """
    if (now := NAMES[module].get(name)) is not None:
        raise ImportError(f"{module}.{name} is now {module}.{now}", name=module)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def replace_name(module: str, name: str) -> str:
    """Warns of an old name of a module that still works, and returns the new one. The module's `__getattr__` calls it.

    Raises:
        ImportError, AttributeError: the name does not work; see `refuse_name`.
    """
    if (module, name) not in _NAMES_STILL_TAKEN:
        refuse_name(module, name)
    new = NAMES[module][name]
    # The frames up to the user's line are this function, `__getattr__`, and that line.
    warn_of(f"{module}.{name} is now {module}.{new}", 3)
    return new


def refuse_method(of: str, name: str) -> NoReturn:
    """Refuses a method that a class had in earlier releases: `of` and `name` are keys of `METHODS`.

    Raises:
        ConfigError: always; the message says what to write instead.
    """
    raise ConfigError(f"{of}.{name} is not there any more: {METHODS[of][name]}", field=name)


def warn_of(text: str, stacklevel: int) -> None:
    """Warns, by a FutureWarning, of a spelling that a later release refuses.

    Args:
        text: The old spelling and the new one.
        stacklevel: Frames from the caller of this function up to the code of the user; 1 is the caller itself.
    """
    warnings.warn(f"{text}; the old spelling works until release 0.3", FutureWarning, stacklevel=stacklevel + 1)


def replace_arguments(of: str, given: Mapping[str, Any], stacklevel: int = 1) -> dict[str, Any]:
    """Returns the arguments of a call with old names and values replaced, and warns of each that was replaced.

    Args:
        of: Name of the class or function, a key of `ARGUMENTS`.
        given: Arguments by name.
        stacklevel: Frames from the caller of this function up to the code of the user, for warnings.

    Raises:
        ConfigError: an argument no longer works, or is there under its old and its new name.
    """
    taken: dict[str, Any] = {}
    for name, value in given.items():
        if (convert := _STILL_TAKEN.get((of, name))) is None:
            refuse_old_names(of, {name: value})
            taken[name] = _replace_value(of, name, value, stacklevel + 1)
            continue
        arguments = {convert: value} if isinstance(convert, str) else convert(value)
        for new in arguments:
            if new in given:
                raise ConfigError(f"{of} has both {new}= and its old name {name}=: give {new}= alone", field=name)
        warn_of(f"{name}= of {of} is now {ARGUMENTS[of][name]}", stacklevel + 1)
        taken |= arguments
    return taken


def _replace_value(of: str, name: str, value: object, stacklevel: int) -> object:
    """Returns the new value for an old one that still works, and warns of it; returns any other value unchanged."""
    new = _OLD_VALUES.get((of, name), {}).get(value) if isinstance(value, str) else None
    if new is None:
        return value
    warn_of(f"{name}={value!r} of {of} is now {name}={new!r}", stacklevel + 1)
    return new


def check_arguments(of: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Returns a decorator, for a function or an `__init__`, that refuses or replaces the arguments of earlier releases.

    It looks at keyword arguments only; see `replace_arguments`.

    Args:
        of: Name of the class or function, a key of `ARGUMENTS`.
    """
    # Arguments whose name or value may be an old one.
    old = ARGUMENTS[of].keys() | {name for kind, name in _OLD_VALUES if kind == of}

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        # Calls pass without the cost of `replace_arguments` unless an argument may be an old one.
        @wraps(function)
        def check_call(*args: P.args, **options: P.kwargs) -> R:
            if not old.isdisjoint(options):
                return cast("Callable[..., R]", function)(*args, **replace_arguments(of, options, 2))
            return function(*args, **options)

        return check_call

    return decorate


def check_options(made: C) -> C:
    """Decorates a dataclass of options with `check_arguments` under its own name; changes and returns the class."""
    made.__init__ = check_arguments(made.__name__)(made.__init__)  # type: ignore[misc]
    return made
