"""Tests of rows: arrays that stand in their slot before the batch is laid out."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.batches.batch.buffers import ALIGN, align_up
from streamer.batches.batch.collate import collate
from streamer.batches.batch.placement import NO_SLOT, PredictedLayout, Rows, RowShape
from streamer.batches.batch.slot_layout import BatchReader, WritableBatch

PICTURE = RowShape(np.dtype("u1"), (20, 30, 3))
SIGNAL = RowShape(np.dtype("<f4"), (700,))


@pytest.fixture
def slot() -> np.ndarray:
    return np.zeros(65536, np.uint8)


def samples_in(rows: Rows, count: int) -> list[dict[str, object]]:
    """Makes samples whose arrays are the rows, filled with the number of their index."""
    made = []
    for index in range(count):
        row = rows.row(index)
        for place in row.values():
            place[...] = index + 1
        made.append({"__key__": f"{index}", **row, "cls": index})
    return made


def test_rows_are_aligned_and_apart(slot):
    """The rows of every field begin at a multiple of 64 bytes, and writing to one row changes no other."""
    rows = Rows(slot, {"a": PICTURE, "b": SIGNAL}, 5)
    assert rows.end == 5 * 1800 + (-5 * 1800) % ALIGN + 5 * 2800
    for index in range(5):
        for place in rows.row(index).values():
            place[...] = index + 1
    assert [[int(place.min()), int(place.max())] for index in range(5) for place in rows.row(index).values()] == [
        [index + 1, index + 1] for index in range(5) for _ in range(2)
    ]


def test_what_does_not_fit_gets_no_rows(slot):
    """A field that does not fit into its slot gets no rows, and the fields before it keep theirs."""
    rows = Rows(slot[:10000], {"a": PICTURE, "b": SIGNAL}, 5)
    assert rows.shapes == {"a": PICTURE}
    assert set(rows.row(0)) == {"a"}


def test_arrays_in_place_are_not_written(slot):
    """Arrays that are their rows are not written again; the batch that is read back is the rows themselves."""
    rows = Rows(slot, {"a": PICTURE, "b": SIGNAL}, 5)
    packed = WritableBatch(collate(samples_in(rows, 5)), rows)
    assert packed.claimed == {"a", "b"}
    # Keys and classes, 5 ends and 5 letters, 5 numbers, and the description: no array.
    assert packed.nbytes - rows.end < 1024
    packed.write(slot)
    batch = BatchReader(slot).read(packed.description)
    assert batch["__key__"] == ["0", "1", "2", "3", "4"]
    assert batch["cls"].tolist() == [0, 1, 2, 3, 4]
    for name in ("a", "b"):
        assert batch[name].flatten(1).float().mean(1).tolist() == [1, 2, 3, 4, 5]
        assert batch[name].data_ptr() == rows.row(0)[name].ctypes.data


@pytest.mark.parametrize("odd", ["copy", "view", "swapped", "missing"])
def test_arrays_from_elsewhere_are_copied(slot, odd):
    """A field of which one array is not its row is written behind the rows as a whole, with the right values."""
    rows = Rows(slot, {"a": PICTURE}, 3)
    made = samples_in(rows, 3)
    first = made[0]["a"]
    if odd == "copy":
        made[0]["a"] = first.copy()
    elif odd == "view":
        made[0]["a"] = first[:]
    elif odd == "swapped":
        made[0]["a"], made[1]["a"] = made[1]["a"], first
    else:
        del made[0]["a"], made[1]["a"], made[2]["a"]
    expected = [sample["a"].copy() for sample in made if "a" in sample]
    packed = WritableBatch(collate(made), rows)
    assert packed.claimed == set()
    packed.write(slot)
    batch = BatchReader(slot).read(packed.description)
    assert [part.tolist() for part in batch.get("a", [])] == [part.tolist() for part in expected]
    assert batch["cls"].tolist() == [0, 1, 2]


def test_a_field_twice_is_two_tensors(slot):
    """An array under two names makes two tensors, and a change of one does not change the other."""
    rows = Rows(slot, {"a": PICTURE}, 3)
    packed = WritableBatch(collate([{**sample, "b": sample["a"]} for sample in samples_in(rows, 3)]), rows)
    packed.write(slot)
    batch = BatchReader(slot).read(packed.description)
    batch["a"].zero_()
    assert batch["b"].flatten(1).float().mean(1).tolist() == [1, 2, 3]


def test_compact_leaves_nothing_free(slot):
    """`compact` makes a layout for other memory, to which everything is written, arrays in rows included."""
    rows = Rows(slot, {"a": PICTURE}, 3)
    packed = WritableBatch(collate(samples_in(rows, 3)), rows)
    whole = packed.compact()
    elsewhere = np.zeros(whole.nbytes, np.uint8)
    whole.write(elsewhere)
    slot[:] = 0
    batch = BatchReader(elsewhere).read(whole.description)
    assert batch["a"].flatten(1).float().mean(1).tolist() == [1, 2, 3]


def test_the_next_batch_looks_like_the_last(slot):
    """Rows are foreseen for the arrays of the last batch, not for numbers and small arrays.

    A new shape takes the place of the old one.
    """
    predicted = PredictedLayout()
    assert predicted.rows(slot, 4).shapes == {}
    sample = {"a": np.zeros((20, 30, 3), np.uint8), "n": 5, "little": np.zeros(10)}
    predicted.learn(collate([sample, sample]), NO_SLOT, ())
    rows = predicted.rows(slot, 4)
    assert rows.shapes == {"a": PICTURE}
    other = {"a": np.zeros((40, 30, 3), np.uint8)}
    predicted.learn(collate([other, other]), rows, ())
    again = predicted.rows(slot, 4)
    assert again.shapes["a"].shape == (40, 30, 3)
    predicted.learn(collate([(other["a"], 1)] * 2), NO_SLOT, ())
    third = predicted.rows(slot, 4)
    assert set(third.shapes) == {0}


def test_rows_that_nobody_writes_to_are_given_up(slot):
    """Rows to which no batch writes are given up after a few batches; a batch that uses them begins the count anew."""
    predicted = PredictedLayout()
    sample = {"a": np.zeros((20, 30, 3), np.uint8)}
    structure = collate([sample, sample])
    predicted.learn(structure, NO_SLOT, ())
    for claimed in ((), (), (), ("a",), (), (), ()):
        rows = predicted.rows(slot, 2)
        predicted.learn(structure, rows, claimed)
    predicted.learn(structure, predicted.rows(slot, 2), ())
    assert predicted.rows(slot, 2).shapes == {}


def test_memory_behind_the_rows_is_reserved_if_it_is_there(slot):
    """Memory behind the rows is reserved aligned, if there is enough; too much is refused and changes nothing."""
    rows = Rows(slot, {"a": PICTURE}, 3)
    end = rows.end
    assert rows.reserve(len(slot) - end + 1) is None
    assert rows.end == end
    memory = rows.reserve(1001)
    assert memory is not None
    assert (memory.size, rows.end) == (1001, align_up(end) + 1001)
    memory[:] = 7
    assert (slot[align_up(end) : rows.end] == 7).all()
