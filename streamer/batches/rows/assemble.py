"""Makes rows of documents for `Packing`: their tokens one after the other, bounds, and padding behind the last.

Workers use it (`batches/samples/row_units.py`), an iterator over single samples (`loader/rank/sample_iterator.py`), and
rows of samples of similar lengths (`bucket.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.batches.rows.options import (
    BOUNDS,
    DOCUMENTS,
    IGNORED,
    LABELS,
    LONGEST,
    POSITIONS,
    Estimate,
    Packing,
    RowOption,
)
from streamer.batches.rows.pieces import Pieces
from streamer.decode.arrays import Row
from streamer.errors import DecodeError, WorkerError

Array = npt.NDArray[np.generic]


class Document(msgspec.Struct, frozen=True, eq=False):
    """A document whose fields are made, by decoding and by the transform.

    Attributes:
        tokens: the fields with one value for each token, by name.
        others: the other fields.
    """

    tokens: Mapping[str, Array]
    others: Mapping[str, object]


class RowAssembler:
    """Makes rows of documents. Used by one thread.

    Args:
        packing: the user's options.
    """

    def __init__(self, packing: Packing) -> None:
        self._packing = packing
        self._estimated = isinstance(packing.lengths, Estimate)
        self._counting = np.arange(packing.length, dtype=np.int32)
        # All fields and those with one value per token, of the last document: most have the same.
        self._known: tuple[list[str], list[str]] = [], []
        # The fields of the last batch: a row whose documents all failed has the same.
        self._dtypes: dict[str, np.dtype[np.generic]] = {}
        self._others: tuple[str, ...] = ()
        # The field of which labels are made.
        self._labelled = ""

    def __repr__(self) -> str:
        return f"RowAssembler({self._packing})"

    def document(self, sample: object, tokens: int) -> Document:
        """Returns a sample as a document: separates the fields with one value for each token from the others.

        Args:
            sample: what the transform has returned.
            tokens: Number of tokens that the plan has for it. Where tokens are estimated, the first field with values
                decides instead, and a sample without any values becomes an empty document.

        Raises:
            DecodeError: the sample is not a dict, lacks a named field, has another number of tokens, or a field that
                rows have of their own, or `pad` or `labels` do not fit its fields.
        """
        fields = check_fields_of(sample)
        if self._estimated and (tokens := self._count_tokens(fields)) == 0:
            return Document({}, {})
        if (quick := self._match_last(fields, tokens)) is not None:
            return quick
        own = {POSITIONS, DOCUMENTS, BOUNDS, LONGEST, *([LABELS] if self._packing.labels is not None else [])}
        refuse_fields(fields, own)
        named = self._packing.fields
        names = list(fields) if named is None else list(named)
        if missing := [name for name in names if name not in fields]:
            raise DecodeError(f"packing: field {missing[0]!r} is not in the sample, which has {', '.join(fields)}")
        arrays = {name: array for name in names if (array := _read_array(fields[name])) is not None}
        found = {name: array for name, array in arrays.items() if len(array) == tokens}
        if not found or (named is not None and len(found) < len(names)):
            raise self._other_length(arrays, tokens)
        check_pad(self._packing, found)
        if self._packing.labels is not None:
            find_token_field(found, named)
        self._known = list(fields), list(found)
        return Document(found, {name: value for name, value in fields.items() if name not in found})

    def _count_tokens(self, fields: Mapping[str, object]) -> int:
        """Returns the number of tokens of a document that was estimated: the length of the first field with values.

        0 means that its fields are empty, and -1 that no field can have tokens.
        """
        values = [fields.get(name) for name in self._packing.fields or self._known[1] or fields]
        lengths = [len(array) for value in values if (array := _read_array(value)) is not None]
        if any(lengths):
            return next(filter(None, lengths))
        return 0 if lengths or [] in values else -1

    def settle(self, made: dict[int, Document], pieces: Pieces) -> tuple[dict[int, Document], Pieces]:
        """Returns the documents that have tokens in rows, and the pieces with the true number of their tokens.

        Where tokens are not estimated, both are returned as they are.

        Args:
            made: the documents by their places among the pieces.
            pieces: which documents are planned for each row.
        """
        if not self._estimated:
            return made, pieces
        tokens = {at: len(next(iter(document.tokens.values()), ())) for at, document in made.items()}
        found = pieces.settle(tokens, self._packing)
        return {at: document for at, document in made.items() if found.size[at]}, found

    def _match_last(self, sample: dict[str, object], tokens: int) -> Document | None:
        """Returns the document if the sample clearly has the fields of the last one, else None.

        None means that `document` must look at each field.
        """
        names, of_tokens = self._known
        if list(sample) != names:
            return None
        found: dict[str, Array] = {}
        others: dict[str, object] = {}
        for name, value in sample.items():
            array = value if type(value) is np.ndarray else None
            if name in of_tokens:
                if array is None or array.shape != (tokens,):
                    return None
                found[name] = array
            elif array is not None and self._packing.fields is None:
                # It may have as many values, unless the user names the fields.
                return None
            else:
                others[name] = value
        return Document(found, others)

    def rows(self, made: Mapping[int, Document], pieces: Pieces, out: Sequence[Row] = ()) -> list[dict[str, object]]:
        """Makes the rows of a batch, each as its fields by name.

        Args:
            made: the documents by their places among the pieces. A document that is missing leaves its tokens' places
                to the next ones: the end of the row gets more padding.
            pieces: which documents are in each row, as `settle` returned them.
            out: memory for the arrays of each row, by field, or () to take new memory.

        Raises:
            WorkerError: no document could be made, of this batch or before.
            DecodeError: the documents of a batch have different fields.
        """
        # The fields of the documents, and the dtype of each, are those of the last batch that had any.
        documents = list(made.values())
        if documents:
            first = documents[0]
            if (other := find_other_fields(documents)) is not None:
                raise DecodeError(
                    f"packing: documents of one batch have different fields: one has {_describe(first)}, another "
                    f"{_describe(other)}; name those with one value for each token: Packing(fields=...)"
                )
            names = tuple(first.tokens)
            self._dtypes = {name: np.result_type(*{one.tokens[name].dtype for one in documents}) for name in names}
            self._others = tuple(first.others)
            if self._packing.labels is not None and names:
                self._labelled = find_token_field(first.tokens, self._packing.fields)
        if not self._dtypes:
            raise WorkerError("all documents of the first batch failed: there is nothing to make a row of")
        spans = list(pairwise(pieces.first.tolist()))
        begin = pieces.begin.tolist()
        size = pieces.size.tolist()
        memory = out
        if not memory:
            dtypes: dict[str, npt.DTypeLike] = {**self._dtypes, POSITIONS: np.int32, DOCUMENTS: np.int32}
            if self._packing.labels is not None:
                dtypes[LABELS] = np.int64
            # A block for each field, which `collate_rows` takes without a copy.
            blocks = {name: np.empty((len(spans), self._packing.length), dtype) for name, dtype in dtypes.items()}
            memory = [{name: block[number] for name, block in blocks.items()} for number in range(len(spans))]
        return [
            self._row([(made[at], begin[at], size[at]) for at in range(*span) if at in made], row)
            for span, row in zip(spans, memory, strict=True)
        ]

    def places(self, rows: Sequence[Mapping[str, object]]) -> int:
        """Returns the number of tokens that these rows have room for."""
        return len(rows) * self._packing.length

    def _row(self, documents: Sequence[tuple[Document, int, int]], out: Row) -> dict[str, object]:
        """Makes a row of documents. Each comes with its first token in the row, and its number of tokens there."""
        length = self._packing.length
        dtypes = self._dtypes
        multiple = self._packing.multiple_of
        arrays = {name: _memory(out, name, dtype, length) for name, dtype in dtypes.items()}
        positions = _memory(out, POSITIONS, np.dtype(np.int32), length)
        numbers = _memory(out, DOCUMENTS, np.dtype(np.int32), length)
        labels = None if self._packing.labels is None else _memory(out, LABELS, np.dtype(np.int64), length)
        if labels is not None:
            labels.fill(IGNORED)
        bounds = [0]
        at = 0
        for document, begin, size in documents:
            stop = at + size
            end = at + -(-size // multiple) * multiple
            for name, array in arrays.items():
                array[at:stop] = document.tokens[name][begin : begin + size]
            positions[at:end] = self._counting[: end - at]
            numbers[at:stop] = len(bounds)
            if labels is not None:
                self._label(labels[at:stop], document.tokens[self._labelled], begin)
            if stop < end:
                self._pad(arrays, numbers, stop, end)
            bounds.append(end)
            at = end
        if at < length:
            self._pad(arrays, numbers, at, length)
            positions[at:] = self._counting[: length - at]
            bounds.append(length)
        row: dict[str, object] = {**arrays, POSITIONS: positions, DOCUMENTS: numbers}
        if labels is not None:
            row[LABELS] = labels
        longest = max(end - begin for begin, end in pairwise(bounds))
        others = {name: [document.others[name] for document, _, _ in documents] for name in self._others}
        return {**row, BOUNDS: np.array(bounds, np.int32), LONGEST: longest, **others}

    def _pad(self, arrays: Mapping[str, Array], numbers: Array, begin: int, end: int) -> None:
        """Pads the tokens begin..end-1 of a row. They get the document number 0."""
        for name, array in arrays.items():
            array[begin:end] = self._packing.find_pad(name)
        numbers[begin:end] = 0

    def _label(self, labels: Array, tokens: Array, begin: int) -> None:
        """Sets the labels of a piece of a document. Those that stay as they are have been filled with -100.

        Args:
            labels: labels of the piece.
            tokens: tokens of the whole document.
            begin: place in the document at which the piece begins.
        """
        size = len(labels)
        if self._packing.labels == "same":
            labels[1:] = tokens[begin + 1 : begin + size]
        else:
            following = tokens[begin + 1 : begin + size + 1]
            labels[: len(following)] = following

    def _other_length(self, arrays: Mapping[str, Array], tokens: int) -> DecodeError:
        source = "as the format has them" if self._packing.lengths is None else f"by {self._packing.lengths}"
        lengths = ", ".join(f"{name!r} has {len(array)}" for name, array in arrays.items()) or "no field has values"
        if self._estimated:
            return DecodeError(
                f"packing: the fields of a document must have one value for each token, and here {lengths}; name those "
                "that have (Packing(fields=...))"
            )
        return DecodeError(
            f"packing: {tokens} tokens are planned for the document ({source}), but {lengths}: the transform makes "
            "others than were counted; count what it returns (streamer.measure_lengths), or name the fields "
            "(Packing(fields=...))",
            planned=tokens,
        )


def check_pad(packing: RowOption, found: Mapping[str, object]) -> None:
    """Makes sure that `pad` names only fields that are padded: those in `found`, and "labels".

    Raises:
        DecodeError: it names another one.
    """
    unused = [name for name in packing.pad or () if name not in found and name != LABELS]
    if unused:
        raise DecodeError(
            f"packing: pad= names {unused[0]!r}, which is not a field with one value for each token; these are "
            f"{', '.join(found)}"
        )


def check_fields_of(sample: object) -> dict[str, object]:
    """Returns a sample as a dict of fields.

    Raises:
        DecodeError: the transform has returned something else than a dict.
    """
    if not isinstance(sample, dict):
        raise DecodeError(
            f"packing needs dicts of fields, and the transform has returned {type(sample).__name__}: return a dict"
        )
    return sample


def refuse_fields(fields: Mapping[str, object], own: Set[str]) -> None:
    """Checks that a sample has none of the fields that rows have of their own, of which one would replace the other.

    Raises:
        DecodeError: it has one.
    """
    if taken := own & fields.keys():
        raise DecodeError(
            f"packing makes {', '.join(sorted(taken))} itself, and the sample has a field of that name: leave it out "
            "in the transform"
        )


def find_other_fields(documents: Sequence[Document]) -> Document | None:
    """Returns a document with other fields than the first one, or None if all documents have the same fields."""
    tokens = documents[0].tokens.keys()
    others = documents[0].others.keys()
    return next((one for one in documents if one.tokens.keys() != tokens or one.others.keys() != others), None)


def _read_array(value: object) -> Array | None:
    """Returns an array of one dimension, a list of numbers or a tensor as an array, or None if it is something else."""
    if isinstance(value, np.ndarray):
        return value if value.ndim == 1 and value.dtype.kind in "biuf" else None
    if isinstance(value, list) and value and isinstance(value[0], int | float):
        array = np.asarray(value)
        return array if array.ndim == 1 and array.dtype.kind in "biuf" else None
    # The type is not asked for: a worker that makes no tensors does not import torch.
    if type(value).__module__ == "torch" and getattr(value, "ndim", 0) == 1:
        return value.numpy()  # type: ignore[no-any-return, attr-defined]
    return None


def _memory(out: Row, name: str, dtype: np.dtype[np.generic], length: int) -> Array:
    """Returns the array of `out` with this name if it fits, and else a new one that is not filled."""
    given = out.get(name)
    if given is not None and given.dtype == dtype and given.shape == (length,):
        return given
    return np.empty(length, dtype)


def _describe(document: Document) -> str:
    others = f", and besides {', '.join(map(str, document.others))}" if document.others else ""
    return f"{', '.join(document.tokens)} for each token{others}"


# Names that tokenizers and packers give to tokens.
_TOKENS = frozenset(["input_ids", "tokens", "token_ids", "ids", "input_tokens", "text_ids"])
# Names of other fields with one number for each token, which tokenizers and packers make.
_NO_TOKENS = frozenset(
    [
        *("attention_mask", "token_type_ids", "special_tokens_mask", "position_ids", "positions", "segment_ids"),
        *("labels", "label", "targets", "mask", "loss_mask", "loss_weights", "weights", "weight", "word_ids"),
        *("completion_mask", "assistant_masks", "assistant_mask", "prompt_mask", "document_ids", "advantages"),
    ]
)


def find_token_field(fields: Mapping[str, npt.NDArray[Any]], named: Iterable[str] | None = None) -> str:
    """Returns the name of the field that has the tokens.

    It is the only field with a name that tokenizers give to tokens. If there are none or several of those, it is the
    first one in `named`, or the only field of whole numbers that may have the tokens.

    Args:
        fields: The fields with one value for each token.
        named: Fields that the user has named in their order, or None if there are none.

    Raises:
        DecodeError: no field or several may have the tokens.
    """
    numbers = [name for name, array in fields.items() if array.dtype.kind in "iu"]
    known = [name for name in numbers if name in _TOKENS]
    if len(known) == 1:
        return known[0]
    others = [name for name in numbers if name not in _NO_TOKENS]
    if named is not None and (first := next(iter(named), None)) in others:
        return str(first)
    if len(others) == 1:
        return others[0]
    listed = ", ".join(f"{name} ({np.dtype(array.dtype)})" for name, array in fields.items())
    may = "none of them is known to have" if not others else f"{' and '.join(others)} may have"
    raise DecodeError(
        f"packing: labels are made of the tokens of a document, and of its fields with one value for each token "
        f"({listed}) {may} them: call the one that has them input_ids in the transform, or name it first in "
        "Packing(fields=...)"
    )
