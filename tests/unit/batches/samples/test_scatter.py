"""Tests of scatter reads: raw arrays straight from the chunk file into their rows.

Manifests, chunk files and readers are the real ones, on a fake engine.
"""

from __future__ import annotations

import io
import os
import random
import signal
import threading
import time
import zipfile
from collections import deque
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from streamer.batches.batch.placement import Rows, RowShape
from streamer.batches.samples.cached_bytes import CachedBytes, ChunkUnreadableError
from streamer.batches.workers.batch_maker import BatchMaker, MakerRules
from streamer.decode import ArrayDecoder
from streamer.errors import WorkerError
from streamer.loader.dataloader import StreamingDataLoader
from tests.inspection import inspect, poison_freed_slots
from tests.tars import tar_of

COUNT, NUMBERS = 40, 2100
SHAPE = RowShape(np.dtype("<f4"), (NUMBERS,))


def array(number: int) -> np.ndarray:
    return np.random.default_rng(number).standard_normal(NUMBERS).astype("<f4")


def npy_of(numbers: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, numbers)
    return stream.getvalue()


@pytest.fixture
def npy(tmp_path: Path) -> Path:
    """Writes 40 files of 8,528 bytes, and returns their folder; one chunk holds one of them."""
    root = tmp_path / "npy"
    root.mkdir()
    for number in range(COUNT):
        np.save(root / f"{number:03}.npy", array(number))
    return root


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """Writes the same arrays to tars, between a label and a JSON text of any length, and returns their folder."""
    root = tmp_path / "tars"
    root.mkdir()
    for part in range(2):
        entries = []
        for number in range(part * 20, part * 20 + 20):
            fields = {"cls": str(number).encode(), "npy": npy_of(array(number)), "json": b'{"n": %d}' % number}
            entries += [(f"{number:03}.{name}", content) for name, content in fields.items()]
        (root / f"{part}.tar").write_bytes(tar_of(entries))
    return root


class Batches:
    """Makes batches of one reader, in rows, as a worker does, without a loader."""

    def __init__(self, prepared, engine, shapes):
        self.engine, self.prepared, self.shapes = engine, prepared, shapes
        self.read_with: list[int] = []
        for chunk in range(prepared.members.each[0].manifest.chunks):
            engine.make_local(chunk)
        self.reader = prepared.recipe().open()
        assert self.reader.takes_rows

    def ordinal(self, number):
        """Returns the ordinal of a file; files are in the order of their names' hashes."""
        names = [
            self.prepared.members.each[0].manifest.name(ordinal).object_key
            for ordinal in range(self.prepared.members.each[0].manifest.samples)
        ]
        return names.index(f"{number:03}.npy")

    def make(self, ordinals):
        """Returns samples, and whether each array of theirs stands in its row."""
        memory = np.full(1 << 19, 0xDB, np.uint8)
        rows = Rows(memory, self.shapes, len(ordinals))
        self.read_with.clear()
        self.reader.begin(0, np.array(ordinals, np.int64), rows, self.read_with.append)
        samples = [self.reader.load_at(0, ordinal, index) for index, ordinal in enumerate(ordinals)]
        in_place = [
            all(sample[name] is place for name, place in rows.row(index).items())
            for index, sample in enumerate(samples)
        ]
        return samples, in_place


def number_of(sample: dict[str, object]) -> int:
    return int(str(sample["__key__"]).split(".")[0])


def test_one_sample_shows_where_the_other_arrays_are(make_dataset, fake_engine, npy, ordinary):
    """After one batch arrays are read straight into their rows, and nothing in the ordinary way.

    The values are the same.
    """
    batches = Batches(make_dataset(npy)._get_opening().prepare(8), fake_engine, {"npy": SHAPE})
    assert not batches.reader.draws
    for _ in range(2):
        samples, in_place = batches.make([5, 3, 39, 0])
        assert all(in_place)
        for sample in samples:
            assert (sample["npy"] == array(number_of(sample))).all()
    assert ordinary == [5, 3, 39, 0]


def test_fields_around_an_array_are_read_too(make_dataset, fake_engine, tars, ordinary):
    """The other members of a tar's sample are read with its array, each sample's own."""
    batches = Batches(make_dataset(tars)._get_opening().prepare(8), fake_engine, {"npy": SHAPE})
    batches.make([0])
    ordinary.clear()
    samples, in_place = batches.make(list(range(39, -1, -1)))
    assert all(in_place)
    assert sorted(sample["cls"] for sample in samples) == list(range(40))
    for sample in samples:
        number = number_of(sample)
        assert (sample["cls"], sample["json"], sample["__key__"]) == (number, {"n": number}, f"{number:03}")
        assert (sample["npy"] == array(number)).all()
    assert ordinary == []


def test_several_arrays_in_a_sample(make_dataset, fake_engine, tmp_path, ordinary):
    """Each array of a sample goes to its own row, and one without a row is decoded as well."""
    root = tmp_path / "pairs"
    root.mkdir()
    entries = []
    for number in range(6):
        arrays = {"a.npy": array(number), "b.npy": array(number + 50), "c.npy": np.arange(number, number + 9)}
        entries += [(f"{number:03}.{name}", npy_of(numbers)) for name, numbers in arrays.items()]
    (root / "0.tar").write_bytes(tar_of(entries))
    batches = Batches(make_dataset(root)._get_opening().prepare(2), fake_engine, {"a.npy": SHAPE, "b.npy": SHAPE})
    batches.make([0])
    ordinary.clear()
    samples, in_place = batches.make([5, 4, 3, 2, 1, 0])
    assert all(in_place)
    for sample in samples:
        number = number_of(sample)
        assert (sample["a.npy"] == array(number)).all()
        assert (sample["b.npy"] == array(number + 50)).all()
        assert sample["c.npy"].tolist() == list(range(number, number + 9))
    assert ordinary == []


def test_raw_numbers_without_a_header(make_dataset, fake_engine, tmp_path, ordinary):
    """A file of raw numbers with an `ArrayDecoder` is read into its row as a whole."""
    root = tmp_path / "bin"
    root.mkdir()
    for number in range(10):
        array(number).tofile(root / f"{number:03}.bin")
    decode = {"bin": ArrayDecoder("<f4", (3, -1))}
    shape = RowShape(np.dtype("<f4"), (3, 700))
    batches = Batches(make_dataset(root, decode=decode)._get_opening().prepare(2), fake_engine, {"bin": shape})
    for _ in range(2):
        samples, in_place = batches.make(list(range(10)))
        assert all(in_place)
        assert all((sample["bin"].ravel() == array(number_of(sample))).all() for sample in samples)
    assert ordinary == list(range(10))


@pytest.mark.parametrize("odd", ["dtype", "shape", "order", "length", "text"])
def test_a_sample_that_is_not_alike_is_read_in_the_ordinary_way(make_dataset, fake_engine, npy, ordinary, odd):
    """A sample with another header, another length or no array is read in the ordinary way, with its own values."""
    other = {
        "dtype": np.arange(NUMBERS, dtype="<i4"),
        "shape": np.arange(NUMBERS, dtype="<f4").reshape(3, -1),
        "order": np.asfortranarray(np.arange(NUMBERS, dtype="<f4").reshape(3, -1)),
        "length": np.arange(NUMBERS + 1, dtype="<f4"),
        "text": np.array("x" * NUMBERS),
    }[odd]
    np.save(npy / "007.npy", other)
    batches = Batches(make_dataset(npy)._get_opening().prepare(8), fake_engine, {"npy": SHAPE})
    ordinals = [batches.ordinal(number) for number in (6, 7, 8)]
    for _ in range(3):
        samples, in_place = batches.make(ordinals)
        assert in_place == [True, False, True]
        assert samples[1]["npy"].dtype == other.dtype
        np.testing.assert_array_equal(samples[1]["npy"], other)
        assert all((samples[at]["npy"] == array(at + 6)).all() for at in (0, 2))
    assert ordinary == [*ordinals, ordinals[1], ordinals[1]]


def test_samples_of_many_layouts_are_not_read_twice_for_long(
    make_dataset, fake_engine, tmp_path, ordinary, monkeypatch
):
    """Batches of samples that are not like the template are read in the ordinary way for a while, then tried anew."""
    monkeypatch.setattr("streamer.batches.samples.scatter._PAUSED_BATCHES", 2)
    entries = []
    for number in range(20):
        fields = {"cls": b"%02d" % number, "npy": npy_of(array(number))}
        entries.extend((f"{number:03}.{name}", fields[name]) for name in sorted(fields, reverse=number % 2 == 1))
    root = tmp_path / "mixed"
    root.mkdir()
    (root / "0.tar").write_bytes(tar_of(entries))
    batches = Batches(make_dataset(root)._get_opening().prepare(4), fake_engine, {"npy": SHAPE})
    batches.make([0])
    odd, read = [1, 3, 5, 7], []
    for _ in range(4):
        ordinary.clear()
        samples, in_place = batches.make(odd)
        assert [(sample["cls"], (sample["npy"] == array(number_of(sample))).all()) for sample in samples] == [
            (number, True) for number in odd
        ]
        assert all(in_place)
        read.append((bool(batches.read_with), list(ordinary)))
    assert read == [(True, odd), (False, odd), (False, odd), (True, [])]


def test_another_sample_in_a_place(make_dataset, fake_engine, npy):
    """A sample in the place of one that is left out is read into the row of that place, with its own bytes."""
    batches = Batches(make_dataset(npy)._get_opening().prepare(8), fake_engine, {"npy": SHAPE})
    first, second, third = (batches.ordinal(number) for number in (1, 2, 9))
    batches.make([first, second])
    rows = Rows(np.zeros(1 << 17, np.uint8), batches.shapes, 2)
    batches.reader.begin(0, np.array([first, second]), rows, batches.read_with.append)
    sample = batches.reader.load_at(0, third, 1)
    assert (sample["npy"] == array(9)).all()
    assert sample["npy"] is rows.row(1)["npy"]
    assert (batches.reader.load_at(0, first, 0)["npy"] == array(1)).all()


def test_it_is_said_what_is_read(make_dataset, fake_engine, npy):
    """One sample of each chunk is named before the chunk is read, so that a slow read can be named."""
    batches = Batches(make_dataset(npy)._get_opening().prepare(8), fake_engine, {"npy": SHAPE})
    batches.make(range(4))
    assert batches.read_with == []
    batches.make(range(8, 16))
    chunks = [place.chunk for place in batches.reader._maker.places(0, np.arange(8, 16))]
    assert batches.read_with == [chunks.index(chunk) for chunk in dict.fromkeys(chunks)]


def test_a_read_that_hangs_is_seen_by_the_timeout(make_dataset, npy, monkeypatch):
    """A scatter read that hangs is a `WorkerError` after `timeout=` that names one of the samples being read."""
    over, read = threading.Event(), CachedBytes.read_into

    def hang(self, chunk, targets):
        if len(targets[0][1]) > 1:
            over.wait(60)
        read(self, chunk, targets)

    monkeypatch.setattr(CachedBytes, "read_into", hang)
    with StreamingDataLoader(make_dataset(npy), 8, 1, worker_type="thread", timeout=0.2) as loader:
        try:
            with pytest.raises(WorkerError, match=r"sample \d+ \(.*npy\) has taken longer than timeout=0.2 s"):
                # No batch is kept: samples are read in place into slots that are used again.
                deque(chain.from_iterable(loader for _ in range(10)), maxlen=0)
        finally:
            over.set()


def test_an_error_of_the_disk_is_that_of_one_sample(make_dataset, fake_engine, npy, monkeypatch):
    """A read of several samples that fails is made again one by one.

    The error is that of one sample, and the others are right.
    """
    batches = Batches(make_dataset(npy)._get_opening().prepare(8), fake_engine, {"npy": SHAPE})
    batches.make([0])
    samples, read = [batches.make([ordinal])[0][0] for ordinal in (1, 2, 3)], CachedBytes.read_into

    def worn(self, chunk, targets):
        if 2 in [place.ordinal for place, _ in targets]:
            raise OSError(5, "Input/output error")
        read(self, chunk, targets)

    monkeypatch.setattr(CachedBytes, "read_into", worn)
    rows = Rows(np.zeros(1 << 17, np.uint8), batches.shapes, 3)
    batches.reader.begin(0, np.array([1, 2, 3]), rows, batches.read_with.append)
    assert (batches.reader.load_at(0, 1, 0)["npy"] == samples[0]["npy"]).all()
    with pytest.raises(OSError, match="Input/output error"):
        batches.reader.load_at(0, 2, 1)
    assert (batches.reader.load_at(0, 3, 2)["npy"] == samples[2]["npy"]).all()


def test_what_is_left_out_is_not_read_with_the_others(make_dataset, fake_engine, npy):
    """A batch without a sample that has ended workers is read one by one, and a repeat takes its place."""
    batches = Batches(make_dataset(npy)._get_opening().prepare(8), fake_engine, {"npy": SHAPE})
    begun: list[int] = []
    maker = BatchMaker(batches.reader, MakerRules(17), lambda task, ordinal, since: begun.append(ordinal))
    for batch in range(3):  # the first says what it looks like, the second where
        loaded = maker.load(0, batch, memory=np.zeros(1 << 17, np.uint8))
        maker.lay_out(loaded)
    ordinals = batches.reader.batch(0, 3)[0].tolist()
    del begun[:]
    loaded = maker.load(0, 3, left_out=frozenset(ordinals[2:3]), memory=np.zeros(1 << 17, np.uint8))
    assert begun == [*ordinals[:2], *ordinals[3:], ordinals[3]]
    assert loaded.repeated.tolist() == [index == 2 for index in range(8)]


@pytest.mark.parametrize("place", [70, 64 + 128 + 500], ids=["header", "array"])
def test_every_byte_is_checked(make_dataset, fake_engine, npy, place):
    """A wrong bit in an array or its header is an error that names the chunk, as is a missing chunk."""
    batches = Batches(make_dataset(npy)._get_opening().prepare(8), fake_engine, {"npy": SHAPE})
    batches.make([4])
    chunk = batches.reader._maker.places(0, np.array([11]))[0].chunk
    with fake_engine.path(chunk).open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(ChunkUnreadableError, match=f"chunk {chunk}: wrong bytes"):
        batches.make([4, 11])
    fake_engine.path(chunk).unlink()
    with pytest.raises(ChunkUnreadableError, match="missing"):
        batches.make([11])


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_arrays_of_zip_archives(make_dataset, fake_engine, tmp_path, method):
    """Arrays of zip archives, compressed or not, are delivered with their values.

    What is decompressed has no place in its sample's bytes; what is not has a checksum that needs all its bytes.
    """
    # What cannot be compressed has one length.
    drawn = {f"{n:03}.npy": np.random.default_rng(n).integers(0, 256, 8000, np.uint8) for n in range(COUNT)}
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        for name, numbers in drawn.items():
            archive.writestr(name, npy_of(numbers))
    with StreamingDataLoader(make_dataset(tmp_path), 8, 1, worker_type="thread") as loader:
        for _ in range(2):
            found: dict[str, np.ndarray] = {}
            for batch in loader:
                found |= {key: row.numpy().copy() for key, row in zip(batch["__key__"], batch["npy"], strict=True)}
            assert found.keys() == drawn.keys()
            assert all((found[key] == drawn[key]).all() for key in drawn)


def test_a_byte_of_an_array_in_a_zip_archive_is_another(make_dataset, fake_engine, tmp_path):
    """A wrong byte of an array in a zip archive is an error of its sample, which `on_error="skip"` leaves out."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(COUNT):
            archive.writestr(f"{number:03}.npy", npy_of(array(number)))
    content = bytearray((tmp_path / "a.zip").read_bytes())
    content[content.index(array(39).tobytes()) + 1000] ^= 1
    (tmp_path / "a.zip").write_bytes(content)
    with StreamingDataLoader(make_dataset(tmp_path, on_error="skip"), 8, 1, worker_type="thread") as loader:
        keys = [key for batch in loader for key in batch["__key__"]]
        assert "039.npy" not in keys
        assert loader.stats().skipped == 1


def test_a_transform_is_never_given_a_row(make_dataset, fake_engine, npy):
    """A dataset with a transform gives it no row, as it may keep what it is given and rows are used again."""
    dataset = make_dataset(npy, transform=lambda sample: sample)
    prepared = dataset._get_opening().prepare(8)
    fake_engine.make_local(0)
    reader = prepared.recipe().open()
    assert not reader.takes_rows
    assert reader.draws


@pytest.mark.parametrize("layout", ["npy", "tars"])
def test_the_loader_delivers_the_same(make_dataset, fake_engine, request, layout):
    """A loader with rows delivers the batches of one without (`num_workers=0`), in three epochs."""
    root = request.getfixturevalue(layout)

    def epochs(workers: int) -> list[object]:
        with StreamingDataLoader(make_dataset(root), 8, workers, worker_type="thread") as loader:
            found = [[(b["__key__"], b["npy"].tolist()) for b in loader] for _ in range(3)]
            assert workers == 0 or loader.stats().spilled_batches == 0
            return found

    assert epochs(1) == epochs(0)


def test_wrong_bytes_are_fetched_again_and_the_row_is_rewritten(make_dataset, fake_engine, npy):
    """Chunks that are damaged once are rejected and read again, and every row has the right values."""
    spoilt: set[int] = set()

    def spoil(chunk: int, path: Path) -> None:
        if chunk not in spoilt and chunk in {5, 17, 29}:
            spoilt.add(chunk)
            content = bytearray(path.read_bytes())
            content[64 + 128 + 77] ^= 0xFF
            path.write_bytes(content)

    with StreamingDataLoader(make_dataset(npy), 8, 1, worker_type="thread") as loader:
        assert sum(1 for _ in loader) == 5  # rows are known from here on
        fake_engine.spoil = spoil
        for chunk in range(fake_engine.manifest.chunks):
            fake_engine.path(chunk).unlink(missing_ok=True)
        for _ in range(2):
            for batch in loader:
                for key, numbers in zip(batch["__key__"], batch["npy"], strict=True):
                    assert (numbers.numpy() == array(int(key[:3]))).all()
        assert loader.stats().rereads >= 1
    assert len(fake_engine.rejects) >= 1


@pytest.mark.slow
def test_the_rows_of_killed_workers_are_written_again(make_dataset, fake_engine, npy):
    """Two workers, one of which is killed every 15 batches, deliver the batches of a run without kills.

    Freed slots are poisoned.
    """
    with StreamingDataLoader(make_dataset(npy), 8, 0) as loader:
        expected = [(b["__key__"], b["npy"].tolist()) for _ in range(12) for b in loader]
    chance = random.Random(3)
    loader = StreamingDataLoader(make_dataset(npy), 8, 2, prefetch_batches=4)
    poison_freed_slots(loader)
    with loader:
        found: list[object] = []
        for _ in range(12):
            for batch in loader:
                found.append((batch["__key__"], batch["npy"].tolist()))
                if len(found) % 15 == 0:
                    time.sleep(chance.random() / 100)  # another moment of their work each time
                    os.kill(chance.choice(inspect(loader).worker_pids), signal.SIGKILL)
        assert loader.stats().respawns >= 3
    assert found == expected
