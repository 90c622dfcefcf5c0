"""Rows to a batch: arrays are stacked, bounds joined, and the values of documents put one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from streamer.loader.batch.buffers import ArrayBuffer
from streamer.loader.batch.collate import collate
from streamer.loader.batch.ragged import collate_ragged, join_ragged
from streamer.loader.rows.options import BOUNDS, DOCUMENTS, LENGTHS, LONGEST

Row = Mapping[str, Any]


def collate_rows(rows: Sequence[Row]) -> dict[str, object]:
    """Makes a batch of the rows of a dataset with `packing=`, as `StreamingDataLoader` does, of tensors.

    The `collate_fn` of torch's own DataLoader over such a dataset.

    Args:
        rows: at least one.

    Returns:
        The fields of the rows, each [rows, length]; "cu_seqlens", int32 [documents + 1], over the tokens of all rows
        one after the other, with the padding of a row as a document of its own; "max_seqlen", the longest of these, an
        int; and of the other fields one value for each document, arrays as `Ragged`.
    """
    import torch
    from torch.utils.data import default_collate

    def stack(values: Sequence[object]) -> object:
        block = _block(values)
        if block is not None:
            return torch.from_numpy(block)
        first = values[0]
        if type(first) is dict:
            return {name: stack([row[name] for row in cast("Sequence[Row]", values)]) for name in first}
        return default_collate(list(values))

    return _joined(rows, stack, lambda values, field: join_ragged(values, [field]), torch.from_numpy)


def collate_row_buffers(rows: Sequence[Row]) -> dict[str, object]:
    """Makes the same batch with buffers in place of tensors, for the workers of `StreamingDataLoader`."""
    return _joined(rows, collate, lambda values, field: collate_ragged(values, [field]), ArrayBuffer)


def _joined(
    rows: Sequence[Row],
    stack: Callable[[Any], Any],
    join: Callable[[list[object], str], Mapping[Any, object]],
    as_tensor: Callable[[npt.NDArray[Any]], object],
) -> dict[str, object]:
    """Makes a batch.

    Args:
        rows: of the batch.
        stack: samples -> batch, by torch's rules.
        join: dicts of one field, and its name -> the field as `Ragged`.
        as_tensor: makes a tensor of an array.
    """
    first = rows[0]
    if LENGTHS in first and BOUNDS not in first:
        return _bucket(first, stack, join, as_tensor)
    arrays = [name for name, value in first.items() if isinstance(value, np.ndarray) and name != BOUNDS]
    batch: dict[str, object] = dict(stack([{name: row[name] for name in arrays} for row in rows]))
    batch[BOUNDS] = as_tensor(_joined_bounds(rows, len(first[DOCUMENTS])))
    batch[LONGEST] = max(row[LONGEST] for row in rows)
    for name in first.keys() - batch.keys():
        batch[name] = _of_documents(name, [value for row in rows for value in row[name]], stack, join)
    return {name: batch[name] for name in first}


def _bucket(
    bucket: Row,
    stack: Callable[[Any], Any],
    join: Callable[[list[object], str], Mapping[Any, object]],
    as_tensor: Callable[[npt.NDArray[Any]], object],
) -> dict[str, object]:
    """Makes the batch of a bucket, which is alone in it; arguments as of `_joined`."""
    return {
        name: as_tensor(value) if isinstance(value, np.ndarray) else _of_documents(name, value, stack, join)
        for name, value in bucket.items()
    }


def _of_documents(
    name: str,
    values: list[object],
    stack: Callable[[Any], Any],
    join: Callable[[list[object], str], Mapping[Any, object]],
) -> object:
    """Joins the values of documents: arrays as `Ragged`."""
    if values and isinstance(values[0], np.ndarray):
        return join([{name: value} for value in values], name)[name]
    return stack(values) if values else []


def _block(values: Sequence[object]) -> npt.NDArray[Any] | None:
    """Returns the array whose rows these values are, all of them and in order; None: they are something else."""
    block = getattr(values[0], "base", None)
    if not isinstance(block, np.ndarray) or len(block) != len(values):
        return None
    for value, row in zip(values, block, strict=True):
        if (
            not isinstance(value, np.ndarray)
            or value.base is not block
            or value.__array_interface__ != row.__array_interface__
        ):
            return None
    return block


def _joined_bounds(rows: Sequence[Row], length: int) -> npt.NDArray[np.int32]:
    starts = [row[BOUNDS][:-1] + number * length for number, row in enumerate(rows)]
    return np.concatenate([*starts, [len(rows) * length]]).astype(np.int32)
