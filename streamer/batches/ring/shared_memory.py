"""Makes and maps shared memory without a name: a sealed memfd.

A memfd has no limit as /dev/shm has in a container (64 MB), and leaves no name behind when its process is killed. Where
the system has none, `linux.memory_file` takes an unlinked file instead.

Workers make memory for batches with it (`batches/workers`), and the ring and the loader's feed map that.
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
    """Returns the first multiple of the page size that is not below `count`."""
    return -(-count // _PAGE) * _PAGE


def available_bytes() -> int:
    """Returns the bytes of memory that this process can still take, on the machine and within its cgroup's limits."""
    with open("/proc/meminfo", "rb") as lines:
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"MemAvailable"))
    left = Cgroup().memory_left_bytes()
    return free if left is None else min(free, left)


def create_memfd(name: str, count: int) -> int:
    """Makes `count` bytes of shared memory that can neither grow nor shrink; returns its file descriptor.

    `name` shows in /proc only.

    The pages are allocated now, so that a lack of memory is an error here, not a SIGBUS during training. The available
    memory is checked first: a memfd has no limit of its own, and allocating too much invokes the OOM killer.

    Raises:
        ConfigError: less memory than `count` is available, its pages cannot be allocated all the same, or this system
            can make no such memory.
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
            f"{name}: no shared memory can be made ({error}); allow this process more open files (ulimit -n), or use "
            "num_workers=0",
            field="num_workers",
        ) from error
    try:
        try:
            linux.allocate(descriptor, count)
        except OSError as error:
            raise ConfigError(
                f"{name}: no room for {count} bytes of shared memory ({error}); lower ring_bytes, prefetch_batches or "
                "num_workers, or raise the container's memory limit or its /dev/shm (--shm-size)",
                field="ring_bytes",
                bytes=count,
            ) from error
        linux.seal(descriptor, "SHRINK", "GROW", "SEAL")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def map_memfd(descriptor: int, count: int) -> memoryview:
    """Maps shared memory of `count` bytes by its descriptor, which the caller may close then.

    Every page is present, so that a write never faults. The memory is unmapped with the last view of the result. Raises
    an OSError if it cannot be mapped.
    """
    return memoryview(mmap.mmap(descriptor, count, mmap.MAP_SHARED | linux.MAP_POPULATE))


def window(mapping: memoryview, start: int, count: int) -> Bytes:
    """Returns a new array over `count` bytes of the mapping, from the byte `start` on.

    It is no slice of another array: numpy would make that array the base of all views of the slice, and a weak
    reference to the slice would end while views of it still live.
    """
    return np.frombuffer(mapping, np.uint8, count, start)
