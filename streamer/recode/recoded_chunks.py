"""Reads recoded chunks into memory, and keeps them for a while, for clients that look at single samples.

`engine/engine.py` uses it for reads without a session, where the format of the dataset has blocks.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from streamer.base.concurrency import in_thread
from streamer.cache.chunk_cache import ChunkCache
from streamer.cache.chunk_files import verify_file
from streamer.errors import IntegrityError
from streamer.fetch import Fetcher
from streamer.formats.chunkfile import HEADER_BYTES, RecordTable
from streamer.manifest.model import Chunk
from streamer.manifest.table import Manifest
from streamer.recode.messages import RecodeJob
from streamer.recode.pool import RecoderPool
from streamer.recode.results import Recoded

# Chunks up to these bytes together stay until there was no read for `_KEPT_SECONDS`: the next look is often at the next
# sample of the same chunk.
_KEPT_BYTES = 256 << 20
_KEPT_SECONDS = 60.0


class RecodedChunks:
    """Holds the chunks that were read last. Owned by the engine, on its loop.

    Args:
        cache: is asked for the chunk first.
        recoders: recode chunks that are not cached.
    """

    def __init__(self, cache: ChunkCache, recoders: RecoderPool) -> None:
        self._cache = cache
        self._recoders = recoders
        self._kept: OrderedDict[bytes, Recoded] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        # Chunks are recoded one at a time: one may be large.
        self._loading = asyncio.Lock()

    def __repr__(self) -> str:
        return f"RecodedChunks({len(self._kept)})"

    async def get(self, manifest: Manifest, chunk: Chunk, fetcher: Fetcher) -> Recoded:
        """Returns a chunk from memory or from its chunk file, or else fetches and recodes it; caches no file.

        One call runs at a time, and the others wait.

        Args:
            manifest: manifest of the dataset, whose chunks are recoded.
            chunk: a chunk of it.
            fetcher: reads the store of the dataset.

        Raises:
            StoreError: the chunk cannot be fetched.
            RecodeError: the chunk cannot be decoded.
            ConfigError: the format, or a library of it, is not installed where the engine runs.
            OSError: the memory of a recoder cannot grow, or the chunk file cannot be read.
        """
        async with self._loading:
            found = self._kept.get(chunk.key)
            if found is None and (path := self._cache.path(chunk.key)) is not None:
                with suppress(IntegrityError, FileNotFoundError):  # a wrong file is reported by sessions that read it
                    found = await in_thread(None, _read_file, path, chunk)
            if found is None:
                now = asyncio.get_running_loop().time()
                with await fetcher.fetch(chunk, shared=True) as fetched:
                    job = RecodeJob.make(manifest, chunk)
                    async with self._recoders.recode(job, chunk, fetched.content, due=lambda: now) as recoded:
                        found = Recoded(memoryview(await in_thread(None, bytes, recoded.content)), recoded.table)
            self._kept[chunk.key] = found
            self._kept.move_to_end(chunk.key)
            while sum(len(each.content) for each in self._kept.values()) > _KEPT_BYTES:
                self._kept.popitem(last=False)
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(_KEPT_SECONDS, self._kept.clear)
            return found


def _read_file(path: Path, chunk: Chunk) -> Recoded:
    """Reads and checks a chunk file; raises IntegrityError, and FileNotFoundError if it has been evicted."""
    header = verify_file(path, chunk.key)
    with path.open("rb") as file:
        file.seek(HEADER_BYTES)
        content = memoryview(file.read(header.local_bytes))
    try:
        return Recoded(content, RecordTable.decode(content, chunk.samples, chunk.codec, len(content)))
    except ValueError as error:
        raise IntegrityError(f"{path}: not {chunk.samples} samples: {error}", where=str(path)) from error
