"""Names and arguments of earlier releases: what is written now, and which of them still work.

An old spelling is an error that says the new one. The few that many programs use still work in 0.2, with a
`FutureWarning` that says the same.
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
    "DevicePrefetcher": {"ahead": "depth=", "mover": "chosen by device=: leave it out"},
    "Growing": {"grow": "round_bytes="},
    "Weights": {"values": "weights=", "stop": "stopping_strategy="},
}


def _split_reports(value: object) -> dict[str, object]:
    """Returns the arguments that stand for `reports=` of a loader: seconds, a function, or both as `Reports`."""
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
# Names of modules, and the names that have taken their place.
NAMES = {
    "streamer.decode.transforms": {"CentreCrop": "CenterCrop"},
    "streamer.formats": {"Mds": "MDS"},
    "streamer.shards.settle": {"Packed": "PackResult"},
}
# Old names that still work in this release.
_NAMES_STILL_TAKEN = {("streamer.shards.settle", "Packed")}
# Methods of earlier versions, and what to write instead.
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
    """Returns what is wrong with the words of a command, or None if no option of an earlier release is among them.

    Args:
        removed: Options of the command, as a value of `OPTIONS`.
        words: Words after the name of the command.
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
    """Whether a word after an option is a file that the option was to write, not the next argument, which is there."""
    if not word or word.startswith("-") or "://" in word:
        return False
    return word.endswith(".json") or not os.path.exists(word)


def refuse_removed(of: str, given: Mapping[str, object]) -> None:
    """Refuses arguments that earlier versions had.

    Args:
        of: name of the class or function.
        given: Arguments by name, of which those that were not removed are left to the caller.

    Raises:
        ConfigError: a removed argument; names its replacement.
    """
    for name in given:
        if (now := ARGUMENTS[of].get(name)) is not None:
            raise ConfigError(f"{name}= of {of} is now {now}", field=name)


def refuse_name(module: str, name: str) -> NoReturn:
    """Refuses a name that a module does not have, as its `__getattr__`.

    Raises:
        ImportError: an earlier release had the name; says the new one. From an AttributeError Python itself would make
            "cannot import name".
        AttributeError: no release had it.
    """
    if (now := NAMES[module].get(name)) is not None:
        raise ImportError(f"{module}.{name} is now {module}.{now}", name=module)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def replace_name(module: str, name: str) -> str:
    """Returns the name of today for one that still works, with a warning, in the `__getattr__` of a module.

    Raises:
        ImportError, AttributeError: as `refuse_name`.
    """
    if (module, name) not in _NAMES_STILL_TAKEN:
        refuse_name(module, name)
    new = NAMES[module][name]
    # The user's line is the caller of `__getattr__`.
    warn_of(f"{module}.{name} is now {module}.{new}", 3)
    return new


def refuse_method(of: str, name: str) -> NoReturn:
    """Refuses a method that earlier versions had.

    Raises:
        ConfigError: always; says what to write instead.
    """
    raise ConfigError(f"{of}.{name} is not there any more: {METHODS[of][name]}", field=name)


def warn_of(text: str, stacklevel: int) -> None:
    """Warns of a spelling that a later release refuses.

    Args:
        text: The old spelling and the new one.
        stacklevel: Frames from the caller of this function up to the code of the user; 1 is the caller itself.
    """
    warnings.warn(f"{text}; the old spelling works until release 0.3", FutureWarning, stacklevel=stacklevel + 1)


def replace_arguments(of: str, given: Mapping[str, Any], stacklevel: int = 1) -> dict[str, Any]:
    """Returns the arguments under their names of today.

    Args:
        of: name of the class or function.
        given: Arguments by name.
        stacklevel: Frames from the caller of this function up to the code of the user, for warnings.

    Raises:
        ConfigError: an argument that no longer works; names its replacement.
    """
    taken: dict[str, Any] = {}
    for name, value in given.items():
        if (convert := _STILL_TAKEN.get((of, name))) is None:
            refuse_removed(of, {name: value})
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
    """Returns the value of today for one that still works, with a warning; another one as it is."""
    new = _OLD_VALUES.get((of, name), {}).get(value) if isinstance(value, str) else None
    if new is None:
        return value
    warn_of(f"{name}={value!r} of {of} is now {name}={new!r}", stacklevel + 1)
    return new


def check_arguments(of: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a function, or the `__init__` of a class, refuse the arguments of earlier releases by their new names.

    Args:
        of: Name in `ARGUMENTS`. Only keywords are looked at.
    """
    # Arguments of which the name or a value may be an old one.
    old = ARGUMENTS[of].keys() | {name for kind, name in _OLD_VALUES if kind == of}

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def check_call(*args: P.args, **options: P.kwargs) -> R:
            if not old.isdisjoint(options):
                return cast("Callable[..., R]", function)(*args, **replace_arguments(of, options, 2))
            return function(*args, **options)

        return check_call

    return decorate


def check_options(made: C) -> C:
    """Makes a dataclass of options refuse the arguments of earlier releases by their new names."""
    made.__init__ = check_arguments(made.__name__)(made.__init__)  # type: ignore[misc]
    return made
