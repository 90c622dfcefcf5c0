"""Arguments of earlier versions, and what has taken their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from streamer.errors import ConfigError

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
