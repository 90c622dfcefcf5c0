"""Two real engines of one process that share their caches over HTTP: which of them fetches what from the store.

Without peers nothing of the feature is loaded.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from streamer.cli.status_view import StatusView
from streamer.config import CacheConfig, DatasetConfig, EngineConfig, PeersConfig
from streamer.engine.engine import Engine
from streamer.engine.session import EngineSession
from streamer.engine.statistics import engine_statistics
from streamer.errors import StreamerError
from streamer.formats.chunkfile import HEADER_BYTES
from streamer.peers.group import join_peers
from streamer.service import metrics
from streamer.service.metrics import DEFINITIONS, make_series
from streamer.wire.messages import GetManifest, OpenSession
from streamer.wire.schedule import EpochSchedule

pytestmark = pytest.mark.process
NAMED = {definition.name: definition for definition in DEFINITIONS}

CHUNK_BYTES = 40_000
FILES = 60


class Reader:
    """Stands for a job: a session of one engine that reads all chunks, one a step."""

    def __init__(self, engine: Engine, digest: str, job: str) -> None:
        self.engine = engine
        self.news = asyncio.Event()
        self.errors: list[StreamerError] = []
        request = OpenSession(0, job=job, dataset=digest, consumer="rank 0")
        self.session: EngineSession = engine.open_session(request, lambda *news: self.news.set(), self._failed)
        self.manifest = self.session.collection.datasets[0].manifest

    def _failed(self, error: StreamerError) -> None:
        self.errors.append(error)
        self.news.set()

    async def read(self, seed: int, most: int | None = None) -> list[bytes]:
        """Returns the content of each chunk by its number, or only of `most` of them."""
        order = np.random.default_rng(seed).permutation(self.manifest.chunks)[:most]
        steps = np.arange(len(order))
        self.session.extend(EpochSchedule(0, order.astype(np.uint32), steps, steps), True)
        found = [b""] * self.manifest.chunks
        for step, chunk in enumerate(order.tolist()):
            self.session.advance(step, min(step + 8, len(order) - 1))
            while self.session.progress.last_ready_step() < step and not self.errors:
                self.news.clear()
                await asyncio.wait_for(self.news.wait(), 60)
            assert self.errors == []
            file = self.engine.cache.path(self.session.collection.key(chunk)).read_bytes()
            length = int(self.manifest.chunk_local_bytes[chunk]) if not self.manifest.recoded else len(file)
            found[chunk] = file[HEADER_BYTES : HEADER_BYTES + length]
        self.session.advance(len(order), len(order) - 1)
        return found


@pytest.fixture
async def engines(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[list[Engine]]:
    """Yields two engines that know each other; a parameter says which folders they serve."""
    served = [[DatasetConfig(url=str(tmp_path / name))] for name in getattr(request, "param", ())]
    (tmp_path / "token").write_text("a token")
    (tmp_path / "token").chmod(0o600)
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    async with AsyncExitStack() as stack:
        made = []
        for number, address in enumerate(addresses):
            peers = PeersConfig(members=",".join(addresses), listen=address, token_file=tmp_path / "token")
            cache = CacheConfig(directory=tmp_path / f"cache{number}", limit_bytes=64 << 20, free_floor_bytes=0)
            config = EngineConfig(cache=cache, peers=peers, datasets=tuple(served[number]) if served else ())
            made.append(await stack.enter_async_context(Engine(config)))
            await stack.enter_async_context(join_peers(made[-1]))
        await until(lambda: all(engine_statistics(engine)["peer_members"] for engine in made))
        yield made


async def until(reached: Callable[[], bool]) -> None:
    """Waits until a condition holds, for a minute at most."""
    for _ in range(1200):
        if reached():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it does not happen")


async def digests(engines: list[Engine], data: Path, **changes: object) -> set[str]:
    """Has each engine make its manifest, and returns the digests."""
    asked = {"format": "auto", "chunk_bytes": CHUNK_BYTES, **changes}
    request = GetManifest(0, [str(data)], **asked)
    return {await engine.manifest(request, lambda text, done, total: None) for engine in engines}


def write(folder: Path) -> list[bytes]:
    """Writes files of a chunk each."""
    contents = [np.random.default_rng(number).bytes(CHUNK_BYTES) for number in range(FILES)]
    folder.mkdir()
    for number, content in enumerate(contents):
        (folder / f"{number:03}.bin").write_bytes(content)
    return contents


def total(engines: list[Engine], name: str) -> int:
    return sum(int(engine_statistics(engine)[name]) for engine in engines)


async def test_two_jobs_read_the_store_once(engines: list[Engine], tmp_path: Path) -> None:
    """Of two engines with a job each, each keeps its own chunks and sends them to the other; the store sends each once.

    Every metric of peers has a series.
    """
    contents = write(tmp_path / "data")
    (digest,) = await digests(engines, tmp_path / "data")
    readers = [Reader(engine, digest, f"job {number}") for number, engine in enumerate(engines)]
    for found in await asyncio.gather(*(reader.read(seed) for seed, reader in enumerate(readers))):
        assert sorted(found) == sorted(contents)
    late = total(engines, "peer_hedge_losses")
    assert total(engines, "store_bytes") - late * CHUNK_BYTES <= FILES * CHUNK_BYTES
    assert total(engines, "peer_chunks") + late == FILES
    # What came in is what was written.
    written = total(engines, "written_bytes") - 2 * FILES * (HEADER_BYTES + 4)
    assert written == 2 * FILES * CHUNK_BYTES == total(engines, "peer_bytes") + total(engines, "store_bytes")
    values = engine_statistics(engines[0])
    assert [name for name, *_ in metrics._OF_PEERS if not make_series(NAMED[f"streamer_{name}"], values)] == []
    assert "peers" in dict(StatusView(values).lines())


@pytest.mark.slow
@pytest.mark.parametrize("engines", [["data", "data"]], indirect=True)
async def test_an_engine_without_a_job_is_a_home(engines: list[Engine], tmp_path: Path) -> None:
    """An engine without a job takes the manifest from the peer that asks, and keeps and sends its own chunks.

    The store sends each chunk once.
    """
    contents = write(tmp_path / "data")
    (digest,) = await digests(engines[:1], tmp_path / "data")
    await Reader(engines[0], digest, "first job").read(0, 20)
    await until((tmp_path / "cache1" / "manifests" / digest).is_dir)
    assert sorted(await Reader(engines[0], digest, "second job").read(1)) == sorted(contents)
    assert engine_statistics(engines[1])["fetched_for_peers"] > 0
    late = total(engines, "peer_hedge_losses")
    assert total(engines, "store_bytes") - late * CHUNK_BYTES == FILES * CHUNK_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("engines", [["data", "other"]], indirect=True)
async def test_no_manifest_of_what_is_not_served(
    engines: list[Engine], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer cannot make an engine read a url that its configuration does not name; the engine says so once."""
    caplog.set_level(logging.INFO)
    contents = write(tmp_path / "data")
    (digest,) = await digests(engines[:1], tmp_path / "data")
    assert sorted(await Reader(engines[0], digest, "job").read(0)) == sorted(contents)
    await until(lambda: "not kept for peers" in caplog.text)
    (said,) = [text for text in caplog.messages if "not kept for peers" in text]
    assert "is not among the datasets of this service" in said
    assert not (tmp_path / "cache1" / "manifests" / digest).exists()
    assert engine_statistics(engines[0])["store_bytes"] == FILES * CHUNK_BYTES


@pytest.mark.slow
async def test_recoded_chunks_travel_as_records(engines: list[Engine], tmp_path: Path) -> None:
    """Chunks are recoded once and sent to the other engine as records, whose length the answer alone tells."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "data").mkdir()
    for number in range(4):
        rows = [np.random.default_rng([number, row]).bytes(2000) for row in range(200)]
        parquet.write_table(pyarrow.table({"data": rows}), tmp_path / "data" / f"{number}.parquet", row_group_size=50)
    (digest,) = await digests(engines, tmp_path / "data", format="parquet")
    first, second = (Reader(engine, digest, f"job {number}") for number, engine in enumerate(engines))
    chunks = await first.read(0)
    fetched = total(engines, "recoded_chunks")
    assert await second.read(1) == chunks
    assert total(engines, "recoded_chunks") - fetched <= total(engines, "peer_hedge_losses")
    assert total(engines, "peer_chunks") >= len(chunks) - 2


def test_without_peers_nothing_of_them_is_imported(tmp_path: Path) -> None:
    """An engine without peers imports neither the code of peers nor aiohttp, as a service or for a trainer."""
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from streamer.config import CacheConfig, EngineConfig\n"
        "from streamer.service.lifecycle import EngineService\n"
        "def listening(): life._leave.set()\n"
        "cache = CacheConfig(directory=Path(sys.argv[1]) / 'c', limit_bytes=1 << 24, free_floor_bytes=0)\n"
        "life = EngineService(EngineConfig(cache=cache, socket_path=Path(sys.argv[1]) / 's'), listening)\n"
        "asyncio.run(life.run())\n"
        "print([name for name in sys.modules if 'peers' in name or 'placement' in name or 'aiohttp' in name])\n"
    )
    found = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n", found.stderr


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
