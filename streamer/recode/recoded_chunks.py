"""Recoded chunks in memory, for looking at single samples outside of sessions."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.cache.chunk_cache import ChunkCache
from streamer.cache.verify import verify_file
from streamer.errors import IntegrityError, ProtocolError
from streamer.fetch import Fetcher
from streamer.formats.chunkfile import HEADER_BYTES, START_BYTES, decode_starts
from streamer.manifest.model import Chunk
from streamer.manifest.table import Manifest
from streamer.recode.messages import Job
from streamer.recode.pool import RecoderPool
from streamer.threads import in_thread

# So that to look at the next sample costs nothing.
_KEPT_BYTES = 256 << 20
_KEPT_SECONDS = 60.0


class RecodedChunk(msgspec.Struct, frozen=True):
    """A chunk in memory.

    Attributes:
        content: records, then the table of their starts.
        offsets: int64, shape (samples + 2,): boundaries of the records, and of the table.
    """

    content: bytes
    offsets: NDArray[np.int64]

    def read(self, span: tuple[int, int] | None) -> bytes:
        """The bytes `[start, stop)`; None: the boundaries of the samples, little-endian uint32, samples + 1 of them.

        Raises:
            ProtocolError: it does not have these bytes.
        """
        if span is None:
            return self.offsets[:-1].astype("<u4").tobytes()
        if not 0 <= span[0] <= span[1] <= len(self.content):
            raise ProtocolError(f"bytes {span} of a chunk of {len(self.content)}")
        return self.content[slice(*span)]


class RecodedChunks:
    """The chunks that were looked at last. Owned by the engine, on its loop.

    Args:
        cache: may have them.
        recoders: make the others.
    """

    def __init__(self, cache: ChunkCache, recoders: RecoderPool) -> None:
        self._cache = cache
        self._recoders = recoders
        self._kept: OrderedDict[bytes, RecodedChunk] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        # One at a time: a chunk may be large.
        self._loading = asyncio.Lock()

    def __repr__(self) -> str:
        return f"RecodedChunks({len(self._kept)})"

    async def get(self, manifest: Manifest, chunk: Chunk, fetcher: Fetcher) -> RecodedChunk:
        """From the cache; else fetched, and recoded in memory.

        Raises:
            StoreError, RecodeError: it cannot be had.
        """
        async with self._loading:
            found = self._kept.get(chunk.key) or await self._local(chunk) or await self._made(manifest, chunk, fetcher)
            self._keep(chunk.key, found)
            return found

    async def _local(self, chunk: Chunk) -> RecodedChunk | None:
        """From the chunk file; None: it is not here, or wrong."""
        if (path := self._cache.path(chunk.key)) is None:
            return None
        try:
            return await in_thread(None, _read_file, path, chunk)
        except (IntegrityError, FileNotFoundError):  # its readers report it
            return None

    async def _made(self, manifest: Manifest, chunk: Chunk, fetcher: Fetcher) -> RecodedChunk:
        now = asyncio.get_running_loop().time()
        with await fetcher.fetch(chunk, shared=True) as fetched:
            job = Job.of(manifest, chunk)
            async with self._recoders.recode(job, chunk, fetched.content, due=lambda: now) as recoded:
                return RecodedChunk(await in_thread(None, bytes, recoded.content), recoded.offsets)

    def _keep(self, key: bytes, found: RecodedChunk) -> None:
        self._kept[key] = found
        self._kept.move_to_end(key)
        while sum(len(each.content) for each in self._kept.values()) > _KEPT_BYTES:
            self._kept.popitem(last=False)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_KEPT_SECONDS, self._kept.clear)


def _read_file(path: Path, chunk: Chunk) -> RecodedChunk:
    """All of a chunk file, checked.

    Raises:
        IntegrityError: it is wrong.
        FileNotFoundError: it has been evicted.
    """
    header = verify_file(path, chunk.key)
    if header.samples != chunk.samples + 1:
        raise IntegrityError(f"{path}: {header.samples - 1} samples, expected {chunk.samples}", where=str(path))
    with path.open("rb") as file:
        file.seek(HEADER_BYTES)
        content = file.read(header.local_bytes)
    return RecodedChunk(content, decode_starts(content[len(content) - START_BYTES * chunk.samples :], len(content)))
