"""Nameless shared memory: a sealed memfd, and the mapping of one.

Not /dev/shm: no 64 MB limit of a container, no name that a killed process leaves behind.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from pathlib import Path

import numpy as np

from streamer.errors import ConfigError
from streamer.loader.leaves import Bytes, address

_PAGE = mmap.PAGESIZE
# What has as much lies in huge pages, where Linux can make them of shared memory (6.1): 133 MB are taken in 9 ms of CPU
# and mapped in 0.3 by each process, instead of 70 and 35 (AMD EPYC, virtual, 2026-11-22). On request, because as a rule
# /sys/kernel/mm/transparent_hugepage/shmem_enabled is "never".
_HUGE = 2 << 20
# Linux 5.14 and 6.1.
_MADV_POPULATE_WRITE, _MADV_COLLAPSE = 23, 25
# Taken at once: the kernel lets nobody else of the process map anything meanwhile, and Python waits for that with the
# GIL held. With a ring of 133 MB in one piece the first batch was made after 0.54 s and delivered after 1.6, with all
# memory in the page cache (2026-11-22).
_PIECE_BYTES = 4 << 20
# Limit, use and composition of the container's memory: cgroup v2, then v1. Absent, or without limit, outside of one.
_CONTAINERS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
# Not among those that Python names.
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def page_aligned(count: int) -> int:
    """The next multiple of the page size."""
    return -(-count // _PAGE) * _PAGE


def available_bytes() -> int:
    """What this process could still take: of the machine's memory, and of its container's limit."""
    with open("/proc/meminfo", "rb") as lines:
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"MemAvailable"))
    for folder, limit, used in _CONTAINERS:
        try:
            left = _container_room(Path(folder), limit, used)
        except (OSError, ValueError):  # no such files here, or "max": no limit
            continue
        free = min(free, left)
    return free


def _container_room(folder: Path, limit: str, used: str) -> int:
    # The page cache counts as used, and goes when somebody needs the room: a trainer that reads files fills it.
    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    cached = int(stat["inactive_file"]) + int(stat["active_file"])
    return max(0, int((folder / limit).read_text()) - int((folder / used).read_text()) + cached)


def create_sealed(name: str, count: int) -> int:
    """Makes `count` bytes of shared memory that can neither grow nor shrink; returns the descriptor.

    The pages are taken now: a machine without room says so here, not by a SIGBUS in the middle of training. It is
    asked first: a memfd has no limit of its own, and taking pages that are not there calls the OOM killer.

    Raises:
        ConfigError: no memfd on this system, or no room.
    """
    size = _mapped_bytes(count)
    if size > (room := available_bytes()):
        raise ConfigError(
            f"{name}: no room for {size} bytes of shared memory, {room} are available; lower ring_bytes or raise the "
            "container's memory limit",
            field="ring_bytes",
            bytes=size,
            available_bytes=room,
        )
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError) as error:
        raise ConfigError(
            f"this system has no memfd_create ({error}); use num_workers=0", field="num_workers"
        ) from error
    try:
        os.ftruncate(descriptor, size)
        if size >= _HUGE:
            _take_huge_pages(descriptor, size)
        # What is not there yet.
        os.posix_fallocate(descriptor, 0, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _mapped_bytes(count: int) -> int:
    """What `count` bytes take: the last huge page is mapped as one only where all of it is there."""
    return -(-count // _HUGE) * _HUGE if count >= _HUGE else count


def _take_huge_pages(descriptor: int, size: int) -> None:
    """Takes them until there are none; a small page in each is what the kernel wants to see."""
    mapping = _map_aligned(descriptor, size)
    for start in range(0, size, _HUGE):
        mapping[start] = 0
        if not _advise(mapping, start, _HUGE, _MADV_COLLAPSE):
            return


def map_shared(descriptor: int, count: int) -> memoryview:
    """Maps the memory with every page present, so that its use never faults; unmapped with the last view."""
    if count < _HUGE:
        mapping = memoryview(mmap.mmap(descriptor, count, mmap.MAP_SHARED))
    else:
        mapping = _map_aligned(descriptor, _mapped_bytes(count))[:count]
    # Not MAP_POPULATE: Python holds the GIL over mmap, 55 ms for a ring of 133 MB (2026-11-20); ctypes does not.
    for start in range(0, count, _PIECE_BYTES):
        if not _advise(mapping, start, min(_PIECE_BYTES, count - start), _MADV_POPULATE_WRITE):
            return memoryview(mmap.mmap(descriptor, count, mmap.MAP_SHARED | mmap.MAP_POPULATE))
    return mapping


def _map_aligned(descriptor: int, size: int) -> memoryview:
    """Maps to where a huge page may begin: over a part of a mapping of nothing, with which it goes."""
    nothing = memoryview(mmap.mmap(-1, size + _HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE))
    start = -address(nothing) % _HUGE
    place, protection = address(nothing) + start, mmap.PROT_READ | mmap.PROT_WRITE
    if _LIBC.mmap(place, size, protection, mmap.MAP_SHARED | _MAP_FIXED, descriptor, 0) != place:
        raise OSError(ctypes.get_errno(), f"cannot map {size} bytes of shared memory")
    return nothing[start : start + size]


def _advise(mapping: memoryview, start: int, count: int, advice: int) -> bool:
    """Whether the kernel took the advice for this part of the mapping."""
    return bool(_LIBC.madvise(address(mapping) + start, count, advice) == 0)


def window(mapping: memoryview, start: int, count: int) -> Bytes:
    """A new array over a part of the mapping.

    New each time and never a slice of a longer-lived array: numpy would hang views of a slice on the long-lived one,
    and a finalizer on the slice would fire under live views.
    """
    return np.frombuffer(mapping, np.uint8, count, start)
