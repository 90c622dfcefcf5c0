"""Nameless shared memory: a sealed memfd, and the mapping of one.

Not /dev/shm: no 64 MB limit of a container, and no name that a killed process leaves behind.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

from streamer.base import linux
from streamer.base.cgroup import Cgroup
from streamer.batches.batch.buffers import Bytes
from streamer.errors import ConfigError

_PAGE = mmap.PAGESIZE


def align_to_page(count: int) -> int:
    """The next multiple of the page size."""
    return -(-count // _PAGE) * _PAGE


def available_bytes() -> int:
    """The memory that is available to this process, on the machine and within its cgroup limits."""
    with open("/proc/meminfo", "rb") as lines:
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"MemAvailable"))
    left = Cgroup().memory_left_bytes()
    return free if left is None else min(free, left)


def create_memfd(name: str, count: int) -> int:
    """Makes `count` bytes of shared memory that can neither grow nor shrink; returns the descriptor.

    The pages are allocated now, so that a lack of memory is an error here, not a SIGBUS during training. The available
    memory is checked first: a memfd has no limit of its own, and allocating too much invokes the OOM killer.

    Raises:
        ConfigError: no memfd on this system, or not enough memory.
    """
    if count > (room := available_bytes()):
        raise ConfigError(
            f"{name}: not enough memory for {count} bytes of shared memory, {room} are available; lower ring_bytes, "
            "prefetch_batches or num_workers, or raise the container's memory limit",
            field="ring_bytes",
            bytes=count,
            available_bytes=room,
        )
    try:
        descriptor = linux.memory_file(name)
    except OSError as error:
        raise ConfigError(
            f"this system has no memfd_create ({error}); use num_workers=0", field="num_workers"
        ) from error
    try:
        linux.allocate(descriptor, count)
        linux.seal(descriptor, "SHRINK", "GROW", "SEAL")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def map_memfd(descriptor: int, count: int) -> memoryview:
    """Maps the memory with every page present, so that its use never faults; unmapped with the last view."""
    return memoryview(mmap.mmap(descriptor, count, mmap.MAP_SHARED | linux.MAP_POPULATE))


def window(mapping: memoryview, start: int, count: int) -> Bytes:
    """A new array over a part of the mapping.

    New each time and never a slice of a longer-lived array: numpy would hang views of a slice on the long-lived one,
    and a finalizer on the slice would fire under live views.
    """
    return np.frombuffer(mapping, np.uint8, count, start)
