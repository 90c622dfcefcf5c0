"""Samples that share parts in chunk files (codec 2): a format of another package, from the index to the batch.

Engine, recoders and loaders are the real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import numpy as np
import pytest

from streamer import Order, StreamingDataLoader, StreamingDataset
from streamer.cache import maintenance
from streamer.cache.folder import list_chunk_files, open_layer
from streamer.engine.datasets import Dataset
from streamer.engine.engine import Engine
from streamer.engine.statistics import engine_statistics
from streamer.errors import IntegrityError, RecodeError
from streamer.fetch.fetcher import Fetched
from streamer.formats.chunkfile import ChunkHeader
from streamer.manifest.model import Codec
from streamer.peers.source import check_file
from streamer.wire.store_options import NO_OPTIONS
from tests.recoding.blocked_format import CELL_BYTES
from tests.recoding.conftest import indexed
from tests.recoding.test_sessions import Rank, opened

pytestmark = pytest.mark.process

FILES, CELLS, BLOCK, LENGTH = 12, 90, 8, 3
SAMPLES = FILES * (CELLS - LENGTH + 1)
RECORD = 4 + (LENGTH + 1) * CELL_BYTES


def cell(file: int, number: int) -> bytes:
    """Returns a cell that repeats its number."""
    return b"%04d%04d" % (file, number) * (CELL_BYTES // 8)


def sample(file: int, number: int, length: int = LENGTH) -> bytes:
    """Returns the cells of a sample, and the first one of its block."""
    first = number // BLOCK * BLOCK
    return b"".join(cell(file, each) for each in range(number, number + length)) + cell(file, first)


ALL = sorted(sample(file, number) for file in range(FILES) for number in range(CELLS - LENGTH + 1))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for file in range(FILES):
        (folder / f"{file}.cells").write_bytes(b"".join(cell(file, number) for number in range(CELLS)))
    return folder


async def test_ranks_evictions_checks_and_layers(engine: Engine, data: Path, tmp_path: Path) -> None:
    """Chunk files with shared parts are as long as planned and fetched once for two ranks; a copy serves as a layer."""
    manifest = await indexed(engine, data, 20_000, "cells")
    chunk = manifest.chunk(0)
    assert (manifest.samples, chunk.codec, manifest.content.version) == (SAMPLES, Codec.SHARED, 3)
    readers = [Rank(engine, manifest, f"rank {rank}") for rank in range(2)]
    for found in await asyncio.gather(*(rank.epoch(0) for rank in readers)):
        assert sorted(found) == ALL
    counted = engine_statistics(engine)
    assert counted["recoded_chunks"] == manifest.chunks
    assert counted["store_bytes"] == sum(manifest.chunk(number).fetch_bytes for number in range(manifest.chunks))
    planned = Dataset(manifest, {}).file_bytes
    there = dict(list_chunk_files(open_layer(engine.cache.root)))
    assert [there[key.tobytes()] for key in manifest.chunk_keys] == planned.tolist()
    # Blocks overlap by two cells of ten; within a chunk file no cell is stored twice.
    assert sum(there.values()) < 1.3 * manifest.total_bytes < 0.4 * sum(map(len, ALL))
    assert maintenance.check(engine.cache.root).damaged == {}
    assert maintenance.export(engine.cache.root, tmp_path / "layer") == manifest.chunks
    async with opened(tmp_path / "other", layers=(tmp_path / "layer",)) as other:
        same = await indexed(other, data, 20_000, "cells")
        assert sorted(await Rank(other, same).epoch(0)) == ALL
        assert other.recoders.count.recoded_chunks == 0


async def test_an_index_that_says_something_else_than_the_recoder(engine: Engine, data: Path) -> None:
    """A recoder that makes another number of ranges per sample than the manifest says is refused."""
    manifest = await indexed(engine, data, 20_000, "cells", told=1)
    with pytest.raises(RecodeError, match="its samples have 2 ranges of shared parts, 1 were indexed"):
        await Rank(engine, manifest).epoch(0)


async def test_looking_at_samples(engine: Engine, data: Path) -> None:
    """Single samples with shared parts are read as whole records, as if they were stored one after the other.

    A read may go across records.
    """
    manifest = await indexed(engine, data, 20_000, "cells")
    for _ in range(2):
        edges = np.frombuffer(await engine.read(manifest.digest, NO_OPTIONS, 0, None), "<u4").tolist()
        assert edges == list(range(0, RECORD * (manifest.chunk(0).samples + 1), RECORD))
        assert (await engine.read(manifest.digest, NO_OPTIONS, 0, (edges[2], edges[3])))[4:] == sample(0, 2)
        some = await engine.read(manifest.digest, NO_OPTIONS, 0, (edges[3], edges[4] + 8))
        assert some == b"\3\0\0\0" + sample(0, 3) + b"\4\0\0\0" + sample(0, 4)[:4]
        await Rank(engine, manifest, "again").epoch(0)


class Sent(Fetched):
    """Stands for a chunk file that a peer has sent, without a peer."""

    def __init__(self, content: bytes) -> None:
        self.parts = [memoryview(content)]


async def test_chunk_files_of_peers(engine: Engine, data: Path) -> None:
    """A whole chunk file of a peer is accepted, and a flipped byte behind its header is found."""
    manifest = await indexed(engine, data, 20_000, "cells")
    await Rank(engine, manifest).epoch(0)
    path = engine.cache.path(manifest.chunk_keys[1].tobytes())
    assert path is not None
    content, dataset = path.read_bytes(), Dataset(manifest, {})
    taken = check_file(Sent(content), dataset, 1, "a peer")
    assert len(taken.offsets) == ChunkHeader.decode(content[:64], "").samples + 1
    for place in [*range(64, len(content) - 400, 997), *range(len(content) - 400, len(content))]:
        wrong = bytearray(content)
        wrong[place] ^= 0x40
        with pytest.raises(IntegrityError, match="a peer"):
            check_file(Sent(bytes(wrong)), dataset, 1, "a peer")


def _read_all(loader: StreamingDataLoader) -> list[bytes]:
    return sorted(
        bytes(cells) + bytes(cover)
        for batch in loader
        for cells, cover in zip(batch["cells"], batch["cover"], strict=True)  # type: ignore[arg-type]
    )


@pytest.mark.slow
def test_epochs(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples with shared parts come through epochs of a small cache, singly, by key and as raw bytes."""
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    # Keys are looked for in pieces of a chunk.
    monkeypatch.setattr("streamer.loader.members.single_reads._PIECE_BYTES", 20_000)

    def dataset(**options: object) -> contextlib.closing[StreamingDataset]:
        options = {"cache_bytes": "2MB", "order": Order(shuffle_window=2), **options}
        return contextlib.closing(
            StreamingDataset(data, format="cells", cache_dir=tmp_path / "cache", batch_size=16, **options)  # type: ignore[arg-type]
        )

    with dataset() as first, contextlib.closing(StreamingDataLoader(first, num_workers=2)) as loader:
        for _ in range(2):
            assert _read_all(loader) == ALL
        assert sum(size for _, size in list_chunk_files(open_layer(tmp_path / "cache"))) < 2_000_000
        assert first[9]["cells"] == sample(0, 9)[: LENGTH * CELL_BYTES]
        assert first.get("00010085")["cells"] == sample(1, 85)[: LENGTH * CELL_BYTES]
        with pytest.raises(KeyError, match="no sample has the key '00000088'"):
            first.get("00000088")
    with dataset(decode=None) as raw, contextlib.closing(StreamingDataLoader(raw, num_workers=1)) as loader:
        assert _read_all(loader) == ALL
