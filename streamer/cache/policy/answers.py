"""Defines the values that `CachePolicy` takes and returns: limits, answers, what an event freed, statistics.

The cache (`cache/chunk_cache.py`, `cache/disk_space.py`), the engine, `peers/serving.py` and
`service/history/recorder.py` make and read them; `tools/planning/simulate.py` does, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec


class CachePart(Enum):
    """The part of the cache that a chunk is admitted to."""

    KEPT = "kept"
    TRANSIT = "transit"


class Hit(msgspec.Struct, frozen=True):
    """The chunk is already on this machine."""

    key: bytes


class Admit(msgspec.Struct, frozen=True):
    """The chunk is to be fetched: its bytes are reserved. The caller ends the fetch by `publish` or `drop_fetch`.

    Attributes:
        key: key of the chunk to fetch.
        place: the part that it enters: kept (it stays after its use) or transit (it leaves, unless it is promoted).
        victims: keys of chunks that were evicted for it. The caller unlinks their files before it writes the new one.
    """

    key: bytes
    place: CachePart
    victims: tuple[bytes, ...] = ()


class Wait(msgspec.Struct, frozen=True):
    """The chunk cannot be had now: the caller asks again when the policy has changed.

    Attributes:
        key: key of the chunk.
        fetching: True if a fetch of this chunk is running, which `publish` or `drop_fetch` will end.
            False if there is no space: ask again after any `release`, `publish`, `drop_fetch` or `close_session`.
    """

    key: bytes
    fetching: bool


Answer = Hit | Admit | Wait


class CacheLimits(msgspec.Struct, frozen=True):
    """Limits of chunk files in bytes, as `table.charge` counts them, without catalog and manifests.

    Attributes:
        limit_bytes: limit for all chunks, C in `cache_policy.py`: the space of the disk, at most the user's limit.
        passing_bytes: limit for open chunks and look-ahead: that space, and the memory for chunks that the disk
            refuses.
        max_bytes: limit for chunks that must be open, even on a disk that other programs have filled: the user's.
    """

    limit_bytes: int
    passing_bytes: int
    max_bytes: int

    @classmethod
    def make(cls, limit: CacheLimits | int) -> CacheLimits:
        """Returns the limits as they are; a number (bytes) becomes all three limits."""
        return cls(limit, limit, limit) if isinstance(limit, int) else limit


class Freed(msgspec.Struct, frozen=True):
    """Chunks that were evicted or promoted by one call of the policy.

    Attributes:
        victims: keys of the evicted chunks, whose files the caller unlinks.
        promoted: keys of chunks that went from transit to kept, for which nothing is to be done on the disk.
    """

    victims: tuple[bytes, ...] = ()
    promoted: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyStatistics:
    """Where the bytes of the cache are, and what the policy has decided since the start.

    Bytes are counted as `table.charge` does.

    Attributes:
        limit_bytes: C, the limit.
        staging_bytes: S, the size of the transit part.
        kept_bytes, transit_bytes: bytes of the chunks of each part, with those that are being fetched to it.
        open_bytes: bytes of the chunks that are open.
        kept_chunks, transit_chunks: number of chunks in each part that are fetched.
        fetching_chunks: number of chunks that are being fetched to either part.
        sessions: number of open sessions.
        needs, needed_bytes: number of uses of sessions that are counted, and bytes of their chunks. A use counts once,
            at its first answer that does not lack space.
        hits: number of those uses that needed no new fetch.
        admitted_bytes, admitted_kept_bytes: bytes of the chunks that those sessions had fetched, and of those to kept.
            A chunk counts each time that it is fetched, even if the fetch fails.
        evicted_chunks: number of chunks that were evicted.
        promoted_chunks: number of chunks that went from transit to kept.
        scheduled_evicted_chunks: number of kept chunks that were evicted before a scheduled use.
    """

    limit_bytes: int
    staging_bytes: int
    kept_bytes: int
    transit_bytes: int
    open_bytes: int
    kept_chunks: int
    transit_chunks: int
    fetching_chunks: int
    sessions: int
    needs: int
    hits: int
    needed_bytes: int
    admitted_bytes: int
    admitted_kept_bytes: int
    evicted_chunks: int
    promoted_chunks: int
    scheduled_evicted_chunks: int

    @property
    def hit_rate(self) -> float:
        """Share of the needed bytes that no fetch was made for; 0 before the first need."""
        return 1.0 - self.admitted_bytes / self.needed_bytes if self.needed_bytes else 0.0
