"""Tests of which field of a document has its tokens, and of the values that are one for each document."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from streamer.batches.batch.ragged import Ragged
from streamer.batches.rows.assemble import find_token_field
from streamer.batches.rows.collate import collate_row_buffers, collate_rows
from streamer.batches.rows.options import BOUNDS, DOCUMENTS, LONGEST, POSITIONS
from streamer.errors import DecodeError

IDS, MASK = np.arange(3), np.ones(3, np.int64)
WEIGHTS = np.array([0.5, 0.1, 0.2])


@pytest.mark.parametrize("order", list(itertools.permutations(["input_ids", "attention_mask", "weights", "extra"])))
def test_the_place_of_a_field_does_not_count(order):
    """The field of the tokens is found by its name, in whatever order the fields are."""
    values = {"input_ids": IDS, "attention_mask": MASK, "weights": WEIGHTS, "extra": MASK}
    assert find_token_field({name: values[name] for name in order}) == "input_ids"
    assert find_token_field({name: values[name] for name in order}, order) == "input_ids"


@pytest.mark.parametrize(
    ("fields", "named", "expected"),
    [
        ({"x": IDS}, None, "x"),
        ({"weights": WEIGHTS, "x": IDS}, None, "x"),
        ({"loss_mask": MASK, "x": IDS}, None, "x"),
        ({"keep": MASK.astype(bool), "x": IDS}, None, "x"),
        ({"x": IDS, "y": IDS}, ["x", "y"], "x"),
        ({"y": IDS, "x": IDS}, ["x", "y"], "x"),
    ],
)
def test_what_cannot_be_tokens_is_left_out(fields, named, expected):
    """Masks, by name or dtype, and weights, by dtype, are not taken for tokens.

    Of several fields the first that is named counts.
    """
    assert find_token_field(fields, named) == expected


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"x": IDS, "y": IDS}, None),
        ({"attention_mask": MASK}, None),
        ({"weights": WEIGHTS}, None),
        ({"attention_mask": MASK, "x": IDS, "y": IDS}, ["attention_mask", "x", "y"]),
        ({"input_ids": IDS, "tokens": IDS}, None),
    ],
)
def test_labels_of_a_field_by_accident_are_refused(fields, named):
    """Fields of which none, or more than one, may be the tokens are refused with their names and what to write."""
    with pytest.raises(DecodeError, match=r"Packing\(fields=") as caught:
        find_token_field(fields, named)
    assert all(name in str(caught.value) for name in fields)


ROW = {POSITIONS: np.zeros(4, np.int32), DOCUMENTS: np.ones(4, np.int32), BOUNDS: np.array([0, 4]), LONGEST: 4}


@pytest.mark.parametrize(
    "values",
    [
        [[1, 2], [3, 4]],
        [[1, 2], [3]],
        [None, 3],
        [None, None],
        [[{"role": "user"}], [{"role": "user"}, {"role": "assistant"}]],
        [[{"role": "user"}], [{"role": "user"}]],
        [{"a": 1}, {"b": 2}],
        ["a", None],
        [np.ones(2), None],
        [(1, 2), (3, 4)],
        [2**64, 1],
        [-1, 2**63],
    ],
)
@pytest.mark.parametrize("collate", [collate_rows, collate_row_buffers])
def test_other_values_are_one_for_each_document(values, collate):
    """Values that are no arrays stay one for each document as they were.

    torch would turn lists of one length inside out, or refuse them.
    """
    found = collate([{**ROW, "more": values}])["more"]
    assert len(found) == 2
    for got, value in zip(found, values, strict=True):
        assert type(got) is type(value)
        np.testing.assert_equal(got, value)


def test_numbers_texts_and_arrays_stay_as_they_were():
    """Numbers of documents are a tensor, texts a list and arrays a `Ragged`, also inside of dicts."""
    row = {**ROW, "number": [1, 2], "text": ["a", "b"], "array": [np.ones(2), np.ones(3)], "dict": [{"n": 1}, {"n": 2}]}
    batch = collate_rows([row])
    assert batch["number"].tolist() == batch["dict"]["n"].tolist() == [1, 2]
    assert batch["text"] == ["a", "b"]
    assert type(batch["array"]) is Ragged


def test_integers_that_need_64_bits_are_unsigned():
    """Integers that need 64 bits, as hashes of documents, are unsigned in the batch."""
    row = {**ROW, "more": [2**63, 2**64 - 1, 0]}
    assert collate_rows([row])["more"].numpy().tolist() == [2**63, 2**64 - 1, 0]
