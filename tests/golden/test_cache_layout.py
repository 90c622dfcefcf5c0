"""The bytes of a cache folder on disk: chunk file, markers, catalogue rows, and the ranks of chunks.

Another layout is another chunkfile.VERSION, folder.LAYOUT_VERSION or catalog_row.ROW_VERSION.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from streamer.cache.catalog import Catalog
from streamer.cache.catalog_row import CatalogRow
from streamer.cache.chunk_files import ChunkBytes, write_chunk
from streamer.cache.folder import LAYOUT_VERSION, open_folder
from streamer.cache.policy.table import draw_ranks, to_keys
from streamer.formats import chunkfile

KEY = bytes.fromhex("a0b1c2d3e4f5061728394a5b6c7d8e9f")


def test_a_chunk_file_has_these_bytes(tmp_path: Path) -> None:
    """A chunk file is a header of 64 bytes, the samples' bytes, and a CRC-32 for each sample."""
    assert chunkfile.VERSION == 1
    folder = open_folder(tmp_path)
    write_chunk(ChunkBytes(KEY, [b"hello ", b"world"], np.array([0, 5, 5, 11])), folder)
    raw = (tmp_path / "chunks" / "a" / "a0b1c2d3e4f5061728394a5b6c7d8e9f.chunk").read_bytes()
    assert raw.hex() == (
        "5354524d43484e4b"  # STRMCHNK
        "0100"  # version
        "0000"  # codec: identity
        "03000000"  # samples
        "a0b1c2d3e4f5061728394a5b6c7d8e9f"
        "0b00000000000000"  # local_bytes
        "cb338bef"  # CRC-32 of the table
        "85114a0d"  # CRC-32 of "hello world"
        "000000000000000000000000"
        "ee3a7672"  # CRC-32 of the 60 bytes before
        "68656c6c6f20776f726c64"  # hello world
        "86a61036"  # CRC-32 of "hello"
        "00000000"
        "cb423b4a"  # CRC-32 of " world"
    )


def test_the_layout_of_the_folder(tmp_path: Path) -> None:
    """A new cache folder holds two markers, the catalogue, and folders for manifests, temporary files and chunks."""
    assert LAYOUT_VERSION == 1
    open_folder(tmp_path)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert found == {
        "streamer-cache",
        "root-id",
        "catalog",
        "manifests",
        "tmp",
        "chunks",
        *(f"chunks/{digit}" for digit in "0123456789abcdef"),
    }
    assert (tmp_path / "streamer-cache").read_bytes() == b"streamer cache 1\n"


def test_a_row_of_the_catalog() -> None:
    """A row of the catalogue encodes its version, the length of the chunk file and the dataset in these bytes."""
    assert CatalogRow(0x123456789A, "d1").encode().hex() == "019a785634120000006431"
    assert CatalogRow.decode(bytes.fromhex("019a785634120000006431")) == CatalogRow(0x123456789A, "d1")


def test_the_catalog_is_read_across_versions_of_diskcache(tmp_path: Path) -> None:
    """A catalogue that diskcache wrote is read by the one query at start, which relies on diskcache's columns."""
    catalog = Catalog(tmp_path / "catalog")
    catalog.open()
    catalog.write({KEY: CatalogRow(7, "d")})
    catalog.close()
    assert Catalog(tmp_path / "catalog").peek() == {KEY: CatalogRow(7, "d")}


def test_ranks_are_the_same_in_every_run() -> None:
    """The ranks that decide which chunks a cache keeps are these numbers in every run and release:
    other ranks would not empty a cache, but would exchange its chunks.
    """
    assert draw_ranks(to_keys([KEY, bytes(16)])).tolist() == [269543057, 1896895516]
