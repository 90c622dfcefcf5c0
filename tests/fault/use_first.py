"""A first use without a manifest: `use_first.py DATA CACHE LIMIT_BYTES HALT`; prints what it asks the store for.

Windows of 128 KiB instead of 8 MiB. One JSON list a line: ["index" or "epoch", file, start, stop] for each range,
["report", text], ["manifest", digest], and with HALT=1 ["halted", file] for each odd-numbered file, of which the
second half is never answered.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import numpy as np

from streamer.config import CacheConfig, EngineConfig, FetchConfig
from streamer.engine import url_allowlist
from streamer.engine.engine import Engine
from streamer.errors import StreamerError
from streamer.formats import reading
from streamer.indexing import container_rows as containers
from streamer.store.base import Get, Take
from streamer.store.local_store import LocalStore
from streamer.wire.messages import GetManifest, OpenSession
from streamer.wire.schedule import EpochSchedule

WINDOW_BYTES, CHUNK_BYTES = 128 << 10, 64 << 10
STEPS = 50


def say(*words: object) -> None:
    print(json.dumps(words), flush=True)


class Told(LocalStore):
    """Local files; says what it is asked for."""

    def __init__(self, halt: bool) -> None:
        super().__init__()
        self.phase = "index"
        self._halt = halt

    async def get(self, asked: Get, take: Take) -> None:
        path = Path(asked.target.url)
        if self._halt and int(path.stem) % 2 and asked.start >= asked.target.size // 2:
            say("halted", path.name)
            await asyncio.Event().wait()
        say(self.phase, path.name, asked.start, asked.stop)
        await super().get(asked, take)


async def train(engine: Engine, digest: str) -> None:
    """Uses every chunk once, in an order of its own."""
    news = asyncio.Event()
    errors: list[StreamerError] = []

    def failed(error: StreamerError) -> None:
        errors.append(error)
        news.set()

    session = engine.open_session(
        OpenSession(0, job="job", dataset=digest, consumer="rank"), lambda *reached: news.set(), failed
    )
    count = session.collection.datasets[0].manifest.chunks
    chunks = np.random.default_rng(3).permutation(count).astype(np.uint32)
    first = np.sort(np.arange(count, dtype=np.int64) * STEPS // count)
    session.extend(EpochSchedule(0, chunks, first, np.minimum(first + 2, STEPS - 1)), True)
    for step in range(STEPS):
        session.advance(step, step + 4)
        while session.progress.last_ready_step() < step and not errors:
            news.clear()
            await news.wait()
    session.close()
    if errors:
        raise errors[0]


async def main(data: str, cache: str, limit_bytes: str, halt: str) -> None:
    """Index, then one epoch."""
    reading.READ_BYTES = containers.WINDOW_BYTES = WINDOW_BYTES
    store = Told(halt == "1")
    url_allowlist.open_root = lambda *_, **__: store
    cached = CacheConfig(directory=Path(cache), limit_bytes=int(limit_bytes))
    config = EngineConfig(cache=cached, fetch=FetchConfig(hedge=False), grace_seconds=None, settle_seconds=0.0)
    request = GetManifest(0, [f"{data}/"], "auto", chunk_bytes=CHUNK_BYTES)
    async with Engine(config) as engine:
        digest = await engine.manifest(request, lambda text, *_: say("report", text))
        say("manifest", digest)
        store.phase = "epoch"
        await train(engine, digest)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
