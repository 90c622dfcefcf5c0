"""Interfaces of the manifest builder: its inputs, and its progress callbacks.

The builder knows no store and no format; it is handed a `Lister`, a `RangeReader` and an `Indexer`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from streamer.manifest.model import Chunk, Extent, ObjectRecord

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Need(msgspec.Struct, frozen=True):
    """An indexer asks for the bytes `[start, stop)` of the object it indexes; it gets them by `send`."""

    start: int
    stop: int


class Span(msgspec.Struct, frozen=True):
    """One sample in its object: the half-open byte range `[start, stop)`."""

    start: int
    stop: int


# Yields what it needs, is sent the bytes, yields the samples in order of position.
Indexing = Generator[Need | Span, memoryview | None, None]


class Indexer(Protocol):
    """The part of a format that the builder needs."""

    @property
    def name(self) -> str:
        """Name of the format, as the user writes it."""
        ...

    @property
    def whole_objects(self) -> bool:
        """True: every object is one sample, and nothing needs to be read."""
        ...

    def accepts(self, key: str) -> bool:
        """Whether an object found by listing a prefix is part of the dataset."""
        ...

    def index(self, target: ObjectRecord, start: int = 0) -> Indexing:
        """Finds the samples of one object: yields `Need`s (answered with bytes) and `Span`s.

        Needs go forward and never ask for a byte twice; spans are in order and do not overlap.

        Args:
            target: the object.
            start: where a sample begins that an earlier run over this object found; yields it and all after it.

        Raises:
            ManifestError: an archive that cannot be read; names object and offset.
        """
        ...


class Lister(Protocol):
    """Lists objects; every ObjectStore is one."""

    def list(self, url: str) -> AsyncIterator[Sequence[ObjectRecord]]:
        """Yields pages of the objects below `url`, with size and version."""
        ...


class RangeReader(Protocol):
    """Reads ranges, with retries and pinned versions; a Fetcher is one."""

    async def read(self, extent: Extent) -> bytes:
        """Returns exactly the bytes of `extent`."""
        ...


class Estimate(msgspec.Struct, frozen=True):
    """The cost of a build, known after the listing.

    Attributes:
        objects: how many will be indexed.
        total_bytes: their sizes together.
        read_bytes: the most bytes that will be read (0: the listing is enough).
        requests: the most range requests, of 8 MiB each.
        chunk_bytes: what the chunks will be cut to.
    """

    objects: int
    total_bytes: int
    read_bytes: int
    requests: int
    chunk_bytes: int


class Progress(msgspec.Struct, frozen=True):
    """How far a build is.

    Attributes:
        objects_done: indexed objects.
        objects: all objects listed.
        bytes_done: bytes of the objects that were passed, read or jumped over.
        total_bytes: sizes of all objects together.
        read_bytes: bytes read so far.
        samples: samples of the indexed objects.
    """

    objects_done: int
    objects: int
    bytes_done: int
    total_bytes: int
    read_bytes: int
    samples: int


class IndexedChunk(Chunk, frozen=True):
    """A chunk whose bytes were read for the index, before its number is known.

    `index` and `first_sample` are -1: they depend on objects that are still being read. Key, extents, lengths
    and `sample_offsets` (int64, samples + 1 chunk-local boundaries) are final, which is all a cache needs.
    """

    sample_offsets: NDArray[np.int64] | None = None


OnEstimate = Callable[[Estimate], None]
OnProgress = Callable[[Progress], None]
OnChunk = Callable[[IndexedChunk, list[memoryview]], Awaitable[None]]
ChooseFormat = Callable[[Iterable[str]], Indexer]
