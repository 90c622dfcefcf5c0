"""Compares the samples of the members of a mix: those of one batch must have the same fields."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import numpy as np

from streamer.errors import ConfigError

_FIX = "make the transforms agree, pass collate_fn, or batching='homogeneous'"


def check_fields(samples: Sequence[object], first: Mapping[str, int], ragged: Sequence[str] = ()) -> None:
    """Checks that the first samples of each member in a batch have the same fields, types and shapes.

    Args:
        samples: of a batch.
        first: the names of its members, each with the index of its first sample.
        ragged: fields that may have different shapes.

    Raises:
        ConfigError: names two members, the field and both shapes.
    """
    (name, index), *others = first.items()
    for other_name, other in others:
        found = _difference(samples[index], samples[other], ragged)
        if found:
            raise ConfigError(f"members {name} and {other_name} differ in {found}: {_FIX}", field="transform")


def _difference(first: object, other: object, ragged: Sequence[str]) -> str:
    if not isinstance(first, Mapping) or not isinstance(other, Mapping):
        return _values("", first, other)
    if first.keys() != other.keys():
        names = [sorted(map(str, one.keys() - two.keys())) for one, two in ((first, other), (other, first))]
        only = [", ".join(each) or "none" for each in names]
        return f"their fields (only in the first: {only[0]}; only in the second: {only[1]})"
    different = (key for key in first if key not in ragged and not _alike(first[key], other[key]))
    return next(filter(None, (_values(f"field {key!r}", first[key], other[key]) for key in different)), "")


def _alike(first: object, other: object) -> bool:
    """Whether two values have the same form, as most have: names are made for the others only."""
    return (
        type(first) is type(other)
        and getattr(first, "shape", None) == getattr(other, "shape", None)
        and getattr(first, "dtype", None) == getattr(other, "dtype", None)
    )


def _values(what: str, first: object, other: object) -> str:
    forms = _form(first), _form(other)
    return "" if forms[0] == forms[1] else f"{what or 'what their transforms return'}: {forms[0]} and {forms[1]}"


def _form(value: object) -> str:
    """Type and shape of an array or a tensor; the kind of another value."""
    torch = sys.modules.get("torch")
    if isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor)):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, (bool, int, float, np.generic)):
        return "a number"
    return type(value).__name__
