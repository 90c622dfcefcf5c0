"""Keeps the chunks whose bytes an index has read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamer.errors import CacheError
from streamer.formats import chunkfile
from streamer.manifest.protocols import IndexedChunk
from streamer.manifest.table import Manifest

logger = logging.getLogger(__name__)


class WarmTarget(Protocol):
    """Takes chunks whose bytes were read for an index."""

    def room_bytes(self) -> int:
        """Bytes that fit into the cache without an eviction."""
        ...

    async def keep(self, key: bytes, parts: list[memoryview], sample_offsets: npt.NDArray[np.int64]) -> None:
        """Publishes a chunk without a session."""
        ...

    async def make_room(self, share: float) -> None:
        """Removes this share of the chunks, but none that is open."""
        ...

    def adopt(self, digest: str, kept: Mapping[bytes, int]) -> None:
        """Chunks that were published without a session (key: file bytes) belong to this manifest."""
        ...


class KeptChunks:
    """Chunks whose bytes were read for the index: kept while there is room, handed to the policy at the end."""

    def __init__(self, target: WarmTarget) -> None:
        self._target = target
        self._kept: dict[bytes, int] = {}
        self._kept_bytes = 0
        self._refused = 0

    async def keep(self, chunk: IndexedChunk, parts: list[memoryview]) -> None:
        """Publishes one chunk if it fits beside what the cache holds already."""
        size = chunkfile.file_bytes(chunk.local_bytes, chunk.samples)
        if chunk.sample_offsets is None or self._target.room_bytes() - self._kept_bytes < 2 * size:
            return
        try:
            await self._target.keep(chunk.key, parts, chunk.sample_offsets)
            self._kept_bytes += 0 if chunk.key in self._kept else size
            self._kept[chunk.key] = size
        except CacheError as error:
            if not self._refused:
                logger.info("chunk %s is not kept from the index: %s", chunk.key.hex(), error)
            self._refused += 1

    def hand_off(self, manifest: Manifest | None) -> None:
        """Adds the kept chunks to the policy; those of no manifest (a damaged tar's) have no owner, as after a kill."""
        if self._refused > 1:
            logger.info("%d chunks were not kept from the index", self._refused)
        own = set[bytes]() if manifest is None else {key.tobytes() for key in manifest.chunk_keys}
        digest = "" if manifest is None else manifest.digest
        for owner, kept in ((digest, self._kept.keys() & own), ("", self._kept.keys() - own)):
            if kept:
                self._target.adopt(owner, {key: self._kept[key] for key in kept})
