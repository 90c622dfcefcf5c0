"""Tests of rows of documents: they have the arrays that attention needs.

Compared with 20 lines of numpy that make them one token at a time, and with what other packers made.
"""

from __future__ import annotations

import json
from itertools import groupby

import numpy as np
import pytest

from streamer.batches.rows.assemble import RowAssembler
from streamer.batches.rows.collate import collate_rows
from streamer.batches.rows.options import NO_PACKING, Packing, read_packing
from streamer.batches.rows.pieces import Pieces
from streamer.errors import ConfigError, DecodeError, WorkerError
from tests.formats.cases import DATA
from tests.formats.make.row_fields import LENGTH, SIZES


def pieces(rows: list[list[tuple[int, int, int]]], tokens: list[int]) -> Pieces:
    """Returns rows of (document, begin, size) as pieces."""
    flat = [piece for row in rows for piece in row]
    document, begin, size = (np.array([piece[column] for piece in flat], np.int64) for column in range(3))
    first = np.cumsum([0, *map(len, rows)])
    return Pieces(document, begin, size, np.array(tokens, np.int64)[document], first)


def reference(rows, documents, packing) -> dict[str, np.ndarray]:
    """Returns the batch, made token by token."""
    found = {name: [] for name in ("tokens", "position_ids", "document_ids", "labels")}
    bounds = [0]
    for number, row in enumerate(rows):
        at, columns = 0, {name: [] for name in found}
        for count, (document, begin, size) in enumerate(row, 1):
            tokens, end = documents[document], begin + size
            places = -(-size // packing.multiple_of) * packing.multiple_of
            for token in range(begin, begin + places):
                real = token < end
                columns["tokens"].append(tokens[token] if real else 0)
                columns["position_ids"].append(token - begin)
                columns["document_ids"].append(count if real else 0)
                if packing.labels == "same":
                    columns["labels"].append(tokens[token] if real and token > begin else -100)
                else:
                    columns["labels"].append(tokens[token + 1] if real and token + 1 < len(tokens) else -100)
            at += places
            bounds.append(number * packing.length + at)
        rest = packing.length - at
        for name, pad in (("tokens", 0), ("document_ids", 0), ("labels", -100)):
            columns[name] += [pad] * rest
        columns["position_ids"] += list(range(rest))
        bounds += [(number + 1) * packing.length] if rest else []
        for name, values in columns.items():
            found[name].append(values)
    return {**{name: np.array(values) for name, values in found.items()}, "cu_seqlens": np.array(bounds)}


def random_batch(seed: int, multiple: int):
    """Returns rows with documents, pieces of a long document, one row without padding and one of padding alone."""
    random = np.random.default_rng(seed)
    documents = [random.integers(0, 1 << 16, random.integers(1, LENGTH + 1), dtype=np.uint16) for _ in range(9)]
    documents.append(random.integers(0, 1 << 16, LENGTH + 7, dtype=np.uint16))
    rows, row, left = [], [], LENGTH
    for number, document in enumerate(documents[:9]):
        size = -(-len(document) // multiple) * multiple
        if size > left:
            rows.append(row)
            row, left = [], LENGTH
        row.append((number, 0, len(document)))
        left -= size
    return documents, [*rows, row, [(9, 0, LENGTH)], [(9, LENGTH, 7)]]


@pytest.mark.parametrize(("labels", "multiple"), [("shifted", 1), ("same", 1), ("shifted", 8), ("same", 8)])
def test_equals_the_reference(labels, multiple):
    """The fields of 250 batches, labels and bounds of attention included, are those of a loop over the tokens."""
    packing = Packing(LENGTH, labels=labels, multiple_of=multiple)
    assembler = RowAssembler(packing)
    for seed in range(250):
        documents, rows = random_batch(seed, multiple)
        plan = pieces(rows, [len(document) for document in documents])
        made = {
            place: assembler.document({"__key__": str(number), "tokens": documents[number]}, len(documents[number]))
            for place, number in enumerate(plan.document.tolist())
        }
        batch = collate_rows(assembler.rows(made, plan))
        expected = reference(rows, documents, packing)
        for name, values in expected.items():
            np.testing.assert_array_equal(np.asarray(batch[name]).astype(np.int64), values, err_msg=name)
        assert batch["max_seqlen"] == np.diff(expected["cu_seqlens"]).max()
        assert batch["__key__"] == [str(number) for number in plan.document.tolist()]
    dtypes = {name: np.asarray(batch[name]).dtype.name for name in expected}
    assert dtypes == {
        "tokens": "uint16",
        "position_ids": "int32",
        "document_ids": "int32",
        "labels": "int64",
        "cu_seqlens": "int32",
    }


def row_of(tokens: list[int]) -> list[tuple[int, int, int]]:
    """Returns the pieces of documents in a row of tests/formats/make/row_fields.py.

    An end belongs to the document before.
    """
    ends = np.maximum.accumulate(tokens) // 100 - 1
    runs = [list(run) for _, run in groupby(zip(ends.tolist(), tokens, strict=True), lambda pair: pair[0])]
    return [(run[0][0], run[0][1] % 100 - 1, len(run)) for run in runs]


@pytest.mark.parametrize("peer", ["grain", "torchtitan", "megatron"])
def test_equals_what_other_packers_make(peer):
    """Rows of the same documents are those that grain, torchtitan and Megatron-LM make.

    Positions, documents and bounds are compared, and labels but for the end of a document.
    """
    ends = [0] if peer == "megatron" else []
    documents = [[*range(100 * k + 1, 100 * k + 1 + size), *ends] for k, size in enumerate(SIZES, 1)]
    assembler = RowAssembler(Packing(LENGTH, labels="shifted"))
    rows = json.loads((DATA / "rows" / f"{peer}.json").read_text())
    assert len(rows) >= 9
    for theirs in [{name: np.array(values) for name, values in row.items()} for row in rows]:
        used = theirs["tokens"] if ends else theirs["tokens"][theirs["tokens"] > 0]
        plan = pieces([row_of(used.tolist())], [len(document) for document in documents])
        made = {
            place: assembler.document({"tokens": np.array(documents[number])}, len(documents[number]))
            for place, number in enumerate(plan.document.tolist())
        }
        row = assembler.rows(made, plan)[0]
        filled = len(used) if peer == "grain" else LENGTH
        np.testing.assert_array_equal(row["tokens"], theirs["tokens"])
        np.testing.assert_array_equal(row["position_ids"][:filled], theirs["position_ids"][:filled])
        if "document_ids" in theirs:
            np.testing.assert_array_equal(row["document_ids"], theirs["document_ids"])
        else:
            known = row["labels"] != -100
            np.testing.assert_array_equal(row["labels"][known], theirs["labels"][known])
            assert set(theirs["labels"][~known].tolist()) <= {0, -100}
        starts = np.flatnonzero(theirs["position_ids"][:filled] == 0)
        np.testing.assert_array_equal(row["cu_seqlens"], [*starts, *sorted({filled, LENGTH})])


def one(packing: Packing, *samples: dict, tokens: int = 3, missing: tuple[int, ...] = ()) -> dict:
    """Makes a batch of one row of samples of `tokens` tokens each."""
    assembler = RowAssembler(packing)
    plan = pieces([[(number, 0, tokens) for number in range(len(samples))]], [tokens] * len(samples))
    made = {number: assembler.document(sample, tokens) for number, sample in enumerate(samples)}
    return collate_rows(assembler.rows({key: one for key, one in made.items() if key not in missing}, plan))


@pytest.mark.parametrize(
    ("choose", "copied"),
    [
        pytest.param(lambda one, other: one, False, id="one batch"),
        pytest.param(lambda one, other: one[::-1], True, id="another order"),
        pytest.param(lambda one, other: [one[0], other[1]], True, id="two batches"),
        pytest.param(lambda one, other: one[:1], True, id="a part"),
        pytest.param(lambda one, other: one * 2, True, id="twice"),
    ],
)
def test_rows_of_one_batch_are_not_copied(choose, copied):
    """Rows that were made in one block are collated without a copy.

    Rows of several batches, or in another order, are stacked.
    """
    plan = pieces([[(0, 0, 3)], [(1, 0, 3)]], [3, 3])
    assembler = RowAssembler(Packing(16, labels="same"))
    one, other = (
        assembler.rows({at: assembler.document({"tokens": np.arange(3) + at + first}, 3) for at in (0, 1)}, plan)
        for first in (0, 5)
    )
    rows = choose(one, other)
    batch = collate_rows(rows)
    for name in ("tokens", "position_ids", "document_ids", "labels"):
        assert batch[name].tolist() == [row[name].tolist() for row in rows]
        assert np.shares_memory(batch[name].numpy(), rows[0][name]) != copied


def test_fields_are_packed_alike():
    """Lists, tensors and arrays with a value for each token are packed like tokens.

    Other arrays are joined, texts and numbers are one per document.
    """
    import torch

    def sample(number: int) -> dict:
        return {
            "input_ids": [number] * 3,
            "mask": torch.tensor([True, False, True]),
            "labels": np.array([-100, number, number]),
            "pictures": np.full((number, 2, 2), number, np.float32),
            "text": f"document {number}",
            "source": number,
        }

    batch = one(Packing(16), sample(1), sample(2))
    assert batch["input_ids"].tolist() == [[1, 1, 1, 2, 2, 2] + [0] * 10]
    assert batch["mask"].tolist() == [[True, False, True, True, False, True] + [False] * 10]
    assert batch["labels"].tolist() == [[-100, 1, 1, -100, 2, 2] + [-100] * 10]
    assert batch["pictures"].values.shape == (3, 2, 2)
    assert batch["pictures"].offsets.tolist() == [0, 1, 3]
    assert batch["text"] == ["document 1", "document 2"]
    assert batch["source"].tolist() == [1, 2]


def test_named_fields_are_padded_as_said():
    """With `fields=` other arrays of the same length are not tokens, and `pad=` says what fills the row."""
    sample = {"tokens": np.arange(3), "boxes": np.ones(3, np.float32)}
    batch = one(Packing(16, fields=["tokens"], pad={"tokens": 7}), sample)
    assert batch["tokens"].tolist() == [[0, 1, 2] + [7] * 13]
    assert batch["boxes"].offsets.tolist() == [0, 3]


def test_a_document_that_is_missing_leaves_its_place_empty():
    """A row without one of its documents is as long as ever, and the documents after it move up."""
    batch = one(Packing(16), *({"tokens": np.full(3, number)} for number in (1, 2, 3)), missing=(1,))
    assert batch["tokens"].tolist() == [[1, 1, 1, 3, 3, 3] + [0] * 10]
    assert batch["document_ids"].tolist() == [[1, 1, 1, 2, 2, 2] + [0] * 10]
    assert batch["cu_seqlens"].tolist() == [0, 3, 6, 16]


def test_a_row_whose_documents_all_failed_is_padding():
    """A row whose documents all failed is padding with the fields of earlier documents.

    In the first batch, where none are known, it is an error.
    """
    assembler, plan = RowAssembler(Packing(16)), pieces([[(0, 0, 3)]], [3])
    with pytest.raises(WorkerError, match="all documents of the first batch failed"):
        assembler.rows({}, plan)
    assembler.rows({0: assembler.document({"tokens": np.arange(3), "name": "a"}, 3)}, plan)
    batch = collate_rows(assembler.rows({}, plan))
    assert batch["tokens"].tolist() == [[0] * 16]
    assert batch["document_ids"].tolist() == [[0] * 16]
    assert batch["cu_seqlens"].tolist() == [0, 16]
    assert batch["name"] == []


@pytest.mark.parametrize(
    ("packing", "sample", "message"),
    [
        (
            Packing(16),
            {"tokens": np.arange(4)},
            "3 tokens are planned for the document .as the format has them., but 't",
        ),
        (
            Packing(16, lengths="c.npy"),
            {"tokens": np.arange(4)},
            r"planned for the document .by .*c\.npy., but 'tokens' has 4",
        ),
        (Packing(16), {"text": "abc"}, "but no field has values"),
        (Packing(16), [1, 2, 3], "the transform has returned list: return a dict"),
        (Packing(16, fields=["tokens"]), {"text": "abc"}, "field 'tokens' is not in the sample, which has text"),
        (Packing(16, fields=["tokens", "text"]), {"tokens": np.arange(3), "text": "abc"}, "3 tokens are planned"),
        (Packing(16), {"tokens": np.arange(3), "position_ids": np.arange(3)}, "packing makes position_ids itself"),
        (Packing(16), {"tokens": np.arange(3), "position_ids": np.arange(2)}, "packing makes position_ids itself"),
        (Packing(16), {"tokens": np.arange(3), "cu_seqlens": [0, 3]}, "packing makes cu_seqlens itself"),
        (Packing(16), {"tokens": np.arange(3), "max_seqlen": 3}, "packing makes max_seqlen itself"),
        (Packing(16, labels="same"), {"tokens": np.arange(3), "labels": np.arange(3)}, "packing makes labels itself"),
        (Packing(16, labels="same"), {"tokens": np.arange(3), "labels": "a"}, "packing makes labels itself"),
    ],
)
def test_documents_that_cannot_be_packed(packing, sample, message):
    """A document that cannot be packed is a `DecodeError` of this document, which `on_error="skip"` leaves out."""
    with pytest.raises(DecodeError, match=message):
        RowAssembler(packing).document(sample, 3)


def test_documents_of_one_batch_have_the_same_fields():
    """Documents of one batch with different fields are an error that names the fields of both."""
    with pytest.raises(DecodeError, match="one has tokens for each token, another tokens, more for each token"):
        one(Packing(16), {"tokens": np.arange(3)}, {"tokens": np.arange(3), "more": np.arange(3)})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 8}, "length=8 must be 16"),
        ({"length": "8k"}, "length='8k' is not a whole number"),
        ({"length": 64, "labels": "next"}, "labels='next' must be one of None, 'shifted', 'same'"),
        ({"length": 64, "fields": "tokens"}, "fields='tokens': give a sequence of names"),
        ({"length": 64, "fields": ["cu_seqlens"]}, "fields= names cu_seqlens, which rows have"),
        ({"length": 64, "pad": {"tokens": "x"}}, "fields are padded with numbers"),
        ({"policy": "concat"}, "is not a streamer.Packing or Buckets, nor the arguments of Packing: length, policy"),
        ({"length": 64, "rows": 3}, "is not a streamer.Packing"),
        ({"max_tokens": 64, "length": 3}, "nor the arguments of Buckets: max_tokens, "),
    ],
)
def test_arguments_outside_the_rules_are_refused(arguments, message):
    """Arguments of `Packing` or `Buckets`, given as a mapping, that are outside the rules are refused with the rule."""
    with pytest.raises(ConfigError, match=message):
        read_packing(arguments)


def test_a_mapping_is_a_packing():
    """A mapping, as TOML has it, is a `Packing`, and None is no packing."""
    assert read_packing({"length": 64, "fields": ["tokens"]}) == Packing(64, fields=("tokens",))
    assert read_packing(None) == NO_PACKING
