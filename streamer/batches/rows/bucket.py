"""Makes buckets of made documents, for `Buckets`: a bucket is a batch of documents, padded to the longest of them.

Workers use it (`batches/samples/row_units.py`), and an iterator over single samples (`loader/rank/sample_iterator.py`).
`make_assembler` also chooses between buckets and rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from streamer.batches.rows.assemble import (
    Array,
    Document,
    RowAssembler,
    check_fields_of,
    check_pad,
    find_other_fields,
    refuse_fields,
)
from streamer.batches.rows.options import LENGTHS, Buckets, Packing
from streamer.batches.rows.pieces import Pieces
from streamer.decode.arrays import Row
from streamer.errors import DecodeError, WorkerError


class BucketAssembler:
    """Makes buckets of documents, with the methods of `RowAssembler`. Used by one thread.

    Args:
        packing: the user's options.
    """

    def __init__(self, packing: Buckets) -> None:
        self._packing = packing

    def __repr__(self) -> str:
        return f"BucketAssembler({self._packing})"

    def document(self, sample: object, tokens: int) -> Document:
        """Returns a sample as a document: separates the fields that are padded from the others.

        Args:
            sample: what the transform has returned.
            tokens: Number of tokens that the plan has for it. Without `Buckets.fields` the arrays of that length are
                padded.

        Raises:
            DecodeError: the sample is not a dict, has no field to pad or lacks a named one, has a field "lengths", its
                padded fields have several lengths, or `pad` names another field.
        """
        fields = check_fields_of(sample)
        refuse_fields(fields, {LENGTHS})
        named = self._packing.fields
        arrays = {name: array for name in named or fields if (array := _read_array(fields.get(name))) is not None}
        if named is None:
            arrays = {name: array for name, array in arrays.items() if len(array) == tokens}
        missing = [name for name in named or () if name not in arrays]
        if missing or not arrays or len({len(array) for array in arrays.values()}) > 1:
            raise DecodeError(
                f"packing: {tokens} steps are planned for the document, and it has "
                f"{', '.join(f'{name!r} of {_length(value)}' for name, value in fields.items())}: fields of one length "
                "are padded together; name them (Buckets(fields=...)), or count what the transform returns "
                "(streamer.measure_lengths)",
                planned=tokens,
            )
        check_pad(self._packing, arrays)
        return Document(arrays, {name: value for name, value in fields.items() if name not in arrays})

    def settle(self, made: dict[int, Document], pieces: Pieces) -> tuple[dict[int, Document], Pieces]:
        """Returns both as they are: lengths of buckets are never estimated. See `RowAssembler.settle`."""
        return made, pieces

    def rows(self, made: Mapping[int, Document], pieces: Pieces, out: Sequence[Row] = ()) -> list[dict[str, object]]:
        """Returns the buckets, each as the fields of a batch. Documents that are missing are left out.

        Padded fields are [documents, longest, ...], "lengths" is int32 [documents], and each other field is a list with
        the values of the documents.

        Args:
            made: the documents by their places among the pieces.
            pieces: which documents are in each bucket.
            out: not used, since the shape of a bucket is not known before.

        Raises:
            WorkerError: no document of a bucket could be made.
            DecodeError: the documents of a bucket have different fields, or arrays that differ in their inner axes.
        """
        spans = [range(*span) for span in pairwise(pieces.first.tolist())]
        return [self._bucket([made[at] for at in span if at in made]) for span in spans]

    def places(self, rows: Sequence[Mapping[str, object]]) -> int:
        """Returns the number of tokens in buckets with their padding: documents times the longest of them."""
        lengths = [np.asarray(row[LENGTHS]) for row in rows]
        return sum(len(of) * int(of.max()) for of in lengths)

    def _bucket(self, documents: Sequence[Document]) -> dict[str, object]:
        """Makes one bucket; see `rows`."""
        if not documents:
            raise WorkerError("all samples of a bucket failed")
        first = documents[0]
        if (other := find_other_fields(documents)) is not None:
            raise DecodeError(
                f"packing: documents of a bucket have different fields: one pads {', '.join(first.tokens)}, "
                f"another {', '.join(other.tokens)}; name those that are padded: Buckets(fields=...)"
            )
        lengths = np.array([len(next(iter(document.tokens.values()))) for document in documents], np.int32)
        padded: dict[str, Array] = {}
        for name in first.tokens:
            arrays = [document.tokens[name] for document in documents]
            inner = arrays[0].shape[1:]
            if any(array.shape[1:] != inner for array in arrays):
                raise DecodeError(f"packing: field {name!r} has rows of {inner} and others in a bucket")
            dtype = np.result_type(*{array.dtype for array in arrays})
            shape = (len(arrays), max(map(len, arrays)), *inner)
            padded[name] = np.full(shape, self._packing.find_pad(name), dtype)
            for row, array in zip(padded[name], arrays, strict=True):
                row[: len(array)] = array
        others = {name: [document.others[name] for document in documents] for name in first.others}
        return {**padded, LENGTHS: lengths, **others}


Assembler: TypeAlias = RowAssembler | BucketAssembler


def make_assembler(packing: Packing | Buckets) -> Assembler:
    """Returns the assembler of rows or of buckets, as `packing` asks for."""
    return BucketAssembler(packing) if isinstance(packing, Buckets) else RowAssembler(packing)


def _read_array(value: object) -> Array | None:
    """Returns an array, tensor or list of numbers as an array with at least one axis, or None for anything else."""
    if isinstance(value, np.ndarray):
        return value if value.ndim and value.dtype.kind in "biufc" else None
    if isinstance(value, list) and value and isinstance(value[0], int | float):
        return np.asarray(value)
    # The type is not asked for: a worker that makes no tensors does not import torch.
    if type(value).__module__ == "torch" and getattr(value, "ndim", 0) > 0:
        return value.numpy()  # type: ignore[no-any-return, attr-defined]
    return None


def _length(value: object) -> str:
    array = _read_array(value)
    return "no length" if array is None else str(len(array))
