"""Metadata that others wrote is read within bounds that follow the memory and the data."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from streamer.engine.manifests.index_resources import IndexMemory
from streamer.engine.manifests.manifest_copy import copy_manifest
from streamer.errors import ManifestCorruptError, ManifestError
from streamer.formats.failures import DamagedError
from streamer.formats.sidecars import read_sidecar
from streamer.indexing.survey import refuse_pointers, reserve_needs
from streamer.manifest.layout import ROOT_NAME
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.protocols import Need, Source
from streamer.manifest.transfer import export_files
from streamer.manifest.validation import open_and_verify
from streamer.media.containers.tables import Tables

URL = "s3://b/train/.streamer/"


class _Bucket:
    """Stands for a bucket of files that may claim other sizes, and notes which are read and how much at once."""

    def __init__(self, files: dict[str, bytes], **sizes: int) -> None:
        self.files = files
        self.records = [ObjectRecord(URL + name, sizes.get(name, len(raw)), "v") for name, raw in files.items()]
        self.longest = 0
        self.read_names = set[str]()

    async def read(self, extent: Extent) -> bytes:
        self.longest = max(self.longest, extent.length)
        self.read_names.add(extent.object.url.removeprefix(URL))
        return self.files[extent.object.url.removeprefix(URL)][extent.start : extent.stop]


async def test_a_manifest_is_copied_in_pieces(tar_manifest, tmp_path, monkeypatch):
    """A manifest is copied in pieces, one in memory at a time, and the copy is verified."""
    monkeypatch.setattr("streamer.engine.manifests.manifest_copy._PIECE_BYTES", 1000)
    bucket = _Bucket(dict(export_files(tar_manifest)))
    copied = await copy_manifest(bucket.records, tmp_path / "copies", URL, bucket)
    assert copied is not None
    assert open_and_verify(copied.path).digest == tar_manifest.digest
    assert bucket.longest == max(1000, len(bucket.files[ROOT_NAME]))
    assert await copy_manifest([], tmp_path, URL, bucket) is None


@pytest.mark.parametrize(
    ("root", "size", "text"),
    [(b"{}", 2, "not a manifest"), (b"{}", 1 << 30, "more than 16777216"), (None, None, "root.json says")],
)
async def test_of_a_wrong_manifest_only_the_root_is_read(tar_manifest, tmp_path, root, size, text):
    """A manifest with a wrong root is refused before any table is read, however long the tables are."""
    files = dict(export_files(tar_manifest))
    sizes = {"objects-00000.arrows": 1500 << 20}
    if root is not None:
        files[ROOT_NAME], sizes[ROOT_NAME] = root, size
    bucket = _Bucket(files, **sizes)
    with pytest.raises(ManifestCorruptError, match=text):
        await copy_manifest(bucket.records, tmp_path / "copies", URL, bucket)
    assert bucket.read_names <= {ROOT_NAME}
    assert not list(tmp_path.glob("copies/*"))


async def test_what_an_index_holds_at_once_is_bounded():
    """An index holds at most its memory: a longer range is refused before it is read, others wait for theirs."""
    memory = IndexMemory(1 << 20)
    record = ObjectRecord("s3://b/index.json", 300 << 20, "v")
    with pytest.raises(ManifestError, match=r"more than the 1\.0 MB that an index may hold"):
        async with memory.hold([Extent(record, 0, record.size)]):
            pytest.fail("it was to be read")
    entered = asyncio.Event()

    async def second() -> None:
        async with memory.hold([Extent(record, 0, 600 << 10)]):
            entered.set()

    async with asyncio.TaskGroup() as tasks:
        async with memory.hold([Extent(record, 0, 600 << 10)]):
            waiting = tasks.create_task(second())
            await asyncio.sleep(0)
            assert not entered.is_set()
        await waiting
    async with memory.hold([Extent(record, 0, 512)] * 10_000):
        pass


def test_an_index_beside_an_object_follows_its_size():
    """An index file much larger than its object is refused: an object of 10 kB has no index of 150 MB."""
    source = Source(ObjectRecord("s3://b/a.tar", 10_240, "v"), sidecar=ObjectRecord("s3://b/a.tar.idx", 150 << 20, "v"))
    with pytest.raises(ManifestError, match=r"is not an index of s3://b/a\.tar"):
        next(read_sidecar(source))


@pytest.mark.parametrize(
    ("count", "size"), [((1 << 25) - 10, 1 << 25), ((1 << 16) + 1, 8 << 16), ((1 << 22) + 1, 1 << 40)]
)
def test_packets_follow_the_bytes_of_the_file(count, size):
    """A table that claims more packets than its file has bytes is refused before they are allocated."""
    tables = Tables()
    tables.read(b"stsz", memoryview(bytes(4) + struct.pack(">II", 1, count)))
    with pytest.raises(DamagedError, match="samples are read"):
        tables.columns(size)
    assert not np.size(tables.bodies.get(b"stsz", ()))


async def test_a_reader_that_looks_for_pointers_passes_the_bound_on():
    """The reader that refuses pointers passes ranges on to the memory bound of the reader below it.
    (Without the bound 1.2 GB of metadata were in memory at once.)"""
    held: list[Extent] = []

    class Bounded(_Bucket):
        @asynccontextmanager
        async def hold(self, ranges: list[Extent]) -> AsyncIterator[None]:
            held.extend(ranges)
            yield

    bucket = Bounded({"index.json": b"{}"})
    whole = Extent(bucket.records[0], 0, 2)
    async with reserve_needs([Need(0, 2, bucket.records[0])], refuse_pointers(bucket)):
        assert held == [whole]
    async with reserve_needs([Need(0, 2, bucket.records[0])], refuse_pointers(_Bucket({"index.json": b"{}"}))):
        assert held == [whole]
