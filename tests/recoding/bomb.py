"""Indexes a folder in an engine of this process; prints what it said, and the memory that engine and recoders took.

Arguments: the folder, the format, the cache.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from pathlib import Path

from streamer.config import CacheConfig, EngineConfig
from streamer.engine.engine import Engine
from streamer.errors import StreamerError
from streamer.wire.messages import GetManifest


def most_bytes(who: int) -> int:
    return resource.getrusage(who).ru_maxrss << 10


async def main(folder: str, kind: str, cache: str) -> None:
    said = ""
    async with Engine(EngineConfig(cache=CacheConfig(directory=Path(cache)))) as engine:
        # What every index imports is not counted.
        request = GetManifest(0, [f"{folder}/good"], kind)
        await engine.manifest(request, lambda text, done, total: None)
        before = most_bytes(resource.RUSAGE_SELF)
        try:
            await engine.manifest(GetManifest(0, [f"{folder}/bomb"], kind), lambda *_: None)
        except StreamerError as error:
            said = f"{type(error).__name__}: {error}"
        grown = most_bytes(resource.RUSAGE_SELF) - before
    print(json.dumps({"said": said, "engine": grown, "recoder": most_bytes(resource.RUSAGE_CHILDREN)}))


asyncio.run(main(*sys.argv[1:]))
