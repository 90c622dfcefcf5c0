"""How much memory the fetcher may fill with bodies when nobody says."""

from __future__ import annotations

import os
from pathlib import Path

from streamer.config import GiB, MiB

# A quarter leaves room for the trainer's workers and the page cache; above 1 GiB no link needs more in flight
# (100 Gbit/s at 100 ms is 1.2 GB).
SHARE = 4
MOST_BYTES = 1 * GiB
LEAST_BYTES = 64 * MiB

_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def budget_bytes(limits: tuple[Path, ...] = _CGROUP_LIMITS) -> int:
    """A quarter of the memory of this cgroup (or machine), between 64 MiB and 1 GiB."""
    return min(max(_available(limits) // SHARE, LEAST_BYTES), MOST_BYTES)


def _available(limits: tuple[Path, ...]) -> int:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for path in limits if (limit := _limit(path)) is not None)])


def _limit(path: Path) -> int | None:
    """A cgroup's limit; None where there is no such file or it says "max"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
