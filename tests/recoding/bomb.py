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
from streamer.engine.manifests.manifest_request import ManifestRequest
from streamer.errors import StreamerError


def most_bytes(who: int) -> int:
    return resource.getrusage(who).ru_maxrss << 10


async def main(folder: str, kind: str, cache: str) -> None:
    said = ""
    async with Engine(EngineConfig(cache=CacheConfig(directory=Path(cache)))) as engine:
        # What every index imports is not counted.
        request = ManifestRequest(urls=(f"{folder}/good",), format=kind)
        await engine.manifest(request, lambda text, done, total: None)
        before = most_bytes(resource.RUSAGE_SELF)
        try:
            await engine.manifest(ManifestRequest(urls=(f"{folder}/bomb",), format=kind), lambda *_: None)
        except StreamerError as error:
            said = f"{type(error).__name__}: {error}"
        grown = most_bytes(resource.RUSAGE_SELF) - before
    print(json.dumps({"said": said, "engine": grown, "recoder": most_bytes(resource.RUSAGE_CHILDREN)}))


asyncio.run(main(*sys.argv[1:]))
