"""The writer of one chunk file: what is written, and that a failure leaves nothing."""

from __future__ import annotations

import errno
import itertools
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from streamer.base import linux
from streamer.cache.chunk_files import ChunkBytes, sample_checksums, verify_file, write_chunk
from streamer.cache.folder import CacheFolder, open_folder
from streamer.errors import CacheError, ConfigError

MakeChunk = Callable[..., ChunkBytes]


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    """Makes an empty cache folder."""
    return open_folder(tmp_path / "cache")


@pytest.mark.parametrize("cuts", [[], [1], [5, 5, 9], [3, 10, 17], list(range(1, 20))])
def test_checksums_do_not_depend_on_how_the_bytes_are_cut(cuts: list[int]) -> None:
    """The samples' checksums are the same however the bytes are cut into parts, with empty samples and empty parts."""
    body = bytes(range(20))
    bounds = [0, *cuts, 20]
    parts = [body[start:stop] for start, stop in itertools.pairwise(bounds)]
    offsets = np.array([0, 0, 7, 7, 12, 20])
    expected = [zlib.crc32(body[a:b]) for a, b in itertools.pairwise(offsets)]
    assert sample_checksums(parts, offsets).tolist() == expected


def test_many_parts_need_many_calls(folder: CacheFolder) -> None:
    """A chunk of more parts than one pwritev takes (1,024) is written whole."""
    body = os.urandom(3000)
    parts = [body[at : at + 1] for at in range(3000)]
    chunk = ChunkBytes(b"k" * 16, parts, np.array([0, 1500, 3000]))
    write_chunk(chunk, folder)
    assert folder.chunk_path(chunk.key).read_bytes()[64:3064] == body


def test_short_writes_are_continued(
    folder: CacheFolder, make_chunk: MakeChunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write of fewer bytes than asked, also in the middle of a buffer, is continued until the chunk is whole."""

    def stingy(descriptor: int, buffers: list[memoryview], at: int) -> int:
        return os.pwrite(descriptor, bytes(buffers[0][:777]), at)

    monkeypatch.setattr(os, "pwritev", stingy)
    chunk = make_chunk(1)
    write_chunk(chunk, folder)
    verify_file(folder.chunk_path(chunk.key), chunk.key)
    assert folder.chunk_path(chunk.key).read_bytes()[64:10_064] == b"".join(chunk.parts)


def test_a_failure_leaves_nothing(folder: CacheFolder, make_chunk: MakeChunk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full in the middle of a chunk leaves no file in tmp and none under the chunk's name."""

    def full(descriptor: int, buffers: list[memoryview], at: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OSError, match="full"):
        write_chunk(make_chunk(1), folder)
    assert not list(folder.path.glob("tmp/*"))
    assert not list(folder.path.glob("chunks/*/*"))


def test_the_mode_does_not_depend_on_the_umask(folder: CacheFolder, make_chunk: MakeChunk) -> None:
    """A chunk file has mode 0600 with any umask."""
    before = os.umask(0o777)
    try:
        write_chunk(make_chunk(1), folder)
    finally:
        os.umask(before)
    assert folder.chunk_path(make_chunk(1).key).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("offsets", [[], [0, 5], [1, 10_000], [0, 10_001]])
def test_offsets_must_cover_the_bytes(folder: CacheFolder, make_chunk: MakeChunk, offsets: list[int]) -> None:
    """Offsets that do not cover the bytes raise CacheError with the chunk's length."""
    chunk = make_chunk(1)
    with pytest.raises(CacheError, match="10000 bytes"):
        write_chunk(ChunkBytes(chunk.key, chunk.parts, np.array(offsets)), folder)


def test_a_chunk_without_bytes(folder: CacheFolder) -> None:
    """A chunk may consist of empty samples, though samples of 0 bytes are never requested."""
    chunk = ChunkBytes(b"e" * 16, [], np.array([0, 0, 0]))
    write_chunk(chunk, folder)
    assert verify_file(folder.chunk_path(chunk.key), chunk.key).samples == 2


def test_a_limit_of_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk longer than `ulimit -f` raises ConfigError that names the limit, and leaves no file.
    (It was a raw OSError.)"""

    def refuse(_descriptor: int, _count: int) -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(linux, "allocate", refuse)
    folder = open_folder(tmp_path / "cache")
    with pytest.raises(ConfigError, match="ulimit -f"):
        write_chunk(ChunkBytes(bytes(16), [b"x"], np.array([0, 1])), folder)
    assert list((folder.path / "tmp").iterdir()) == []
