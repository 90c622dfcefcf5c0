"""Memory shared with a recoder: what one side writes the other one sees; both keep their mappings."""

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
    """Of the file, in whatever process."""
    return os.fstat(memory.descriptor).st_blocks * 512


def test_what_is_written_is_seen(writer: SharedMemory, reader: SharedMemory) -> None:
    """Short and long buffers, and none, one behind the other; then more behind them."""
    long = np.random.default_rng(1).bytes(100_000)
    assert writer.write([b"short", b"", memoryview(long), b"end"]) == 5 + 100_000 + 3
    assert bytes(reader.view(100_008)) == b"short" + long + b"end"
    assert writer.write([b"more", memoryview(long)], 100_008) == 200_012
    assert bytes(reader.view(200_012)) == b"short" + long + b"endmore" + long


def test_the_next_job_is_shorter(writer: SharedMemory, reader: SharedMemory) -> None:
    """A view is as long as asked, however long the file is."""
    writer.write([b"a long job"])
    writer.write([b"short"])
    assert bytes(reader.view(5)) == bytes(writer.view(5)) == b"short"
    assert not len(reader.view(0))


def test_a_view_outlives_growth_and_close(writer: SharedMemory) -> None:
    """Which map the file anew."""
    writer.write([b"first"])
    view = writer.view(5)
    writer.write([bytes(KEPT_BYTES)], 5)
    again = SharedMemory("test", os.dup(writer.descriptor))
    kept = again.view(5)
    again.close()
    assert bytes(view) == bytes(kept) == b"first"


def test_a_view_is_read_only(writer: SharedMemory) -> None:
    writer.write([b"first"])
    with pytest.raises(TypeError, match="read-only"):
        writer.view(5)[0] = 0


def test_fewer_bytes_than_the_other_side_says(writer: SharedMemory, reader: SharedMemory) -> None:
    """Refused: to read behind the end of a file ends a process."""
    writer.write([b"first"])
    assert bytes(reader.view(5)) == b"first"
    with pytest.raises(ValueError, match="length"):
        reader.view(10_000)


def test_neither_side_can_cut_it(reader: SharedMemory, writer: SharedMemory) -> None:
    """A mapping would end a process as well."""
    writer.write([b"first"])
    with pytest.raises(PermissionError):
        os.ftruncate(reader.descriptor, 0)


def test_pages_are_kept_up_to_a_bound(writer: SharedMemory, reader: SharedMemory) -> None:
    """The memory of a large job goes back, also where the other side has it mapped; the next one has it again."""
    large = b"x" * (KEPT_BYTES + (1 << 20))
    writer.write([large])
    assert reader.view(len(large))[-1:] == b"x"
    reader.trim()
    assert resident_bytes(writer) == KEPT_BYTES
    assert reader.view(len(large))[KEPT_BYTES - 1 : KEPT_BYTES + 1] == b"x\0"
    writer.write([large])
    assert reader.view(len(large)) == large
