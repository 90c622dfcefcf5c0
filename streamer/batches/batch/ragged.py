"""Fields whose values have different lengths, one after the other in memory: encoded files, boxes. Free of torch."""

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

    Of an encoded field `values` stays in the memory of the CPU under `device=`, because decoders on a GPU take it from
    there (nvImageCodec, TorchCodec, torchvision, DALI).

    Attributes:
        values: of all samples: uint8 of encoded files, else the arrays joined along their first axis; of lists of
            arrays of one shape, as images of one size, all of them, stacked.
        offsets: int64 (samples + 1,): where the value of each sample begins, and the end.
        encoded: whether the values are bytes of files.
    """

    values: torch.Tensor
    offsets: torch.Tensor
    encoded: bool

    def views(self) -> list[torch.Tensor]:
        """The value of each sample, in the same memory: while one of them lives, the loader does not reuse it."""
        return list(self.values.split((self.offsets[1:] - self.offsets[:-1]).tolist()))  # type: ignore[no-untyped-call]


def collate_ragged(samples: Samples, fields: Sequence[str]) -> dict[object, object]:
    """Collates as `collate`, with these fields as `Ragged`, of buffers.

    Raises:
        ConfigError: the samples do not have a field, or its values cannot be joined.
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
    """Does the same with tensors, where the trainer makes the batches."""
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
    """The values as arrays, where each begins, and whether they are bytes."""
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
    for sample in samples:
        missing = fields if not isinstance(sample, dict) else [field for field in fields if field not in sample]
        if missing:
            found = ", ".join(map(str, sample)) if isinstance(sample, dict) else type(sample).__name__
            raise _make_error(missing[0], f"is not in a sample, which has {found}")
    return samples  # type: ignore[return-value]


def _make_error(field: str, what: str) -> ConfigError:
    return ConfigError(f"ragged=: field {field!r} {what}", field="ragged")
