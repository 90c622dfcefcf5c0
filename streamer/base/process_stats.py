"""Resources of this process, as the kernel counts them."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from streamer.base.cgroup import usable_cores

_STATUS = Path("/proc/self/status")
_FIELDS = {"RssAnon": 1024, "VmRSS": 1024, "Threads": 1}
_DESCRIPTORS = "/proc/self/fd"


def process_statistics() -> dict[str, int | float]:
    """CPU seconds and usable cores, resident bytes, descriptors and threads of this process; -1 if unknown."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    status = _status()
    return {
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 3),
        "usable_cores": usable_cores(),
        "anonymous_bytes": status.get("RssAnon", -1),
        "resident_bytes": status.get("VmRSS", -1),
        "open_descriptors": len(os.listdir(_DESCRIPTORS)) if os.path.isdir(_DESCRIPTORS) else -1,
        "threads": status.get("Threads", -1),
    }


def _status() -> dict[str, int]:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return {}
    found = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    # Sizes are in kB (proc(5)).
    return {name: int(found[name][0]) * factor for name, factor in _FIELDS.items() if name in found}
