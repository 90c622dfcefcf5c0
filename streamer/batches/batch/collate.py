"""`torch.utils.data.default_collate` without torch: the same batch, with buffers instead of tensors.

A worker that decodes with numpy must not import torch (1.1 s, 220 MB each) only to stack arrays. Plain values - arrays
of one dtype and shape, Python's and numpy's numbers, strings - are collated here. All others are passed to torch's own
function, so that unusual input gives torch's result or torch's error.

The units of a batch use it (`batches/samples/units.py`), also for fields of different lengths and for packed rows;
`mismatch.py` beside it calls it to find the field that fails. `batches/workers/batch_maker.py` tells by
`collate_by_torch` whether a collate function is the user's.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from streamer.batches.batch.buffers import ArrayBuffer, Buffer, StackBuffer, StringsBuffer, tensor_buffer
from streamer.decode.dispatch import Raw
from streamer.errors import ConfigError

Samples = Sequence[object]

# The dtypes that torch.as_tensor takes from numpy (2.13); for others torch raises its own error.
_TORCH_KINDS: Final = frozenset(["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"])


def collate(samples: Samples) -> object:
    """Collates at least one sample as `default_collate` does, with a `Buffer` in place of each tensor.

    A list of texts, of bytes or of `Raw` becomes a `StringsBuffer`.

    Raises:
        TypeError, RuntimeError, ValueError, KeyError: as torch raises for the same samples.
        ConfigError: a sample with a "__key__" lacks a field of the first one (torch: a KeyError).
    """
    first = samples[0]
    if (buffer := _number_buffer(first, samples)) is not None:
        return buffer
    if isinstance(first, (str, bytes, Raw)):
        text = type(first)
        if text in {str, bytes, Raw} and type(samples) in {list, tuple} and all(type(s) is text for s in samples):
            return StringsBuffer(samples)  # type: ignore[arg-type]
        # Other texts stay as torch leaves them: a list is a list, a column of zipped tuples a tuple.
        return samples
    if isinstance(first, (np.ndarray, np.generic, float, int)) or _is_tensor(first):
        return _collate_others(samples)
    if isinstance(first, Mapping):
        return _mapping(first, samples)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        kind: Callable[..., object] = type(first)
        return kind(*map(collate, _columns(samples)))
    if isinstance(first, Sequence):
        return _sequence(first, samples)
    return _collate_others(samples)


def _is_tensor(item: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(item, torch.Tensor)


def _number_buffer(first: object, samples: Samples) -> Buffer | None:
    """Returns the samples as a buffer if all are plain numbers or arrays of one type and shape, else None."""
    kind = type(first)
    if isinstance(first, np.ndarray) and kind is np.ndarray:
        dtype = first.dtype
        shape = first.shape
        if dtype.str[1:] not in _TORCH_KINDS:
            return None
        # Tensors have this machine's order of bytes.
        native = None if dtype.isnative else dtype.newbyteorder("=")
        rows: list[npt.NDArray[np.generic]] = []
        for row in samples:
            if type(row) is not np.ndarray or row.dtype != dtype or row.shape != shape:
                return None
            # torch refuses negative strides. Reading the flag first takes 0.05 us, a fifth of reading the strides
            # (2026-11-20).
            if not row.flags.c_contiguous and min(row.strides, default=0) < 0:
                return None
            rows.append(row if native is None else row.astype(native))
        return StackBuffer(rows)
    if (scalars := _SCALARS.get(kind)) is not None:
        return scalars(samples) if all(type(s) is kind for s in samples) else None
    if isinstance(first, np.generic) and first.dtype.str[1:] in _TORCH_KINDS and first.dtype.isnative:
        return ArrayBuffer(np.array(samples)) if all(type(s) is kind for s in samples) else None
    return None


def _integers(samples: Samples) -> Buffer | None:
    """Returns the numbers as int64, else as uint64, or None if neither holds all of them."""
    for dtype in (np.int64, np.uint64):
        try:
            return ArrayBuffer(np.array(samples, dtype))
        except OverflowError:
            # The batch is unsigned if it has numbers of 2^63 or more.
            continue
    return None


_SCALARS: Final[dict[type, Callable[[Samples], Buffer | None]]] = {
    int: _integers,
    bool: lambda samples: ArrayBuffer(np.array(samples, np.bool_)),
    float: lambda samples: ArrayBuffer(np.array(samples, np.float64)),
}


def _mapping(first: Mapping[object, object], samples: Samples) -> object:
    """Collates each field of the first sample; returns a mapping of its type, or a dict if that cannot be made.

    Raises:
        ConfigError: a sample with a "__key__" lacks a field of the first one.
    """
    for sample in samples if "__key__" in first else ():
        if isinstance(sample, Mapping) and "__key__" in sample and not first.keys() <= sample.keys():
            raise _other_fields(first, sample)
    columns = {key: collate([sample[key] for sample in samples]) for key in first}  # type: ignore[index]
    if type(first) is dict:
        return columns
    try:
        if isinstance(first, MutableMapping):
            clone = copy.copy(first)
            clone.update(columns)
            return clone
        return type(first)(columns)  # type: ignore[call-arg]
    except TypeError:
        return columns


def _other_fields(first: Mapping[object, object], other: Mapping[object, object]) -> ConfigError:
    def describe(sample: Mapping[object, object]) -> str:
        names = ", ".join(str(key) for key in sample if key != "__key__")
        return f"{sample['__key__']!r} has {names or 'no field'}"

    return ConfigError(
        f"the samples of a batch have different fields: {describe(first)}; {describe(other)}. Let the transform "
        "return the same fields for each, or say with Folder(extensions=...) which files are samples",
        field="extensions",
    )


def _columns(samples: Samples) -> Iterable[tuple[object, ...]]:
    return zip(*samples, strict=False)


def _sequence(first: Sequence[object], samples: Samples) -> object:
    """Collates each place; returns a list for lists and tuples, else the type of the first sample if it can be made.

    Raises:
        RuntimeError: the samples have different lengths.
    """
    if any(len(sample) != len(first) for sample in samples):  # type: ignore[arg-type]
        raise RuntimeError("each element in list of batch should be of equal size")
    columns = [collate(column) for column in _columns(samples)]
    if isinstance(first, tuple) or type(first) is list:
        return columns
    try:
        if not isinstance(first, MutableSequence):
            return type(first)(columns)  # type: ignore[call-arg]
        clone = copy.copy(first)
        for place, column in enumerate(columns):
            clone[place] = column
    except TypeError:
        return columns
    return clone


def _collate_others(samples: Samples) -> object:
    from torch.utils.data import default_collate

    batch: object = default_collate(samples)  # type: ignore[arg-type]
    return (tensor_buffer(batch) if _is_tensor(batch) else None) or batch  # type: ignore[arg-type]


def collate_by_torch(samples: Samples) -> object:
    """Does what `default_collate` does, for batches that the trainer makes itself (`num_workers=0`).

    Where it fails over a field of dict samples with whole numbers of 2^63 or more, that field becomes a uint64 tensor,
    as in `collate`. Errors are those of `default_collate`.
    """
    from torch.utils.data import default_collate

    try:
        return default_collate(samples)  # type: ignore[arg-type]
    except (OverflowError, RuntimeError, ValueError):
        first = samples[0]
        wide = [name for name in first if _is_wide(samples, name)] if type(first) is dict else []
        if not wide:
            raise
    import torch

    # torch makes no tensor of a list of such numbers.
    every: list[dict[object, object]] = list(samples)  # type: ignore[arg-type]
    rest = default_collate([{name: sample[name] for name in sample if name not in wide} for sample in every])
    numbers = {name: torch.from_numpy(np.array([sample[name] for sample in every], np.uint64)) for name in wide}
    return {name: numbers[name] if name in numbers else rest[name] for name in every[0]}


def _is_wide(samples: Samples, name: object) -> bool:
    """Whether the values of a field are whole numbers from 0 to 2^64 - 1, and one of them is 2^63 or more."""
    values = [sample.get(name) if type(sample) is dict else None for sample in samples]
    in_range = all(type(value) is int and 0 <= value < 1 << 64 for value in values)
    return in_range and any(value >> 63 for value in values)  # type: ignore[operator]
