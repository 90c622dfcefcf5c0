"""Chunk sources that must behave alike: an engine in this process, one with fetch processes, one behind its socket.

The bucket of a moto server is here as well. What lives as long as the session does not count as left over where it is
there before the test: tests that use it say so for the whole file.
"""

from __future__ import annotations

import asyncio
import functools
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import botocore.session
import msgspec
import numpy as np
import obstore
import pytest

from streamer.client.chunk_reader import ChunkReader, WantedSample
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.config import CacheConfig, EngineConfig
from streamer.engine.engine import Engine
from streamer.engine.statistics import engine_statistics
from streamer.errors import StreamerError
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest, OpenSession
from streamer.wire.schedule import EpochSchedule
from streamer.wire.store_options import NO_OPTIONS


class InProcessSession:
    """Stands for the client's session: it drives an engine session from another thread, as a client does."""

    def __init__(self, source: InProcessSource, request: OpenSession) -> None:
        self._source = source
        self._news = threading.Condition()
        self._ready, self._rejects, self._sent, self._error = -1, 0, 0, None
        self._done, self._want = 0, -1
        self._session = source.call(lambda: source.engine.open_session(request, self._on_ready, self._on_error))

    def _on_ready(self, through: int, rejects: int) -> None:
        with self._news:
            if rejects == self._sent:
                self._ready = through
                self._news.notify_all()

    def _on_error(self, error: StreamerError) -> None:
        with self._news:
            self._error = error
            self._news.notify_all()

    def extend(self, schedule: EpochSchedule) -> None:
        self._source.call(lambda: self._session.extend(schedule, True))

    def want(self, step: int) -> None:
        self._want = max(self._want, step)
        self._source.call(lambda: self._session.advance(self._done, self._want))

    def wait(self, step: int, timeout_seconds: float) -> None:
        self.want(step)
        deadline = time.monotonic() + timeout_seconds
        with self._news:
            while self._error is None and self._ready < step:
                if not self._news.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"step {step}: ready={self._ready}")
        if self._error is not None:
            raise self._error

    def done(self, step: int) -> None:
        self._done = step
        self._source.call(lambda: self._session.advance(self._done, self._want))

    def reject(self, chunk: int, reason: str) -> None:
        with self._news:
            self._ready = self._done - 1
            self._sent += 1
        self._source.call(lambda: self._session.reject(chunk, reason))

    def close(self) -> None:
        self._source.call(self._session.close)


class InProcessSource:
    """Stands for a client and its engine: a real engine on a loop in a thread, without a socket."""

    def __init__(self, folder: Path, cache_bytes: int, processes: int = 0) -> None:
        self._ready = threading.Event()
        self._config = EngineConfig(
            cache=CacheConfig(directory=folder / "cache", limit_bytes=cache_bytes),
            settle_seconds=0.0,
            fetch_processes=processes,
        )
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="engine")
        self._thread.start()
        self._ready.wait(60)

    async def _live(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with Engine(self._config) as self.engine:
            self._ready.set()
            await self._end.wait()

    def call(self, function):
        async def run():
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    def manifest(self, url: str) -> Manifest:
        request = GetManifest(0, [url], "auto")
        found = self.engine.manifest(request, lambda text, done, total: None)
        digest = asyncio.run_coroutine_threadsafe(found, self._loop).result(60)
        return Manifest.open(self.engine.cache.root / "manifests" / digest)

    def open_session(self, spec: OpenSession) -> InProcessSession:
        return InProcessSession(self, msgspec.structs.replace(spec, job="job"))

    def read(self, dataset: str, chunk: int, start: int, stop: int, *, boundaries: bool = False) -> bytes:
        found = self.engine.read(dataset, NO_OPTIONS, chunk, None if boundaries else (start, stop))
        return asyncio.run_coroutine_threadsafe(found, self._loop).result(60)

    def roots(self) -> list[Path]:
        return list(self.engine.cache.roots)

    def statistics(self) -> dict[str, object]:
        return self.call(lambda: engine_statistics(self.engine))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(60)


class PooledSource(InProcessSource):
    """An engine whose chunks are fetched and published by two processes, from the first one on."""

    def __init__(self, folder: Path, cache_bytes: int) -> None:
        super().__init__(folder, cache_bytes, processes=2)
        deadline = time.monotonic() + 60
        while self.statistics()["fetch_processes"] < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def close(self) -> None:
        counts = self.statistics()
        super().close()
        assert (counts["fetch_processes"], counts["fetch_process_crashes"]) == (2, 0)


class SocketSource(EngineClient):
    """The real client of an engine process, whose `manifest` takes a url and returns the opened manifest."""

    def __init__(self, folder: Path, cache_bytes: int) -> None:
        super().__init__(
            ClientSettings(
                cache_dir=folder / "cache", runtime_dir=folder / "run", cache_bytes=cache_bytes, grace_seconds=0.1
            )
        )

    def manifest(self, url: str) -> Manifest:
        return Manifest.open(super().manifest(GetManifest(0, [url], "auto")))


@pytest.fixture(
    params=[
        pytest.param(InProcessSource, id="in-process"),
        pytest.param(PooledSource, id="processes", marks=pytest.mark.slow),
        pytest.param(SocketSource, id="socket"),
    ]
)
def make_source(request, tmp_path):
    """Makes sources with a given cache limit, and closes them after the test."""
    made = []

    def make(cache_bytes: int = 64 << 20):
        made.append(request.param(tmp_path, cache_bytes))
        return made[-1]

    yield make
    for source in made:
        source.close()


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder of 60 files of up to 100 KB in 3 classes: about 12 chunks."""
    random = np.random.default_rng(5)
    for number in range(60):
        path = tmp_path / "data" / f"class{number % 3}" / f"{number:03}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(int(random.integers(0, 100_000))))
    return tmp_path / "data"


@pytest.fixture
def read_chunk():
    """Reads every sample of a chunk through the chunk reader."""

    def read(source, manifest: Manifest, chunk: int) -> list[bytes]:
        offsets = manifest.sample_offsets(chunk)
        wanted = [WantedSample(i, int(offsets[i]), int(offsets[i + 1])) for i in range(len(offsets) - 1)]
        key = manifest.chunk_keys[chunk].tobytes()
        found = ChunkReader(source.roots()).read(
            key, int(manifest.chunk_local_bytes[chunk]), int(manifest.chunk_samples[chunk]), wanted
        )
        return [bytes(view) for view in found]

    return read


@pytest.fixture(scope="session")
def warm_runtime() -> None:
    """Starts obstore's runtime, whose threads and descriptors live as long as the process."""
    store = obstore.store.MemoryStore()
    asyncio.run(_put(store))


async def _put(store: obstore.store.MemoryStore) -> None:
    await obstore.put_async(store, "warm", b"")


@pytest.fixture(scope="session", autouse=True)
def _models_read_once() -> Iterator[None]:
    """Keeps botocore's description of S3, which each new s3fs filesystem parses again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", functools.cache(botocore.session.create_loader))
        yield


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """The url of a moto server, which stands for S3 and checks signatures only where a test asks for that."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    endpoint = _announced(process)
    assert process.stdout is not None
    # It writes a line for each request, and would stand still where nobody reads them: after 64 KiB.
    reader = threading.Thread(target=process.stdout.read, name="moto")
    reader.start()
    try:
        yield endpoint
    finally:
        process.terminate()
        process.wait(60)
        reader.join(60)
        process.stdout.close()


def _announced(process: subprocess.Popen[str]) -> str:
    """Returns the url that moto's server has written when it listens."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"Running on (http://127\.0\.0\.1:\d+)", line):
            return found[1]
    pytest.fail("moto's server ended before it listened")
