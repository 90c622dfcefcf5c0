"""Writers of shards close their file once, also if its end cannot be written."""

from __future__ import annotations

import gc
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamer.shards.outputs.registry import OUTPUTS

# So many columns make a footer of Parquet that is longer than the buffer of a file.
COLUMNS = [f"x{number}" for number in range(2000)]
DESCRIBED: dict[str, Any] = {"columns": [(name, "<i8") for name in COLUMNS], "tokens": ("x0", "<i4", 10)}


def sample_of(output: str) -> dict[str, Any]:
    return {"x0": np.zeros(3, "<i4")} if output == "tokens" else dict.fromkeys(COLUMNS, 1)


def open_places(path: Path) -> list[str]:
    """Returns the descriptors of this process that have a file open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}") == str(path):
                found.append(descriptor)
        except FileNotFoundError:  # that of the listing itself
            continue
    return found


@contextmanager
def files_of_at_most(limit: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("output", list(OUTPUTS))
@pytest.mark.parametrize("finished", [False, True])
def test_a_second_close_touches_no_other_file(tmp_path: Path, output: str, finished: bool) -> None:
    """A writer that is closed twice leaves the file alone that has got its number in between."""
    path = tmp_path / "a"
    path.touch()
    writer = OUTPUTS[output].open_writer(path, DESCRIBED)
    writer.add(sample_of(output), 0)
    if finished:
        writer.finish()
    writer.close()
    assert open_places(path) == []
    descriptors = [os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT, 0o600) for _ in range(3)]
    try:
        writer.close()
        assert [os.write(descriptor, b"x") for descriptor in descriptors] == [1, 1, 1]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@pytest.mark.parametrize("output", list(OUTPUTS))
@pytest.mark.parametrize("finished", [False, True])
def test_a_file_whose_end_cannot_be_written_is_closed(tmp_path: Path, output: str, finished: bool) -> None:
    """A shard whose rest does not fit on the disk raises OSError, and its file is closed, finished or not."""
    path = tmp_path / "a"
    path.touch()
    writer = OUTPUTS[output].open_writer(path, DESCRIBED)
    writer.add(sample_of(output), 0)
    if output == "parquet":
        writer._write_group()  # type: ignore[attr-defined]  # as at the end of a row group
    with files_of_at_most(1 if finished else path.stat().st_size):
        if finished:
            with pytest.raises(OSError, match="File too large"), writer:
                writer.finish()
        elif output == "parquet":
            with pytest.raises(OSError, match="File too large"):
                writer.close()
        else:
            # Nothing is left to be written.
            writer.close()
        assert open_places(path) == []
    writer.close()
    # A writer of pyarrow that is still open would write to the closed file now, and its error fails the test.
    del writer
    gc.collect()
