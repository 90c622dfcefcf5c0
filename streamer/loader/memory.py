"""Nameless shared memory: a sealed memfd, and the mapping of one.

Not /dev/shm: no 64 MB limit of a container, no name that a killed process leaves behind.
"""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np

from streamer.errors import ConfigError
from streamer.loader.slots import Bytes

_PAGE = mmap.PAGESIZE
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def page_aligned(count: int) -> int:
    """The next multiple of the page size."""
    return -(-count // _PAGE) * _PAGE


def create_sealed(name: str, count: int) -> int:
    """Makes `count` bytes of shared memory that can neither grow nor shrink; returns the descriptor.

    The pages are taken now: a machine without room says so here, not by a SIGBUS in the middle of training.

    Raises:
        ConfigError: no memfd on this system, or no room.
    """
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError) as error:
        raise ConfigError(
            f"this system has no memfd_create ({error}); use num_workers=0", field="num_workers"
        ) from error
    try:
        os.posix_fallocate(descriptor, 0, count)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(
            f"{name}: no room for {count} bytes of shared memory ({error.strerror}); lower ring_bytes or "
            "raise the container's memory limit",
            field="ring_bytes",
            bytes=count,
        ) from error
    return descriptor


def map_shared(descriptor: int, count: int) -> mmap.mmap:
    """Maps the memory with every page present, so that its use never faults."""
    return mmap.mmap(descriptor, count, mmap.MAP_SHARED | mmap.MAP_POPULATE)


def window(mapping: mmap.mmap, start: int, count: int) -> Bytes:
    """A new array over a part of the mapping.

    New each time and never a slice of a longer-lived array: numpy would hang views of a slice on the long-lived one,
    and a finalizer on the slice would fire under live views.
    """
    return np.frombuffer(mapping, np.uint8, count, start)
