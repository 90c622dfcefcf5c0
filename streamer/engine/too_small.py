"""Advice for a cache that cannot hold what must be open at once; pure."""

from __future__ import annotations

from pathlib import Path

from streamer.config import enough_bytes, format_bytes
from streamer.errors import CacheFullError


def cache_too_small(
    *,
    root: Path,
    limit_bytes: int,
    whole_bytes: int,
    overhead_bytes: int,
    wanted_bytes: int,
    others_bytes: int,
    to_come: int,
) -> CacheFullError:
    """Returns the error of a cache that is too small, with a limit that is enough for all consumers.

    Args:
        root: the folder.
        limit_bytes: what chunk files may take.
        whole_bytes: the limit of the whole folder.
        overhead_bytes: what manifests, the catalog and what is being sent to peers take of it.
        wanted_bytes: what one consumer has open, and one more chunk.
        others_bytes: the same of the sessions that are open.
        to_come: consumers of the same job on this machine that have no session yet.
    """
    needed = others_bytes + wanted_bytes * (1 + to_come)
    need = f"{format_bytes(wanted_bytes)} for the chunks that one reader has open and one more"
    if needed > wanted_bytes:
        need += f", {format_bytes(needed)} for all readers of this machine"
    least = needed + overhead_bytes
    return CacheFullError(
        f"the limit of {format_bytes(whole_bytes)} is too small for the cache {root}. Needed are {need}, "
        f"besides {format_bytes(overhead_bytes)} of manifests and catalog. Set cache_bytes to at least "
        f"{enough_bytes(least)}, or pass an Order with a smaller shuffle_window or fewer lanes on all ranks",
        limit_bytes=limit_bytes,
        wanted_bytes=wanted_bytes,
        needed_bytes=needed,
        least_bytes=least,
    )
