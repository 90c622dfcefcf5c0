"""Checks arguments. Each check raises a ConfigError that names the argument, its value and the rule.

Arguments of earlier versions are refused here, too, by an error that names what has taken their place.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping
from typing import NoReturn, TypeVar

from streamer.errors import ConfigError, StateError

T = TypeVar("T")


def whole(name: str, value: object) -> int:
    """Returns the value; a ConfigError where it is not a whole number."""
    try:
        return operator.index(value if not isinstance(value, bool) else None)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{name}={value!r} is not a whole number", field=name) from None


def index(value: object) -> int:
    """Returns the number of a sample; a ConfigError where it is not a whole number."""
    if isinstance(value, slice):
        several = f"dataset.select(indices={value}) is a dataset of several"
        raise ConfigError(f"index={value} is not a whole number: {several}", field="index")
    return whole("index", value)


def at_least(name: str, value: object, least: int) -> int:
    """Returns the value; a ConfigError where it is not a whole number, or below `least`."""
    if (number := whole(name, value)) < least:
        raise ConfigError(f"{name}={value} is below {least}", field=name)
    return number


def epoch(value: object) -> int:
    """Returns the number of an epoch; a ConfigError where it is negative, or no number below 2^32."""
    if (number := at_least("epoch", value, 0)) >= 1 << 32:
        raise ConfigError(f"epoch={value} is not below 2^32", field="epoch")
    return number


def seconds(name: str, value: object) -> float:
    """Returns the value; a ConfigError where it is not a number of seconds."""
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value) or value < 0:
        raise ConfigError(f"{name}={value!r} is not a number of seconds", field=name)
    return value


def one_of(name: str, value: T, allowed: tuple[T, ...]) -> T:
    """Returns the value; a ConfigError where it is not allowed."""
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}", field=name)
    return value


def flag(name: str, value: object) -> bool:
    """Returns the value; a ConfigError where it is neither True nor False."""
    if value not in (True, False):
        raise ConfigError(f"{name}={value!r} is neither True nor False", field=name)
    return bool(value)


def function(name: str, value: T | None) -> T | None:
    """Returns the value; a ConfigError where it is neither None nor a function."""
    if value is not None and not callable(value):
        raise ConfigError(f"{name}={value!r} cannot be called", field=name)
    return value


def path(name: str, value: str | os.PathLike[str] | None) -> str | None:
    """Returns the value as a text; a ConfigError where it is neither a text nor a path, nor None."""
    try:
        return None if value is None else os.fspath(value)
    except TypeError as error:
        raise ConfigError(f"{name}={value!r} is not a path", field=name) from error


def mapping(name: str, value: Mapping[str, object] | None) -> dict[str, object]:
    """Returns the value, or an empty dict for None; a ConfigError where it is not a dict."""
    if value is not None and not isinstance(value, Mapping):
        # The value is not named: it may be a secret.
        raise ConfigError(f"{name}: {type(value).__name__} is not a dict", field=name)
    return dict(value or {})


def check_state(value: object) -> Mapping[str, object]:
    """Returns the state of a loader or dataset as it was given.

    Raises:
        StateError: The value is not a dict, or holds the state of an object that earlier versions took as `stateful=`.
    """
    if not isinstance(value, Mapping):
        raise StateError(f"state: {type(value).__name__} is not a dict that state_dict() has returned", field="state")
    if "stateful" in value:
        raise StateError(
            "the state holds what an object carried over batches (stateful= of earlier versions): give "
            'state["stateful"]["state"] to the load_state_dict of that object, on the same rank, and remove "stateful" '
            "from the state",
            field="stateful",
        )
    return value


_OF_BOTH = {
    "lanes": "order=Order(lanes=...)",
    "shuffle_window": "order=Order(shuffle_window=...)",
    "last_batch": "order=Order(last_batch=...)",
    "drop_last": 'order=Order(last_batch="drop")',
    "stream": "order=Order(stream=...)",
    "error_budget": "on_error=Skip(budget=...)",
}
_REMOVED = {
    "StreamingDataset": {
        **_OF_BOTH,
        "cut": 'order=Order(cut=...), where "common" is called "by_key"',
        "peers": "order=Order(peers=...)",
        "index_limit": "manifest=Index(limit_seconds=...)",
        "index_errors": "manifest=Index(on_error=...)",
        "on_change": "manifest=Index(on_change=...)",
        "extensions": 'format=Folder(extensions=["jpg", "png"]) of streamer.formats',
        "allow_pickle": "decode=Decode(allow_pickle=True)",
    },
    "MixedDataset": {
        **_OF_BOTH,
        "temperature": "weights=Weights(temperature=...)",
        "unit": "weights=Weights(..., unit=...)",
        "epoch_samples": "weights=Weights(..., epoch_samples=...)",
        "stop": "weights=Weights(..., stop=...)",
        "group": "batching=Homogeneous(group=...)",
    },
    "StreamingDataLoader": {
        "last_batch": "order=Order(last_batch=...) of the dataset",
        "on_error": "on_error= of the dataset",
        "error_budget": "on_error=Skip(budget=...) of the dataset",
        "worker_start": 'multiprocessing_context="forkserver" or "spawn"',
        "pin": 'pin_memory=..., where True, an error if it fails, is called "required"',
        "report_seconds": "reports=, seconds or None",
        "on_report": "reports=, the function, or reports=Reports(seconds=..., call=...)",
        "stateful": "saved by you: packer.state_dict() beside loader.state_dict(), on each rank; rows that the loader "
        "plans carry nothing over (docs/sequences.md)",
    },
}
# Methods of earlier versions, and what to write instead.
_REMOVED_METHODS = {
    "MixedDataset": {
        "from_file": "read the file with tomllib, and pass its values: MixedDataset({name: StreamingDataset(**member) "
        "for name, member in members.items()}, weights=...); docs/mixing.md",
    },
    "StreamingDataLoader": {
        "headspace": "keep a few batches (clone them), train on them in turn and take the time: docs/tuning.md",
    },
}


def refuse_removed(of: str, given: Mapping[str, object]) -> None:
    """Refuses arguments that earlier versions had.

    Args:
        of: name of the class.
        given: Arguments by name; others than removed ones are left to the caller.

    Raises:
        ConfigError: a removed argument; names its replacement.
    """
    for name in given:
        if (now := _REMOVED[of].get(name)) is not None:
            raise ConfigError(f"{name}= of {of} is now {now}", field=name)


def refuse_method(of: str, name: str) -> NoReturn:
    """Refuses a method that earlier versions had.

    Raises:
        ConfigError: always; says what to write instead.
    """
    raise ConfigError(f"{of}.{name} is not there any more: {_REMOVED_METHODS[of][name]}", field=name)


def refuse_unknown(of: str, given: Mapping[str, object]) -> None:
    """Refuses all arguments that a class does not have.

    Raises:
        ConfigError: a removed argument; names its replacement.
        TypeError: one that no version had.
    """
    refuse_removed(of, given)
    for name in given:
        raise TypeError(f"{of}.__init__() got an unexpected keyword argument {name!r}")
