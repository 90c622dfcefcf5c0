"""Tests of `select` with another transform, one label or indices, and of parts that torch makes, which are slow."""

from __future__ import annotations

import logging

from torch.utils.data import Subset

from streamer import StreamingDataLoader


def shout(sample):
    return {"txt": sample["txt"].upper()}


def test_one_folder_with_two_transforms(make_dataset, folder):
    """`select(transform=)` gives the same samples in the same order with another transform, or with none."""
    train = make_dataset(folder, transform=shout)
    same, plain, other = train.select(), train.select(transform=None), train.select(transform=lambda sample: 3)
    assert same[5] == train[5] == {"txt": plain[5]["txt"].upper()}
    assert other[5] == 3
    assert [dataset._member.open().selection for dataset in (same, plain, other)] == [None] * 3
    held_out = train.select(fraction=(0.9, 1.0), transform=None)
    assert held_out.select(max_bytes=10**9)[0]["__key__"] == held_out[0]["__key__"]
    with StreamingDataLoader(train, 5) as loader, StreamingDataLoader(plain, 5) as bare:
        pairs = list(zip(loader, bare, strict=True))
    assert len(pairs) == train.samples // 5
    assert all(left["txt"] == [text.upper() for text in right["txt"]] for left, right in pairs)


def test_a_label_alone(make_dataset, folder):
    """`labels=` may be one label, as `keys=` may be one text."""
    dataset = make_dataset(folder)
    assert dataset.select(labels="class1").samples == dataset.select(labels=[1]).samples == 33


def test_repeated_indices_are_dropped_with_a_warning(make_dataset, folder, caplog):
    """Repeated indices, counted from either end, are dropped with a warning.

    A selection has each sample once in an epoch.
    """
    dataset = make_dataset(folder)
    caplog.set_level(logging.WARNING, "streamer")
    assert dataset.select(indices=[5, 6, 7]).samples == 3
    assert not caplog.records
    assert dataset.select(indices=[5, 5, 7]).samples == 2
    assert dataset.select(indices=[99, -1, 99]).samples == 1
    texts = [record.message.partition(":")[0] for record in caplog.records]
    assert texts == [
        f"select(indices=...) names 3 samples, of which {repeats} are repeats and are dropped" for repeats in (1, 2)
    ]


def test_reading_one_by_one_is_warned_of_once(make_dataset, folder, caplog):
    """Reading 64 samples one by one, as a `Subset` does, is warned of once; fewer are not."""
    dataset = make_dataset(folder)
    part = Subset(dataset, range(100))
    assert dataset.samples == 100
    caplog.clear()
    for number in range(60):
        part[number]
    assert caplog.records == []
    for number in range(99):
        part[number]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "64 samples were read one by one" in record.message
    assert "dataset.select(fraction=(0, 0.9))" in record.message
