"""Tests of the copy to a device of a batch that lies in one slot: one copy, or one for each tensor.

Copies are made in the memory of the CPU, of slots laid out by the real writer.
"""

from __future__ import annotations

import gc
import weakref

import numpy as np
import torch

from streamer.batches.batch.collate import collate
from streamer.batches.batch.ragged import Ragged
from streamer.batches.batch.slot_layout import BatchReader, WritableBatch
from streamer.loader.delivery import Delivery
from streamer.loader.device.copying import SlotRange, map_tensors

SAMPLES = [
    {"jpg": np.full((30, 40, 3), n, np.uint8), "x": np.full((40, 10), n, np.float64), "cls": n} for n in range(8)
]


def delivery(structure: object) -> Delivery:
    """Returns a batch as the loader delivers it, in memory that stands for a slot."""
    packed = WritableBatch(structure)
    memory = np.frombuffer(bytearray(packed.nbytes + 100), np.uint8)  # of its own, as the ring lends it
    packed.write(memory)
    content = BatchReader(memory).read(packed.description)
    return Delivery(content, 0, 0, np.zeros(8, bool), packed.nbytes, memory=memory)


def test_one_copy_for_all_tensors():
    """One copy of a slot covers all tensors of a batch.

    Each is taken out of it with its values, dtype and shape, labels into memory of their own.
    """
    batch = delivery(collate(SAMPLES))
    packed = SlotRange.find(batch)
    assert packed is not None
    assert packed.nbytes == 8 * 3600 + 8 * 3200 + 64
    whole = packed.source().clone()
    moved = packed.view_in(whole)
    assert moved.memory is None, "the slot is not held by what was made of it"
    for name in ("jpg", "x", "cls"):
        assert torch.equal(moved.content[name], batch.content[name])
        assert moved.content[name].dtype is batch.content[name].dtype
    inside = range(whole.data_ptr(), whole.data_ptr() + whole.nbytes)
    assert moved.content["jpg"].data_ptr() in inside
    assert moved.content["x"].data_ptr() in inside
    assert moved.content["cls"].data_ptr() not in inside, "who keeps labels must not keep pictures"


def test_encoded_files_stay_where_they_are():
    """Encoded files stay on the CPU, where a decoder of a GPU takes them.

    Arrays of different lengths move like all others.
    """
    jpegs = Ragged(torch.arange(5, dtype=torch.uint8), torch.tensor([0, 2, 5]), True)
    boxes = Ragged(torch.zeros(3, 4), torch.tensor([0, 3, 3]), False)
    batch = {"jpg": jpegs, "boxes": boxes, "label": torch.tensor([1, 2])}
    moved = map_tensors(batch, lambda tensor: tensor.to("meta"))
    assert moved["jpg"] is jpegs
    assert [moved["boxes"].values.device.type, moved["label"].device.type] == ["meta", "meta"]
    assert [view.tolist() for view in jpegs.views()] == [[0, 1], [2, 3, 4]]
    copied = map_tensors(batch, torch.clone, encoded=True)["jpg"]
    assert copied.values is not jpegs.values
    assert copied.encoded


def test_what_is_not_one_run_is_copied_tensor_by_tensor():
    """A batch that is not one range of its slot is copied tensor by tensor.

    Such a batch has tensors of other memory, texts in between, views with gaps, or fewer than two tensors.
    """
    batch = delivery(collate(SAMPLES))
    foreign = batch.replace_content({**batch.content, "more": torch.ones(5)})
    assert SlotRange.find(foreign) is None
    mixed = Delivery({**batch.content, "more": torch.ones(5)}, 0, 0, batch.repeated, memory=batch.memory)
    assert SlotRange.find(mixed) is None
    scattered = Delivery(
        {"jpg": batch.content["jpg"][:, ::2], "x": batch.content["x"]}, 0, 0, batch.repeated, memory=batch.memory
    )
    assert SlotRange.find(scattered) is None
    texts = [{"a": np.zeros(2000), "text": "x" * 9000, "b": np.zeros(2000)} for _ in range(4)]
    assert SlotRange.find(delivery(collate(texts))) is None
    single = delivery(collate([{"x": sample["x"]} for sample in SAMPLES]))
    assert SlotRange.find(single) is None
    assert SlotRange.find(batch.content) is None
    assert SlotRange.find(delivery(collate(["a", "b"]))) is None


def test_the_source_of_a_copy_keeps_its_slot():
    """A slot is not free while the source of a copy is held, and is free at once when that is dropped."""
    batch, freed = delivery(collate(SAMPLES)), []
    weakref.finalize(batch.memory, freed.append, True)
    packed = SlotRange.find(batch)
    assert packed is not None
    source = packed.source()
    del batch, packed
    gc.collect()
    assert freed == []
    del source
    gc.collect()
    assert freed == [True]
