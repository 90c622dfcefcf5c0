"""Checks arguments that users give: each raises a ConfigError that names the argument and the rule.

`check_state` raises a StateError instead, and `are_names` nothing. The datasets, loaders, views and options of
`streamer/loader` use it, the options of rows (`batches/rows`), and `shards/pack.py`. `name` is the name of the argument
everywhere.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Collection, Mapping
from typing import TypeVar

from streamer.errors import ConfigError, StateError

T = TypeVar("T")


def whole(name: str, value: object) -> int:
    """Returns the value as an int; a ConfigError where it is not a whole number. True and False are none."""
    try:
        return operator.index(value if not isinstance(value, bool) else None)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{name}={value!r} is not a whole number", field=name) from None


def index(value: object) -> int:
    """Returns the `index` of `dataset[index]`; a ConfigError where it is not a whole number, such as a slice."""
    if isinstance(value, slice):
        several = f"dataset.select(indices={value}) is a dataset of several"
        raise ConfigError(f"index={value} is not a whole number: {several}", field="index")
    return whole("index", value)


def at_least(name: str, value: object, least: int) -> int:
    """Returns the value as an int; a ConfigError where it is not a whole number, or below `least`."""
    if (number := whole(name, value)) < least:
        raise ConfigError(f"{name}={value} is below {least}", field=name)
    return number


def epoch(value: object) -> int:
    """Returns the number of an epoch; a ConfigError where it is not a whole number from 0 to 2^32 - 1."""
    if (number := at_least("epoch", value, 0)) >= 1 << 32:
        raise ConfigError(f"epoch={value} is not below 2^32", field="epoch")
    return number


def seconds(name: str, value: object) -> float:
    """Returns the value; a ConfigError where it is no int or float, NaN or negative. Infinity is allowed."""
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value) or value < 0:
        raise ConfigError(f"{name}={value!r} is not a number of seconds", field=name)
    return value


def one_of(name: str, value: T, allowed: tuple[T, ...]) -> T:
    """Returns the value; a ConfigError where it is none of the allowed ones."""
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}", field=name)
    return value


def flag(name: str, value: object) -> bool:
    """Returns the value as a bool; a ConfigError where it is neither True nor False. 1 and 0 are accepted."""
    if value not in (True, False):
        raise ConfigError(f"{name}={value!r} is neither True nor False", field=name)
    return bool(value)


def function(name: str, value: T | None) -> T | None:
    """Returns the value; a ConfigError where it is neither None nor can be called."""
    if value is not None and not callable(value):
        raise ConfigError(f"{name}={value!r} cannot be called", field=name)
    return value


def path(name: str, value: str | os.PathLike[str] | None) -> str | None:
    """Returns the value as a text, or None for None; a ConfigError where it is neither a text nor a path."""
    if value is not None and not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name}={value!r} is not a path", field=name)
    return None if value is None else os.fspath(value)


def mapping(name: str, value: Mapping[str, object] | None) -> dict[str, object]:
    """Returns a copy of the value, or an empty dict for None; a ConfigError where it is no mapping."""
    if value is not None and not isinstance(value, Mapping):
        # The value is not named: it may be a secret.
        raise ConfigError(f"{name}: {type(value).__name__} is not a dict", field=name)
    return dict(value or {})


def are_names(value: object) -> bool:
    """Whether a value is a collection of texts, and no text itself. It raises nothing."""
    return isinstance(value, Collection) and not isinstance(value, str) and all(isinstance(name, str) for name in value)


def check_state(value: object, *, between_batches: bool = False) -> Mapping[str, object]:
    """Returns the argument of `load_state_dict` of a loader or dataset as it was given.

    Args:
        value: The argument.
        between_batches: Whether a state is refused that a loop has given inside a batch, or a worker of torch's loader.

    Raises:
        StateError: The value is not a dict, holds the state of an object that earlier versions took as `stateful=`, or
            is a state that is refused by `between_batches`.
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
    for name in ("batch_samples", "worker_batches"):
        if between_batches and value.get(name, 0) != 0:
            raise StateError(
                f"the state is of a loop over a dataset, with {name}={value[name]!r}: a StreamingDataLoader goes on "
                "between two batches only; load it into such a loop, or save it there after a whole batch",
                field=name,
            )
    return value
