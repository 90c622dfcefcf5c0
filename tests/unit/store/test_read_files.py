"""Ranges of local files that are read in one call."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamer.errors import ObjectChangedError, ObjectNotFoundError
from streamer.manifest.model import Extent, ObjectRecord
from streamer.store.local_store import read_files
from streamer.store.versions import stat_version


def record(path: Path, content: bytes) -> ObjectRecord:
    """Writes a file with this content and returns its record."""
    path.write_bytes(content)
    status = path.stat()
    return ObjectRecord(str(path), status.st_size, stat_version(status.st_size, status.st_mtime_ns))


def test_ranges_come_to_their_places(tmp_path: Path) -> None:
    """Ranges of several files are read into the buffers given for them."""
    first, second = record(tmp_path / "a", b"0123456789"), record(tmp_path / "b", b"abc")
    content = bytearray(5)
    views = [memoryview(content)[:3], memoryview(content)[3:]]
    read_files([Extent(first, 4, 7), Extent(second, 1, 3)], views)
    assert content == b"456bc"


def test_another_version_is_not_read(tmp_path: Path) -> None:
    """A file that changed since it was indexed, and one that is gone, are errors that name the file."""
    target = record(tmp_path / "a", b"0123456789")
    os.utime(tmp_path / "a", ns=(0, 0))
    with pytest.raises(ObjectChangedError, match="/a changed since it was indexed"):
        read_files([Extent(target, 0, 4)], [memoryview(bytearray(4))])
    (tmp_path / "a").unlink()
    with pytest.raises(ObjectNotFoundError, match="/a"):
        read_files([Extent(target, 0, 4)], [memoryview(bytearray(4))])
