"""Tests of samples that stay as they are, read whole to where their batch will lie.

Manifests, chunk files and readers are the real ones, on a fake engine.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import default_collate

from streamer.batches.batch.slot_layout import BatchReader
from streamer.batches.samples.cached_bytes import CachedBytes, ChunkUnreadableError
from streamer.batches.samples.stored import StoredReader
from streamer.batches.workers.batch_maker import BatchMaker, MakerRules
from streamer.client.chunk_reader import ChunkReader
from streamer.decode import ArrayDecoder
from tests.tars import tar_of

COUNT, BATCH, SLOT_BYTES = 24, 8, 1 << 20


def picture(number: int) -> bytes:
    return random.Random(number).randbytes(20_000 + 1000 * number)


def tars(root: Path, content=picture) -> Path:
    """Writes two tars of 12 samples each, with an image's bytes and a number, and returns their folder."""
    root.mkdir()
    for part in range(2):
        entries = []
        for number in range(part * 12, part * 12 + 12):
            entries += [(f"{number:03}.jpg", content(number)), (f"{number:03}.cls", b"%d" % number)]
        (root / f"{part}.tar").write_bytes(tar_of(entries))
    return root


@pytest.fixture(autouse=True)
def several_samples_a_chunk(fake_engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes chunks so large that a read has several samples."""
    monkeypatch.setattr(sys.modules[type(fake_engine).__module__], "CHUNK_BYTES", 200_000)


class Batches:
    """Makes the batches of one reader in slots, as a worker does, and takes them out again."""

    def __init__(self, dataset, engine, **rules):
        prepared = dataset._get_opening().prepare(BATCH)
        for chunk in range(prepared.members.each[0].manifest.chunks):
            engine.make_local(chunk)
        self.engine = engine
        self.maker = BatchMaker(prepared.recipe().open(), MakerRules(seed=0, **rules))
        self.slot = np.full(SLOT_BYTES, 0xDB, np.uint8)
        # Of the last batch: bytes that were written to the slot when everything had been read.
        self.written = 0

    def make(self, number: int, left_out: frozenset[int] = frozenset()) -> object:
        packed = self.maker.lay_out(self.maker.load(0, number, left_out=left_out, memory=self.slot))
        assert packed.nbytes <= SLOT_BYTES
        packed.write(self.slot)
        self.written = sum(buffer.nbytes for buffer, _ in packed._buffers)
        found = BatchReader(self.slot.copy()).read(packed.description)
        elsewhere = packed.compact()
        memory = np.zeros(elsewhere.nbytes, np.uint8)
        elsewhere.write(memory)
        assert BatchReader(memory).read(elsewhere.description) == found
        return found

    def expected(self, number: int) -> object:
        """Returns what torch makes of the same samples, read in the ordinary way."""
        return default_collate(self.maker.load(0, number).samples)


def test_bytes_are_read_to_where_they_will_lie(make_dataset, fake_engine, tmp_path, ordinary):
    """From the second batch on bytes are read to their place in the slot, and the batch is what torch makes."""
    batches = Batches(make_dataset(tars(tmp_path / "tars"), decode=None), fake_engine)
    assert batches.make(0) == batches.expected(0)
    assert batches.written > sum(map(len, map(picture, range(BATCH))))
    for number in (1, 2):
        expected = batches.expected(number)
        ordinary.clear()
        found = batches.make(number)
        assert found == expected
        assert isinstance(found, dict)
        assert {type(item) for item in found["jpg"]} == {bytes}
        assert ordinary == []
        assert batches.written < 1000


def test_empty_fields(make_dataset, fake_engine, tmp_path):
    """Fields without bytes are delivered as torch has them."""
    root = tars(tmp_path / "tars", lambda number: b"" if number % 3 == 0 else picture(number))
    batches = Batches(make_dataset(root, decode=None), fake_engine)
    for number in (0, 1, 2, 0):
        assert batches.make(number) == batches.expected(number)


def test_empty_files(make_dataset, fake_engine, tmp_path):
    """Files without bytes are delivered as torch has them, while the others are read to their place."""
    root = tmp_path / "files"
    root.mkdir()
    for number in range(COUNT):
        (root / f"{number:02}.jpg").write_bytes(b"" if number % 5 == 0 else picture(number))
    batches = Batches(make_dataset(root, decode=None), fake_engine)
    for number in (0, 1, 2, 0):
        assert batches.make(number) == batches.expected(number)
    assert batches.written < 1000


def test_what_is_mostly_headers_is_copied(make_dataset, fake_engine, tmp_path, ordinary):
    """Samples that are mostly headers of a tar are copied to the slot, which has only an eighth to spare."""
    batches = Batches(make_dataset(tars(tmp_path / "tars", lambda n: b"x" * 1500), decode=None), fake_engine)
    for number in (0, 1, 2):
        assert batches.make(number) == batches.expected(number)
        assert batches.written > 1500 * BATCH


def test_a_slot_that_is_too_small_for_the_headers(make_dataset, fake_engine, tmp_path):
    """A batch for whose headers the slot is too small is made in the ordinary way, and fits."""
    batches = Batches(make_dataset(tars(tmp_path / "tars"), decode=None), fake_engine)
    batches.make(0)
    expected = batches.expected(1)
    packed = batches.maker.lay_out(batches.maker.load(0, 1))
    batches.slot = batches.slot[: packed.nbytes]
    packed = batches.maker.lay_out(batches.maker.load(0, 1, memory=batches.slot))
    packed.write(batches.slot)
    assert packed.nbytes == len(batches.slot)
    assert BatchReader(batches.slot).read(packed.description) == expected


@pytest.mark.parametrize("function", ["collate_fn", "transform"])
def test_a_users_function_gets_bytes_of_its_own(make_dataset, fake_engine, tmp_path, function):
    """A `collate_fn` or transform gets bytes that are not in the slot, as it may keep them."""
    kept: list[dict[str, object]] = []

    def collate(samples: list[object]) -> object:
        kept.extend(samples)  # type: ignore[arg-type]
        return default_collate(samples)  # type: ignore[arg-type]

    def transform(sample: dict[str, object]) -> object:
        kept.append(sample)
        return sample

    root = tars(tmp_path / "tars")
    if function == "collate_fn":
        batches = Batches(make_dataset(root, decode=None), fake_engine, collate_fn=collate)
    else:
        batches = Batches(make_dataset(root, decode=None, transform=transform), fake_engine)
    for number in range(3):
        batches.make(number)
    batches.slot[:] = 0
    assert len(kept) == COUNT
    assert all(sample["jpg"] == picture(int(str(sample["__key__"]))) for sample in kept)


def test_a_missing_chunk_of_a_join_is_leased_again(make_dataset, fake_engine, tmp_path):
    """A chunk that a row of a join lacks stays that error in a scan, which has the chunk leased again."""

    class Gone:
        """Stands for a join whose row is in a chunk that was evicted."""

        def begin(self, ordinals: object) -> None: ...

        def values(self, ordinal: int, raw: object) -> dict[str, object]:
            raise ChunkUnreadableError(7, "missing")

    dataset = make_dataset(tars(tmp_path / "tars"), decode=None)
    prepared = dataset._get_opening().prepare(BATCH)
    manifest = prepared.members.each[0].manifest
    for chunk in range(manifest.chunks):
        fake_engine.make_local(chunk)
    content = CachedBytes(manifest, ChunkReader(prepared.recipe().roots), 0)
    reader = StoredReader(manifest, content, dataset._member.rules(), [Gone()])
    (place,) = reader.begin(np.array([0]))
    with pytest.raises(ChunkUnreadableError, match="missing"):
        reader.read(place)


def test_wrong_bytes_are_found_before_they_are_used(make_dataset, fake_engine, tmp_path):
    """A flipped bit in a chunk file is an error that has the batch made again from a new lease."""
    dataset = make_dataset(tars(tmp_path / "tars"), decode=None)
    batches = Batches(dataset, fake_engine)
    batches.make(0)
    for path in fake_engine.root.rglob("*.chunk"):
        content = bytearray(path.read_bytes())
        content[64 + 5000] ^= 1
        path.write_bytes(content)
    with pytest.raises(ChunkUnreadableError, match="checksum"):
        [batches.make(number) for number in range(3)]


def test_a_sample_that_ended_workers_is_not_read_with_the_others(make_dataset, fake_engine, tmp_path, ordinary):
    """A sample that has ended workers is not read, and the others of its batch are read one by one."""
    batches = Batches(make_dataset(tars(tmp_path / "tars"), decode=None), fake_engine)
    batches.make(0)
    ordinals = batches.maker._source.batch(0, 1)[0].tolist()
    ordinary.clear()
    found = batches.make(1, left_out=frozenset(ordinals[:1]))
    assert isinstance(found, dict)
    assert found["__key__"][0] == found["__key__"][1]
    assert ordinals[0] not in ordinary
    assert set(ordinary) == set(ordinals[1:])


def test_after_an_error_of_the_disk_each_sample_is_read_by_itself(
    make_dataset, fake_engine, tmp_path, ordinary, monkeypatch
):
    """After an error of the disk in a read of several samples each of them is read by itself."""
    batches = Batches(make_dataset(tars(tmp_path / "tars"), decode=None), fake_engine)
    batches.make(0)
    read_into = CachedBytes.read_into

    def broken(self, chunk, targets):
        if len(targets) > 1:
            failed.extend(place.ordinal for place, _ in targets)
            raise OSError(5, "Input/output error")
        read_into(self, chunk, targets)

    failed: list[int] = []
    expected = batches.expected(1)
    monkeypatch.setattr(CachedBytes, "read_into", broken)
    ordinary.clear()
    assert batches.make(1) == expected
    assert failed
    assert sorted(ordinary) == sorted(failed)


def test_raw_bytes_beside_an_array_that_is_in_its_row(make_dataset, fake_engine, tmp_path):
    """Raw bytes beside arrays in rows are delivered right, also of samples that are read in the ordinary way."""
    root = tmp_path / "tars"
    root.mkdir()
    entries = []
    for number in range(COUNT):
        array = np.random.default_rng(number).standard_normal(1000 if number % 7 else 1001).astype("<f4")
        entries += [(f"{number:03}.bin", array[:1000].tobytes()), (f"{number:03}.raw", b"%05d" % number)]
        entries += [(f"{number:03}.note", b"n" * (number % 7 == 0))]
    (root / "0.tar").write_bytes(tar_of(entries))
    batches = Batches(make_dataset(root, decode={"bin": ArrayDecoder("<f4", (1000,))}), fake_engine)
    for number in (0, 1, 2, 0, 1, 2):
        packed = batches.maker.lay_out(batches.maker.load(0, number, memory=batches.slot))
        packed.write(batches.slot)
        found, expected = BatchReader(batches.slot.copy()).read(packed.description), batches.expected(number)
        assert isinstance(found, dict)
        assert [found["raw"], found["note"], found["__key__"]] == [
            expected["raw"],  # type: ignore[index]
            expected["note"],  # type: ignore[index]
            expected["__key__"],  # type: ignore[index]
        ]
        assert (found["bin"] == expected["bin"]).all()  # type: ignore[index]
