"""Measures what this process uses, and sets how it keeps freed memory and how often it collects garbage.

The engine (`service/`), its fetch processes, the workers and the processes of tasks call it at their start; the page of
metrics shows the measures of the engine.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from pathlib import Path

from streamer.base.cgroup import usable_cores

_STATUS = Path("/proc/self/status")
_FIELDS = {"RssAnon": 1024, "VmRSS": 1024, "Threads": 1}
_DESCRIPTORS = "/proc/self/fd"

# <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# Buffers up to this size come from the heap; glibc accepts no larger value.
_MMAP_THRESHOLD_BYTES = 32 << 20

# Thousands of requests wait as asyncio tasks. After each 700 new objects the collector visited all of them, and every
# imported module: 5-10 % of the CPU time for fetching small objects (two cores, 2026-11-20).
_COLLECT_AFTER = 10_000


def process_statistics() -> dict[str, int | float]:
    """Returns what this process uses now, by name; -1 means that the system does not tell.

    `cpu_seconds` counts from its start. `usable_cores` is how many threads can run at once. The others are bytes of
    memory (`resident_bytes`, and `anonymous_bytes` of them without files), `open_descriptors` and `threads`.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        lines = []
    found = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    # Sizes are in kB (proc(5)).
    status = {name: int(found[name][0]) * factor for name, factor in _FIELDS.items() if name in found}
    return {
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 3),
        "usable_cores": usable_cores(),
        "anonymous_bytes": status.get("RssAnon", -1),
        "resident_bytes": status.get("VmRSS", -1),
        "open_descriptors": len(os.listdir(_DESCRIPTORS)) if os.path.isdir(_DESCRIPTORS) else -1,
        "threads": status.get("Threads", -1),
    }


def keep_free_memory(bytes_kept: int) -> bool:
    """Makes glibc keep up to `bytes_kept` of freed memory in this process.

    Workers and processes of tasks call it before they do anything else; the trainer's process is left alone. By
    default glibc returns freed buffers above 128 KiB to the kernel, and their pages are faulted in again at the next
    use. A worker frees such buffers with each batch: samples of 110 KB with a transform then cost trainer and workers
    137 instead of 106 us CPU each, warm, at the same peak of memory (batch 64, two workers, two cores, 2026-11-23).

    Args:
        bytes_kept: free bytes at the top of each heap above which memory goes back to the kernel.

    Returns:
        Whether the allocator is glibc's and accepted the setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl, macOS
        return False
    settings = (
        (_M_TRIM_THRESHOLD, min(bytes_kept, 2**31 - 1)),
        (_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES),
    )
    return all(mallopt(ctypes.c_int(name), ctypes.c_int(value)) == 1 for name, value in settings)


def collect_rarely() -> None:
    """Hides all existing objects from the garbage collector for good, and lets it look for cycles less often.

    The engine, its fetch processes and the processes of tasks call it when everything is imported and before their
    first request. Switches the collector on, if it was off for the imports. Cycles that the imports have left are not
    freed: 574 of 66,556 objects. Looking for them took 11 ms of the time until the engine listens (2026-11-20).
    """
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, *gc.get_threshold()[1:])
    gc.enable()
