"""Shared memory: all of it there from the start, in huge pages where Linux makes them, gone with its last view."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from streamer.errors import ConfigError
from streamer.loader import memory

HUGE = 2 << 20
# Smaller than a huge page, one, one and a page, a ring's.
SIZES = [4096, HUGE - 4096, HUGE, HUGE + 4096, 9 * HUGE - 4096]


def mapped(name):
    """Kilobytes of this process's mappings of a memfd, and of what of them is mapped by huge pages."""
    sizes, inside = {"Size": 0, "ShmemPmdMapped": 0}, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        field, _, rest = line.partition(":")
        if " " in field:
            inside = f"memfd:{name}" in line
        elif inside and field in sizes:
            sizes[field] += int(rest.split()[0])
    return sizes["Size"], sizes["ShmemPmdMapped"]


def address_space():
    """Pages of this process's address space."""
    return int(Path("/proc/self/statm").read_text().split()[0])


@pytest.fixture(params=["huge pages", "none left", "Linux before 5.14"])
def kernel(request, monkeypatch):
    """What Linux can do: of the advice that it does not know it says so."""
    if request.param != "huge pages":
        monkeypatch.setattr(memory, "_MADV_COLLAPSE", 9999)
    if request.param == "Linux before 5.14":
        monkeypatch.setattr(memory, "_MADV_POPULATE_WRITE", 9999)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("count", SIZES)
def test_every_page_is_there(count):
    """Taken when it is made, mapped when it is mapped: to write to all of it faults nowhere."""
    descriptor = memory.create_sealed("test-there", count)
    assert os.fstat(descriptor).st_blocks * 512 >= count
    mapping, other = memory.map_shared(descriptor, count), memory.map_shared(descriptor, count)
    assert mapping.nbytes == count
    places = range(0, count, 4096)
    memory.window(mapping, 0, count)  # numpy's own first use
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for place in places:
        mapping[place] = place >> 12 & 0xFF
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults <= 3 + len(places) // 64  # of Python itself
    assert [other[place] for place in places] == [place >> 12 & 0xFF for place in places]
    os.close(descriptor)


def test_large_memory_lies_in_huge_pages():
    """In each process that maps it, also the last piece, whatever shmem_enabled says."""
    descriptor = memory.create_sealed("test-huge", 9 * HUGE - 4096)
    mapping = memory.map_shared(descriptor, 9 * HUGE - 4096)
    size, huge = mapped("test-huge")
    if huge == 0 and tuple(map(int, os.uname().release.split(".")[:2])) < (6, 1):
        pytest.skip("this Linux makes no huge pages of a memfd")
    assert size == huge == 9 * HUGE >> 10
    assert memory.window(mapping, 0, 1).ctypes.data % HUGE == 0
    os.close(descriptor)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("count", SIZES)
def test_it_goes_with_the_last_view(count):
    """The mapping, and what was mapped to find it a place."""
    descriptor = memory.create_sealed("test-gone", count)
    before = address_space()
    for _ in range(20):
        view = memory.window(memory.map_shared(descriptor, count), 16, 64)[8:]
        view[:] = 7
    assert mapped("test-gone")[0] >= count >> 10
    os.close(descriptor)
    del view
    assert mapped("test-gone") == (0, 0)
    if count >= HUGE:  # half of what 20 would take; the test's process may take some for itself
        assert (address_space() - before) * 4096 < 10 * count


@pytest.mark.parametrize("count", [4096, HUGE])
def test_what_cannot_be_mapped_is_an_error(count):
    """With the reason."""
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, count)
    unreadable = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY)
    with pytest.raises(PermissionError):
        memory.map_shared(unreadable, count)
    os.close(unreadable)
    os.close(descriptor)


def test_large_memory_is_taken_in_pieces(monkeypatch):
    """While 133 MB were taken at once nobody could map the first batch: it was delivered 1.1 s after it was made."""
    taken = []
    monkeypatch.setattr(memory, "_advise", lambda mapping, start, count, advice: taken.append((start, count)) or True)
    count = 3 * (4 << 20) + 4096
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, count)
    memory.map_shared(descriptor, count).release()
    os.close(descriptor)
    assert taken == [(0, 4 << 20), (4 << 20, 4 << 20), (8 << 20, 4 << 20), (12 << 20, 4096)]


def test_it_can_neither_grow_nor_shrink():
    """No worker can take it away from under the others."""
    descriptor = memory.create_sealed("test", HUGE)
    for size in (0, HUGE * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    os.close(descriptor)


def test_no_room_is_a_config_error():
    """More than the machine has is refused at once, with the knob's name."""
    with pytest.raises(ConfigError, match="ring_bytes"):
        memory.create_sealed("test", 1 << 60)
