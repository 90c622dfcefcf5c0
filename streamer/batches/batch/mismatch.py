"""Explains why samples cannot make a batch: which field it is, which samples or members differ, and what to do.

The maker of batches (`batches/workers/batch_maker.py`) calls `explain` when samples cannot be collated, and
`check_fields` before it collates samples of several members of a mix.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import numpy as np

from streamer.batches.batch.collate import collate
from streamer.decode.images import IMAGE
from streamer.errors import ConfigError
from streamer.formats.names import IMAGES

# Kinds of samples that are listed.
_LISTED = 3
# The remedy where members of a mix differ.
_FIX = "make the transforms agree, pass collate_fn, or batching='homogeneous'"


def explain(samples: Sequence[object]) -> ConfigError | None:
    """Returns the error that names the field and samples that differ in it, or None if `collate` accepts them.

    It collates each field again to find the one that fails.
    """
    names = []
    for number, sample in enumerate(samples):
        key = sample.get("__key__") if isinstance(sample, Mapping) else None
        names.append(f"sample {number} of the batch" if key is None else repr(key))
    message = _find_cause("", samples, names)
    return None if message is None else ConfigError(message, field="collate_fn")


def _find_cause(place: str, values: Sequence[object], names: Sequence[str]) -> str | None:
    """Returns why these values make no batch, or None if they do.

    Args:
        place: the field inside of the samples, as `a['b'][0]`; "" for the samples themselves.
        values: what each sample has there.
        names: key or number of each sample, for the message.
    """
    try:
        collate(values)
    except Exception as error:  # noqa: BLE001 - any error of torch's rules, or of a type of the user's
        failure = error
    else:
        return None
    if all(isinstance(value, Mapping) for value in values):
        return _compare_mappings(place, values, names) or _describe_failure(place, values, failure)  # type: ignore[arg-type]
    if all(isinstance(value, Sequence) and not isinstance(value, str | bytes) for value in values):
        return _compare_sequences(place, values, names) or _describe_failure(place, values, failure)  # type: ignore[arg-type]
    return _compare_values(place, values, names) or _describe_failure(place, values, failure)


def _compare_mappings(place: str, samples: Sequence[Mapping[object, object]], names: Sequence[str]) -> str | None:
    """Returns that they have different fields, or the cause inside of a field, or None."""
    if any(field not in sample for field in samples[0] for sample in samples):
        fields = [sorted(map(str, sample)) for sample in samples]
        advice = "return the same fields for every sample in the transform"
        if any(name.rpartition(".")[2].lower() in IMAGES for some in fields for name in some):
            advice += (
                f' (OnField("{IMAGE}", ...) of streamer.decode.transforms delivers the image as {IMAGE!r}, whatever '
                "its extension)"
            )
        what = f"a batch has samples of different fields{f' at {place!r}' if place else ''}"
        return _text(what, [", ".join(some) for some in fields], names, advice)
    columns = ((field, [sample[field] for sample in samples]) for field in samples[0])
    found = (_find_cause(f"{place}[{field!r}]" if place else str(field), column, names) for field, column in columns)
    return next(filter(None, found), None)


def _compare_sequences(place: str, samples: Sequence[Sequence[object]], names: Sequence[str]) -> str | None:
    """Returns that they have different lengths, or the cause inside of an item, or None."""
    if len(set(map(len, samples))) > 1:
        lengths = [str(len(sample)) for sample in samples]
        what = f"{_field(place)} has different lengths in a batch"
        return _text(what, lengths, names, "pad or cut it to one length in the transform")
    columns = enumerate(zip(*samples, strict=True))
    found = (_find_cause(f"{place}[{number}]", column, names) for number, column in columns)
    return next(filter(None, found), None)


def _compare_values(place: str, values: Sequence[object], names: Sequence[str]) -> str | None:
    """Returns that they have different types or shapes, or None."""
    if len(set(map(type, values))) > 1:
        kinds = [type(value).__name__ for value in values]
        what = f"{_field(place)} has different types in a batch"
        return _text(what, kinds, names, "return one type in the transform")
    shapes = [tuple(getattr(value, "shape", ())) for value in values]
    if len(set(shapes)) == 1:
        return None
    advice = "pad or cut it to one shape in the transform"
    if all(len(shape) == 3 and shape[2] == 3 for shape in shapes):
        advice += f', images with OnField("{place or IMAGE}", RandomResizedCrop(224)) of streamer.decode.transforms'
    return _text(f"{_field(place)} has different shapes in a batch", list(map(str, shapes)), names, advice)


def _describe_failure(place: str, values: Sequence[object], failure: Exception) -> str:
    kind = type(values[0])
    return (
        f"{_field(place)} cannot make a batch ({kind.__module__}.{kind.__qualname__}: {failure}): return arrays, "
        "tensors, numbers or texts in the transform, or pass a collate_fn"
    )


def _text(what: str, kinds: Sequence[str], names: Sequence[str], advice: str) -> str:
    """Returns the message: `what` differs, each of the `kinds` with the name of its first sample, and the advice."""
    firsts: dict[str, str] = {}
    for kind, name in zip(kinds, names, strict=True):
        firsts.setdefault(kind, name)
    shown = [f"{kind} in {name}" for kind, name in list(firsts.items())[:_LISTED]]
    more = f"; and {len(firsts) - len(shown)} more" if len(firsts) > len(shown) else ""
    return f"{what}: {'; '.join(shown)}{more}. To make one, {advice}, or pass a collate_fn"


def _field(place: str) -> str:
    return f"field {place!r}" if place else "the sample"


def check_fields(samples: Sequence[object], first: Mapping[str, int], ragged: Sequence[str] = ()) -> None:
    """Checks that the first samples of each member in a batch have the same fields, types and shapes.

    Args:
        samples: Samples of a batch from several members of a mix.
        first: the names of these members, each with the index of its first sample.
        ragged: fields that are not compared.

    Raises:
        ConfigError: two members differ; it names them, the field, and the type and shape that each has.
    """
    (name, index), *others = first.items()
    for other_name, other in others:
        found = _find_difference(samples[index], samples[other], ragged)
        if found:
            raise ConfigError(f"members {name} and {other_name} differ in {found}: {_FIX}", field="transform")


def _find_difference(first: object, other: object, ragged: Sequence[str]) -> str:
    """Describes the first difference of two samples, or returns "" if there is none."""
    if not isinstance(first, Mapping) or not isinstance(other, Mapping):
        return _compare_forms("", first, other)
    if first.keys() != other.keys():
        names = [sorted(map(str, one.keys() - two.keys())) for one, two in ((first, other), (other, first))]
        only = [", ".join(each) or "none" for each in names]
        return f"their fields (only in the first: {only[0]}; only in the second: {only[1]})"
    different = (key for key in first if key not in ragged and not _alike(first[key], other[key]))
    return next(filter(None, (_compare_forms(f"field {key!r}", first[key], other[key]) for key in different)), "")


def _alike(first: object, other: object) -> bool:
    """Whether type, shape and dtype are equal. A quick test: most values pass, and no texts are made for them."""
    return (
        type(first) is type(other)
        and getattr(first, "shape", None) == getattr(other, "shape", None)
        and getattr(first, "dtype", None) == getattr(other, "dtype", None)
    )


def _compare_forms(what: str, first: object, other: object) -> str:
    forms = _describe_form(first), _describe_form(other)
    return "" if forms[0] == forms[1] else f"{what or 'what their transforms return'}: {forms[0]} and {forms[1]}"


def _describe_form(value: object) -> str:
    """Returns dtype and shape of an array or tensor, "a number" for numbers, or the name of the type."""
    torch = sys.modules.get("torch")
    if isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor)):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, (bool, int, float, np.generic)):
        return "a number"
    return type(value).__name__
