"""Values that `CachePolicy` takes and returns: limits, answers, what an event freed, statistics."""

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
    """Fetch the chunk: its bytes are reserved. Unlink `victims`, then publish; end with `publish` or `drop_fetch`.

    Attributes:
        key: the chunk to fetch.
        place: kept (stays after its use) or transit (leaves after its use unless promoted).
        victims: keys of chunks that are no longer in the policy; their files go before the new one is written.
    """

    key: bytes
    place: CachePart
    victims: tuple[bytes, ...] = ()


class Wait(msgspec.Struct, frozen=True):
    """Not now: ask again when the policy has changed.

    Attributes:
        fetching: True if a fetch of this chunk is running, which `publish` or `drop_fetch` will end.
            False if there is no space: ask again after any `release`, `publish`, `drop_fetch` or `close_session`.
    """

    key: bytes
    fetching: bool


Answer = Hit | Admit | Wait


class CacheLimits(msgspec.Struct, frozen=True):
    """Limits of chunk files, as `table.charge` counts them (catalog and manifests already subtracted).

    Attributes:
        limit_bytes: C: the space of the disk, at most the user's limit.
        passing_bytes: limit for open chunks and look-ahead: `limit_bytes` and the memory for chunks that the disk
            refuses.
        max_bytes: the user's limit: chunks that must be open may take it, even on a disk that other programs have
            filled.
    """

    limit_bytes: int
    passing_bytes: int
    max_bytes: int

    @classmethod
    def make(cls, limit: CacheLimits | int) -> CacheLimits:
        """Returns the limits; a number becomes those of a disk that no other program fills."""
        return cls(limit, limit, limit) if isinstance(limit, int) else limit


class Freed(msgspec.Struct, frozen=True):
    """Chunks that an event released.

    Attributes:
        victims: keys whose files are to be unlinked; the policy has forgotten them.
        promoted: keys that went from transit to kept: a flag, no copy, nothing to do on disk.
    """

    victims: tuple[bytes, ...] = ()
    promoted: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyStatistics:
    """Where the bytes are and what has been decided so far.

    Sizes are bytes as the disk counts them. `needed_bytes` counts each use once, `admitted_bytes` each fetch, so
    `hit_rate` is 1 - bytes fetched / bytes needed.
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
