"""Tests of how a batch lies in its slot: alignment, what is pickled, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from streamer.batches.batch.buffers import ALIGN, ArrayBuffer, StackBuffer, StringsBuffer
from streamer.batches.batch.collate import collate
from streamer.batches.batch.slot_layout import BatchReader, WritableBatch


@dataclass
class Batch:
    """Stands for a batch of a user's own class."""

    images: torch.Tensor
    names: list[str]
    extra: dict[str, np.ndarray]


def round_trip(structure: object) -> tuple[object, WritableBatch]:
    packed = WritableBatch(structure)
    memory = np.zeros(packed.nbytes, np.uint8)
    packed.write(memory)
    return BatchReader(memory).read(packed.description), packed


def test_buffers_are_aligned():
    """Every buffer of a batch begins at a multiple of 64 bytes of its slot."""
    buffers = [ArrayBuffer(np.ones(n, np.uint8)) for n in (1, 63, 64, 65)]
    _, packed = round_trip(buffers)
    assert [offset % ALIGN for _, offset in packed._buffers] == [0] * 4
    assert [offset for _, offset in packed._buffers] == [0, 64, 128, 192]


def test_nothing_large_is_pickled():
    """A batch of 38.5 MB takes less than 512 bytes to pickle, as its arrays and texts are buffers."""
    images = [np.zeros((224, 224, 3), np.uint8)] * 256
    keys = StringsBuffer([f"key-{n:06d}" for n in range(256)])
    packed = WritableBatch({"jpg": StackBuffer(images), "cls": ArrayBuffer(np.arange(256)), "__key__": keys})
    assert packed.nbytes > 38_500_000
    assert packed.description[1] < 512


def test_arrays_of_a_users_class_are_buffers():
    """Tensors and arrays anywhere in what a `collate_fn` returns become views; the user's class comes back."""
    batch = Batch(torch.ones(4, 3, dtype=torch.bfloat16), ["a", "b"], {"n": np.arange(1000.0)})
    back, packed = round_trip(batch)
    assert isinstance(back, Batch)
    assert torch.equal(back.images, batch.images)
    assert back.names == batch.names
    assert type(back.extra["n"]) is np.ndarray
    assert (back.extra["n"] == batch.extra["n"]).all()
    assert packed.description[1] < 512


def test_an_array_used_twice_is_written_once():
    """An array that a batch has twice is written once."""
    array = np.ones(1000)
    back, packed = round_trip([array, array])
    assert len(packed._buffers) == 1
    assert (back[0] == back[1]).all()


def test_objects_of_python_stay_pickled():
    """An array of objects is pickled, as it has no bytes of its own."""
    back, packed = round_trip({"o": np.array([{"a": 1}, None], object), "s": {1, 2}})
    assert packed._buffers == []
    assert back["o"].tolist() == [{"a": 1}, None]
    assert back["s"] == {1, 2}


@pytest.mark.parametrize("strings", [["a", "", "ü\udc80"], (b"\x00", b"", b"abc"), ["x"], [""]])
def test_strings(strings):
    """Lists and tuples of str and bytes come back from a slot as they were."""
    back, _ = round_trip({"k": StringsBuffer(strings)})
    assert back["k"] == strings
    assert type(back["k"]) is type(strings)


def test_a_class_of_main():
    """A class of `__main__` is sent by value, and is the trainer's own again."""
    local = type("Local", (), {"__module__": "__main__"})
    item = local()
    item.value = np.ones(3)
    back, _ = round_trip(item)
    assert type(back) is local
    assert (back.value == 1).all()


def test_batch_is_writable():
    """The arrays of a batch may be changed in place, as those of torch's batches."""
    back, _ = round_trip({"x": ArrayBuffer(np.zeros(3))})
    back["x"] += 1
    assert back["x"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (4, 0, 2), (1,), (5, 7), (2, 3, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_stacks_of_any_shape(shape, order):
    """Arrays of any shape and order are stacked as by `np.stack`, also without dimensions or elements."""
    rows = [np.asarray(np.arange(np.prod(shape)).reshape(shape) + 100 * n, order=order) for n in range(3)]
    buffer = StackBuffer(rows)
    memory = np.full(buffer.nbytes, 0xDB, np.uint8)
    buffer.write(memory)
    assert np.array_equal(np.ndarray((3, *shape), rows[0].dtype, buffer=memory), np.stack(rows))


def test_numbers_of_the_other_order_of_bytes():
    """Numbers of the other order of bytes have this machine's order in the batch, as tensors do."""
    rows = [np.arange(3).astype(">f4") + number for number in range(2)]
    found = collate([{"x": row} for row in rows])["x"]
    assert isinstance(found, StackBuffer)
    assert all(row.dtype == np.float32 and row.dtype.isnative for row in found.rows)
    assert np.array_equal(np.stack(found.rows), np.stack(rows))
