"""Memory shared with a recoder, both sides of it in this process: what one side writes the other one sees."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from streamer.recode.shared import KEPT_BYTES, SharedMemory


@pytest.fixture
def writer() -> Iterator[SharedMemory]:
    memory = SharedMemory("test")
    yield memory
    memory.close()


@pytest.fixture
def reader(writer: SharedMemory) -> Iterator[SharedMemory]:
    memory = SharedMemory("test", os.dup(writer.descriptor))
    yield memory
    memory.close()


def resident_bytes(memory: SharedMemory) -> int:
    """Returns the bytes that the file takes, in whatever process."""
    return os.fstat(memory.descriptor).st_blocks * 512


def test_what_is_written_is_seen(writer: SharedMemory, reader: SharedMemory) -> None:
    """Buffers that one side writes, short, long or empty, are seen by the other side one behind the other."""
    long = np.random.default_rng(1).bytes(100_000)
    assert writer.write([b"short", b"", memoryview(long), b"end"]) == 5 + 100_000 + 3
    assert bytes(reader.view(100_008)) == b"short" + long + b"end"
    assert writer.write([b"more", memoryview(long)], 100_008) == 200_012
    assert bytes(reader.view(200_012)) == b"short" + long + b"endmore" + long


def test_the_next_job_is_shorter(writer: SharedMemory, reader: SharedMemory) -> None:
    """A view of shared memory is as long as asked, however long the file is."""
    writer.write([b"a long job"])
    writer.write([b"short"])
    assert bytes(reader.view(5)) == bytes(writer.view(5)) == b"short"
    assert not len(reader.view(0))


def test_a_view_outlives_growth_and_close(writer: SharedMemory) -> None:
    """A view of shared memory keeps its content when the memory grows or is closed, which map the file anew."""
    writer.write([b"first"])
    view = writer.view(5)
    writer.write([bytes(KEPT_BYTES)], 5)
    again = SharedMemory("test", os.dup(writer.descriptor))
    kept = again.view(5)
    again.close()
    assert bytes(view) == bytes(kept) == b"first"


def test_a_view_is_read_only(writer: SharedMemory) -> None:
    """A view of shared memory is read-only."""
    writer.write([b"first"])
    with pytest.raises(TypeError, match="read-only"):
        writer.view(5)[0] = 0


def test_fewer_bytes_than_the_other_side_says(writer: SharedMemory, reader: SharedMemory) -> None:
    """A view beyond the end of shared memory is refused, because reading there ends a process."""
    writer.write([b"first"])
    assert bytes(reader.view(5)) == b"first"
    with pytest.raises(ValueError, match="length"):
        reader.view(10_000)


def test_neither_side_can_cut_it(reader: SharedMemory, writer: SharedMemory) -> None:
    """Shared memory is sealed against truncation, because a shorter file would end the process that maps it."""
    writer.write([b"first"])
    for side in (reader, writer):
        with pytest.raises(PermissionError):
            os.ftruncate(side.descriptor, 0)


def test_pages_are_kept_up_to_a_bound(writer: SharedMemory, reader: SharedMemory) -> None:
    """Shared memory gives the pages of a large job back, down to a bound, also if the other side maps them.

    The next large job has them again.
    """
    large = b"x" * (KEPT_BYTES + (1 << 20))
    writer.write([large])
    assert reader.view(len(large))[-1:] == b"x"
    reader.trim()
    assert resident_bytes(writer) == KEPT_BYTES
    assert reader.view(len(large))[KEPT_BYTES - 1 : KEPT_BYTES + 1] == b"x\0"
    writer.write([large])
    assert reader.view(len(large)) == large
