"""Collates rows to a batch: arrays are stacked, bounds joined, and the values of documents put one after the other.

`collate_rows` is public, as the `collate_fn` of torch's own DataLoader. `batches/samples/row_units.py` uses both
functions for the batches of `StreamingDataLoader`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from streamer.batches.batch.buffers import ArrayBuffer
from streamer.batches.batch.collate import collate
from streamer.batches.batch.ragged import collate_ragged, join_ragged
from streamer.batches.rows.options import BOUNDS, DOCUMENTS, LENGTHS, LONGEST

Row = Mapping[str, Any]


def collate_rows(rows: Sequence[Row]) -> dict[str, object]:
    """Makes a batch of tensors of the rows of a dataset with `packing=`, as `StreamingDataLoader` does.

    It is meant as the `collate_fn` of torch's own DataLoader over such a dataset.

    Args:
        rows: Values of the rows, at least one. The bucket of a dataset with `Buckets` must be the only one.

    Returns:
        The fields of the rows, each [rows, length]. "cu_seqlens", int32 [documents + 1], has the bounds of the
        documents where the tokens of all rows are put one after the other; the padding of a row counts as a document.
        "max_seqlen" is the length of the longest of these documents, an int. The other fields have one value for each
        document, arrays as `Ragged`. A bucket keeps its fields, see `Buckets`.

    Raises:
        Exception: the rows have different fields, or an error of `default_collate` or `join_ragged`.
    """
    import torch
    from torch.utils.data import default_collate

    def stack(values: Sequence[object]) -> object:
        block = _find_block(values)
        if block is not None:
            return torch.from_numpy(block)
        first = values[0]
        if type(first) is dict:
            return {name: stack([row[name] for row in cast("Sequence[Row]", values)]) for name in first}
        return default_collate(list(values))

    return _collate(rows, stack, lambda values, field: join_ragged(values, [field]), torch.from_numpy)


def collate_row_buffers(rows: Sequence[Row]) -> dict[str, object]:
    """Makes the batch of `collate_rows` with buffers in place of tensors, for the workers of `StreamingDataLoader`.

    Raises:
        Exception: the rows have different fields, or an error of `collate` or `collate_ragged`.
    """
    return _collate(rows, collate, lambda values, field: collate_ragged(values, [field]), ArrayBuffer)


def _collate(
    rows: Sequence[Row],
    stack: Callable[[Any], Any],
    join: Callable[[list[object], str], Mapping[Any, object]],
    as_tensor: Callable[[npt.NDArray[Any]], object],
) -> dict[str, object]:
    """Makes a batch, of tensors or of buffers, as the three functions make them.

    Args:
        rows: Rows of the batch.
        stack: function that collates samples by torch's rules.
        join: function that gets dicts with one field and the name of the field, and returns a dict with that field as a
            `Ragged`.
        as_tensor: function that makes a tensor of an array.
    """
    first = rows[0]
    if LENGTHS in first and BOUNDS not in first:
        # The fields of a bucket are those of a batch already: it is the only one.
        return {
            name: as_tensor(value) if isinstance(value, np.ndarray) else _join_values(name, value, stack, join)
            for name, value in first.items()
        }
    arrays = [name for name, value in first.items() if isinstance(value, np.ndarray) and name != BOUNDS]
    batch: dict[str, object] = dict(stack([{name: row[name] for name in arrays} for row in rows]))
    length = len(first[DOCUMENTS])
    starts = [row[BOUNDS][:-1] + number * length for number, row in enumerate(rows)]
    batch[BOUNDS] = as_tensor(np.concatenate([*starts, [len(rows) * length]]).astype(np.int32))
    batch[LONGEST] = max(row[LONGEST] for row in rows)
    for name in first.keys() - batch.keys():
        batch[name] = _join_values(name, [value for row in rows for value in row[name]], stack, join)
    return {name: batch[name] for name in first}


def _join_values(
    name: str,
    values: list[object],
    stack: Callable[[Any], Any],
    join: Callable[[list[object], str], Mapping[Any, object]],
) -> object:
    """Joins the values of documents: arrays as `Ragged`, numbers and texts by torch's rules.

    All else becomes a list with the value of each document as it is, such as None or lists. Torch would transpose lists
    of one length, and refuse others. Mappings with the same keys become a mapping of joined values.
    """
    first = values[0] if values else None
    if isinstance(first, np.ndarray):
        same = {(value.dtype, value.shape[1:]) if isinstance(value, np.ndarray) else None for value in values}
        joinable = len(same) == 1 and first.ndim > 0 and first.dtype.kind in "biufc"
        return join([{name: value} for value in values], name)[name] if joinable else _stack_alike(values, stack)
    if isinstance(first, Mapping):
        keys = first.keys()
        if all(isinstance(value, Mapping) and value.keys() == keys for value in values):
            rows = cast("list[Row]", values)
            return {key: _join_values(f"{name}.{key}", [row[key] for row in rows], stack, join) for key in keys}
        return values
    return _stack_alike(values, stack)


def _stack_alike(values: list[object], stack: Callable[[Any], Any]) -> object:
    """Collates numbers, texts, bytes or arrays of one shape by torch's rules; returns the list of all else."""
    if not values:
        return []
    if all(type(value) is int for value in values):
        integers = cast("list[int]", values)
        if not -(1 << 63) <= min(integers) <= max(integers) < 1 << 63:
            # torch takes no list of integers beyond int64, such as hashes of documents.
            is_unsigned = min(integers) >= 0 and max(integers) < 1 << 64
            return stack([np.array(value, np.uint64) for value in integers]) if is_unsigned else values
    for kinds in ((bool, int, float, np.number, np.bool_), (str,), (bytes,)):
        if all(isinstance(value, kinds) for value in values):
            return stack(values)
    shapes = {(type(value), getattr(value, "shape", None), str(getattr(value, "dtype", ""))) for value in values}
    # Arrays and tensors have a shape.
    return stack(values) if len(shapes) == 1 and next(iter(shapes))[1] is not None else values


def _find_block(values: Sequence[object]) -> npt.NDArray[Any] | None:
    """Returns the array of which these values are all rows, in order, so that nothing is copied; else None."""
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
