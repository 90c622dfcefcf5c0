"""Advice for a cache that cannot hold what must be open at once; pure."""

from __future__ import annotations

from pathlib import Path

import msgspec

from streamer.config import enough_bytes, format_bytes
from streamer.errors import CacheFullError


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """A cache and what is needed of it.

    Attributes:
        root: the folder.
        limit_bytes: what chunk files may take.
        whole_bytes: the limit of the whole folder.
        overhead_bytes: what manifests, the catalog and what is being sent to peers take of it.
        wanted_bytes: what one consumer has open, and one more chunk.
        others_bytes: the same of the sessions that are open.
        to_come: consumers of the same job on this machine that have no session yet.
    """

    root: Path
    limit_bytes: int
    whole_bytes: int
    overhead_bytes: int
    wanted_bytes: int
    others_bytes: int
    to_come: int

    def error(self) -> CacheFullError:
        """Returns the error, with a limit that is enough for all of them."""
        needed = self.others_bytes + self.wanted_bytes * (1 + self.to_come)
        need = f"{format_bytes(self.wanted_bytes)} for the chunks that one reader has open and one more"
        if needed > self.wanted_bytes:
            need += f", {format_bytes(needed)} for all readers of this machine"
        details = {"limit_bytes": self.limit_bytes, "wanted_bytes": self.wanted_bytes, "needed_bytes": needed}
        least = needed + self.overhead_bytes
        return CacheFullError(
            f"the limit of {format_bytes(self.whole_bytes)} is too small for the cache {self.root}. Needed are {need}, "
            f"besides {format_bytes(self.overhead_bytes)} of manifests and catalog. "
            f"Set cache_bytes to at least {enough_bytes(least)}, or {_LESS}",
            least_bytes=least,
            **details,
        )


_LESS = "pass an Order with a smaller shuffle_window or fewer lanes on all ranks"
