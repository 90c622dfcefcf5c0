"""Tests of shared memory: all of it present from the start, unmapped with its last view."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from streamer.batches.ring import shared_memory as memory
from streamer.errors import ConfigError

MB = 1 << 20


def mapped(name):
    """Returns the bytes of this process's mappings of a memfd."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ends = [line.split()[0].split("-") for line in lines if f"memfd:{name}" in line]
    return sum(int(stop, 16) - int(start, 16) for start, stop in ends)


@pytest.mark.parametrize("count", [64 * 4096, 4 * MB + 4096])
def test_every_page_is_there(count):
    """Writing to all of a mapping takes almost no page faults, and other mappings see what is written."""
    descriptor = memory.create_memfd("test-there", count)
    assert os.fstat(descriptor).st_blocks * 512 >= count
    mapping, other = memory.map_memfd(descriptor, count), memory.map_memfd(descriptor, count)
    assert mapping.nbytes == count
    places = range(0, count, 4096)
    memory.window(mapping, 0, count)  # numpy's own first use
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for place in places:
        mapping[place] = place >> 12 & 0xFF
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults <= 8 + len(places) // 64  # of Python itself
    assert [other[place] for place in places] == [place >> 12 & 0xFF for place in places]
    os.close(descriptor)


def test_it_goes_with_the_last_view():
    """A mapping lives as long as a slice of an array over it."""
    descriptor = memory.create_memfd("test-gone", MB)
    view = memory.window(memory.map_memfd(descriptor, MB), 16, 64)[8:]
    view[:] = 7
    os.close(descriptor)
    assert mapped("test-gone") == MB
    del view
    assert mapped("test-gone") == 0


def test_what_cannot_be_mapped_is_an_error():
    """Memory that cannot be mapped is an error with the system's reason."""
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, 4096)
    unreadable = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY)
    with pytest.raises(PermissionError):
        memory.map_memfd(unreadable, 4096)
    os.close(unreadable)
    os.close(descriptor)


@pytest.mark.parametrize("size", [0, MB * 2], ids=["shrink", "grow"])
def test_it_can_neither_grow_nor_shrink(size):
    """Shared memory can neither grow nor shrink, so that no worker can truncate it under a copy."""
    descriptor = memory.create_memfd("test", MB)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, size)
    os.close(descriptor)


def test_no_room_is_a_config_error():
    """More memory than the machine has is a `ConfigError` at once that names `ring_bytes`."""
    with pytest.raises(ConfigError, match="ring_bytes"):
        memory.create_memfd("test", 1 << 60)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ("memory_file", OSError(errno.EMFILE, "Too many open files"), "no shared memory can be made.*ulimit -n"),
        ("allocate", OSError(errno.ENOSPC, "No space left on device"), "no room for 1048576 bytes.*--shm-size"),
    ],
)
def test_errors_of_the_system_are_config_errors(monkeypatch, call, error, message):
    """Shared memory that the system refuses is a ConfigError that says what to raise, and leaves no descriptor."""

    def refuse(*arguments):
        raise error

    monkeypatch.setattr(memory.linux, call, refuse)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match=message):
        memory.create_memfd("test", MB)
    assert len(os.listdir("/proc/self/fd")) == before
