"""Collates fields whose values have different lengths, such as encoded files or boxes: one after the other in memory.

The units of a batch (`batches/samples/units.py`, `batches/rows/collate.py`) do that for the fields of `ragged=` and for
such fields of packed rows; the loader copies a `Ragged` to the device (`loader/device`). `Ragged` is public. The module
imports torch only inside `join_ragged`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamer.batches.batch.buffers import ArrayBuffer, JoinedBuffer
from streamer.batches.batch.collate import Samples, collate
from streamer.decode.dispatch import Raw
from streamer.errors import ConfigError

if TYPE_CHECKING:
    import torch


class Ragged(NamedTuple):
    """Values of different lengths, one after the other.

    With `device=` the values of an encoded field stay in the memory of the CPU: decoders on a GPU take them from there
    (nvImageCodec, TorchCodec, torchvision, DALI).

    Attributes:
        values: the values of all samples, joined along their first axis; those of encoded files are uint8. A value that
            is a list of arrays of one shape, such as images of one size, is stacked first.
        offsets: int64 (samples + 1,), the place in `values` at which each sample's value begins, and the end.
        encoded: whether the values are bytes of files.
    """

    values: torch.Tensor
    offsets: torch.Tensor
    encoded: bool

    def views(self) -> list[torch.Tensor]:
        """Returns a view on each sample's value. While one of them lives, the loader does not reuse their memory."""
        return list(self.values.split((self.offsets[1:] - self.offsets[:-1]).tolist()))  # type: ignore[no-untyped-call]


def collate_ragged(samples: Samples, fields: Sequence[str]) -> dict[object, object]:
    """Collates dicts as `collate` does, but each of `fields` becomes a `Ragged` of buffers. For workers.

    Raises:
        ConfigError: a sample is no dict or lacks one of the fields, or the values of a field cannot be joined.
        Exception: an error of `collate` over the other fields.
    """
    mappings = _check_mappings(samples, fields)
    rest = collate([{key: value for key, value in sample.items() if key not in fields} for sample in mappings])
    assert isinstance(rest, dict)

    def buffers(field: str) -> object:
        parts, offsets, encoded = _split_values(field, [sample[field] for sample in mappings])
        # When it is read from the slot, both are tensors.
        return Ragged(JoinedBuffer(parts), ArrayBuffer(offsets), encoded)  # type: ignore[arg-type]

    return {key: buffers(key) if key in fields else rest[key] for key in mappings[0]}


def join_ragged(samples: Samples, fields: Sequence[str]) -> dict[object, object]:
    """Collates dicts as `default_collate` does, but each of `fields` becomes a `Ragged` of tensors.

    For batches that the trainer makes itself (`num_workers=0`).

    Raises:
        ConfigError: as `collate_ragged`, for the samples and the values of `fields`.
        Exception: an error of `default_collate` over the other fields.
    """
    import torch
    from torch.utils.data import default_collate

    mappings = _check_mappings(samples, fields)
    rest = default_collate([{key: value for key, value in sample.items() if key not in fields} for sample in mappings])

    def tensors(field: str) -> Ragged:
        parts, offsets, encoded = _split_values(field, [sample[field] for sample in mappings])
        return Ragged(torch.from_numpy(np.concatenate(parts)), torch.from_numpy(offsets), encoded)

    return {key: tensors(key) if key in fields else rest[key] for key in mappings[0]}


def _split_values(
    field: str, values: Sequence[Any]
) -> tuple[list[npt.NDArray[np.generic]], npt.NDArray[np.int64], bool]:
    """Returns the values of a field as arrays, where they begin (and the end), and whether they are bytes of files.

    Raises:
        ConfigError: they differ in dtype or in the axes after the first, or are no numbers, and cannot be joined.
    """
    encoded = isinstance(values[0], bytes | Raw)
    try:
        parts: list[npt.NDArray[np.generic]]
        if encoded:
            contents = [value.content if isinstance(value, Raw) else value for value in values]
            parts = [np.frombuffer(content, np.uint8) for content in contents]
        else:
            parts = [np.asarray(value) for value in values]
    except TypeError as error:
        raise _make_error(field, f"has values of {type(values[0]).__name__} and others in a batch") from error
    except ValueError as error:
        raise _make_error(field, "has lists of arrays of several shapes; make them alike in a transform") from error
    first = next((part for part in parts if part.size), parts[0])
    empty = first[:0] if first.ndim else first
    parts = [
        empty if isinstance(value, list) and not value else part for value, part in zip(values, parts, strict=True)
    ]
    for part in parts:
        alike = part.dtype == first.dtype and part.shape[1:] == first.shape[1:]
        if not (part.ndim and alike and part.dtype.kind in "biufc"):
            shapes = f"{first.dtype} {first.shape} and {part.dtype} {part.shape}"
            advice = f"decode={{{field!r}: None}} gives encoded bytes"
            raise _make_error(field, f"has {shapes} in a batch, which cannot be joined along the first axis; {advice}")
    return parts, np.cumsum([0, *map(len, parts)], dtype=np.int64), encoded


def _check_mappings(samples: Samples, fields: Sequence[str]) -> Sequence[dict[str, object]]:
    """Returns the samples as they are; raises a ConfigError if one is no dict or lacks one of the fields."""
    for sample in samples:
        missing = fields if not isinstance(sample, dict) else [field for field in fields if field not in sample]
        if missing:
            found = ", ".join(map(str, sample)) if isinstance(sample, dict) else type(sample).__name__
            raise _make_error(missing[0], f"is not in a sample, which has {found}")
    return samples  # type: ignore[return-value]


def _make_error(field: str, what: str) -> ConfigError:
    return ConfigError(f"ragged=: field {field!r} {what}", field="ragged")
