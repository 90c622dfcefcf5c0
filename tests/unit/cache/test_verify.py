"""The verification of a chunk file finds flipped bits, other lengths, swapped files and links."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from streamer.cache.chunk_files import ChunkBytes, verify_file, write_chunk
from streamer.cache.folder import open_folder
from streamer.errors import IntegrityError

MakeChunk = Callable[..., ChunkBytes]


@pytest.fixture
def path(tmp_path: Path, make_chunk: MakeChunk) -> Path:
    """Writes a chunk file of 3 MB, which is verified in several pieces."""
    folder = open_folder(tmp_path / "cache")
    chunk = make_chunk(1, 3_000_000)
    write_chunk(chunk, folder)
    return folder.chunk_path(chunk.key)


def test_a_sound_file_passes(path: Path, make_chunk: MakeChunk) -> None:
    """`verify_file` returns the header of a sound file with its samples and bytes."""
    header = verify_file(path, make_chunk(1).key)
    assert (header.samples, header.local_bytes) == (3, 3_000_000)


@pytest.mark.parametrize("at", [0, 9, 20, 60, 63, 64, 1_500_000, 3_000_063, 3_000_064, 3_000_075])
def test_any_flipped_bit_is_found(path: Path, make_chunk: MakeChunk, at: int) -> None:
    """A flipped bit in the header, the bytes or the table of checksums raises IntegrityError."""
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x10
    path.write_bytes(raw)
    with pytest.raises(IntegrityError):
        verify_file(path, make_chunk(1).key)


@pytest.mark.parametrize("length", [0, 10, 64, 2_000_000, 3_000_075, 3_000_077])
def test_any_other_length_is_found(path: Path, make_chunk: MakeChunk, length: int) -> None:
    """A chunk file that is cut short or longer than its header says raises IntegrityError."""
    raw = path.read_bytes().ljust(length, b"\0")[:length]
    path.write_bytes(raw)
    with pytest.raises(IntegrityError):
        verify_file(path, make_chunk(1).key)


def test_a_swapped_file_is_found(path: Path, make_chunk: MakeChunk) -> None:
    """A sound chunk under another chunk's name raises IntegrityError with its key."""
    with pytest.raises(IntegrityError, match="key is"):
        verify_file(path, make_chunk(2).key)


def test_a_link_is_not_followed(path: Path, make_chunk: MakeChunk, tmp_path: Path) -> None:
    """`verify_file` does not follow a symbolic link to a chunk file."""
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        verify_file(link, make_chunk(1).key)
