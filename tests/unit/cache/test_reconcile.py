"""Files and catalog of a real cache folder are brought to agree at start: the files are right."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from streamer.cache.catalog import Catalog
from streamer.cache.chunk_files import ChunkBytes, write_chunk
from streamer.cache.folder import CacheFolder, open_folder
from streamer.cache.reconcile import Contents, reconcile

MakeChunk = Callable[..., ChunkBytes]


@pytest.fixture
def folder(tmp_path: Path, make_chunk: MakeChunk) -> CacheFolder:
    """Makes a cache folder of three chunks, all in the catalog."""
    folder = open_folder(tmp_path / "cache")
    for number in range(3):
        write_chunk(make_chunk(number), folder)
    start(folder)
    return folder


def start(folder: CacheFolder) -> Contents:
    """Reconciles a folder as the chunk cache does: what is found is written to the catalog afterwards."""
    catalog = Catalog(folder.path / "catalog")
    try:
        found = reconcile(folder, catalog)
        catalog.write(found.added, found.removed)
        return found
    finally:
        catalog.close()


def test_a_lost_catalog_is_rebuilt_from_the_headers(folder: CacheFolder, make_chunk: MakeChunk) -> None:
    """A lost catalog is rebuilt from the chunks' headers, without the names of their datasets."""
    shutil.rmtree(folder.path / "catalog")
    found = start(folder)
    assert set(found.rows) == {make_chunk(number).key for number in range(3)}
    assert {row.dataset for row in found.rows.values()} == {""}
    assert found.dropped == 0


def test_deleted_files_leave_the_catalog(folder: CacheFolder, make_chunk: MakeChunk) -> None:
    """A chunk whose file was deleted leaves the catalog at the next start."""
    folder.chunk_path(make_chunk(1).key).unlink()
    assert make_chunk(1).key not in start(folder).rows
    assert make_chunk(1).key not in Catalog(folder.path / "catalog").peek()


def test_truncated_files_are_dropped(folder: CacheFolder, make_chunk: MakeChunk) -> None:
    """A file shorter than its header says is dropped from folder and catalog at the next start."""
    path = folder.chunk_path(make_chunk(1).key)
    path.write_bytes(path.read_bytes()[:-1])
    found = start(folder)
    assert (len(found.rows), found.dropped) == (2, 1)
    assert not path.exists()
    assert make_chunk(1).key not in Catalog(folder.path / "catalog").peek()


def test_a_file_under_another_name_is_dropped(folder: CacheFolder, make_chunk: MakeChunk) -> None:
    """A chunk file under another chunk's name is dropped, since its header repeats its key."""
    folder.chunk_path(make_chunk(1).key).rename(folder.chunk_path(make_chunk(7).key))
    found = start(folder)
    assert set(found.rows) == {make_chunk(0).key, make_chunk(2).key}
    assert found.dropped == 1


def test_an_empty_file_is_dropped(folder: CacheFolder, make_chunk: MakeChunk) -> None:
    """An empty chunk file, as a power loss leaves it, is dropped at the next start."""
    folder.chunk_path(make_chunk(9).key).touch()
    assert start(folder).dropped == 1


def test_a_file_that_cannot_be_removed_ends_no_start(
    folder: CacheFolder, make_chunk: MakeChunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad file that cannot be removed, as on a disk that turned read-only, does not end the start."""
    folder.chunk_path(make_chunk(9).key).touch()

    def refuse(path: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("streamer.cache.reconcile.os.unlink", refuse)
    found = start(folder)
    assert (found.dropped, len(found.rows)) == (1, 3)


def test_other_files_are_left_alone(folder: CacheFolder) -> None:
    """Files whose names are not those of chunks in their folder are neither counted nor removed."""
    for name in ("notes.txt", "x.chunk", "z" * 32 + ".chunk", "0" * 32 + ".chunk"):
        (folder.path / "chunks" / "a" / name).touch()
    assert len(start(folder).rows) == 3
    assert (folder.path / "chunks" / "a" / "notes.txt").exists()
