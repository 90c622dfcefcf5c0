"""Fills this process's table of descriptors, for tests of what happens when no further file can be opened."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_table() -> Iterator[None]:
    """Fills the table of descriptors, so that this process can open no further file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest, held = max(map(int, os.listdir("/proc/self/fd"))), [os.open("/dev/null", os.O_RDONLY)]
    while held[-1] < highest:
        held.append(os.open("/dev/null", os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(highest, held[-1]) + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)
