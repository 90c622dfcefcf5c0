"""What this process takes of the machine, as the kernel counts it."""

from __future__ import annotations

import os
import resource
from pathlib import Path

_STATUS = Path("/proc/self/status")
_DESCRIPTORS = "/proc/self/fd"


def process_statistics() -> dict[str, int | float]:
    """CPU seconds, resident bytes (anonymous alone and with file pages), open descriptors; -1 where unknown."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    resident = _resident()
    return {
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 3),
        "anonymous_bytes": resident.get("RssAnon", -1),
        "resident_bytes": resident.get("VmRSS", -1),
        "open_descriptors": len(os.listdir(_DESCRIPTORS)) if os.path.isdir(_DESCRIPTORS) else -1,
    }


def _resident() -> dict[str, int]:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return {}
    return {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (line.partition(":") for line in lines)
        if name in ("RssAnon", "VmRSS")
    }
