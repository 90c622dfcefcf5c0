"""The catalog, on real SQLite files: bytes and text only, in and out; a catalog with anything else is made anew."""

from __future__ import annotations

import errno
import os
import pickle
import sqlite3
import sys
from pathlib import Path

import pytest

from streamer.cache import catalog_database
from streamer.cache.catalog import Catalog
from streamer.cache.catalog_database import CatalogDisk
from streamer.cache.catalog_row import CatalogRow, ForeignRowError
from streamer.errors import CacheError

KEY = bytes(range(16))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Makes a catalog with one chunk and one used dataset in it."""
    path = tmp_path / "catalog"
    catalog = Catalog(path)
    catalog.open()
    catalog.write({KEY: CatalogRow(4711, "digest")}, used=["digest"])
    catalog.close()
    return path


def contents(path: Path) -> dict[bytes, CatalogRow]:
    catalog = Catalog(path)
    try:
        return catalog.open().chunks
    finally:
        catalog.close()


def plant(path: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(path / "cache.db")
    with connection:
        connection.execute(statement, values)
    connection.close()


class Bomb:
    """Stands for a hostile pickle: when it is unpickled it creates a file, which shows that code ran."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.target,)


def test_rows_come_back(folder: Path) -> None:
    """The catalog returns length and dataset of a chunk, and when the dataset was last used."""
    catalog = Catalog(folder)
    found = catalog.open()
    catalog.close()
    assert found.chunks == {KEY: CatalogRow(4711, "digest")}
    assert found.used["digest"] > 1.7e9


def test_the_first_write_makes_it(tmp_path: Path) -> None:
    """Opening a missing catalog returns no chunks and creates nothing; the first write creates its database."""
    catalog = Catalog(tmp_path / "catalog")
    assert catalog.open().chunks == {}
    assert not (tmp_path / "catalog").exists()
    catalog.write({KEY: CatalogRow(4711, "digest")})
    catalog.close()
    assert contents(tmp_path / "catalog") == {KEY: CatalogRow(4711, "digest")}


def test_an_empty_one_keeps_its_connection(tmp_path: Path) -> None:
    """Writes to an empty catalog open no more descriptors than the first one did."""
    catalog = Catalog(tmp_path / "catalog")
    catalog.open()
    catalog.write({}, removed=[KEY])
    opened = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        catalog.write({}, removed=[KEY])
    assert len(os.listdir("/proc/self/fd")) == opened
    catalog.close()


def test_a_foreign_database_is_an_error_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that fails with any error when it is opened for a write is a CacheError; the next write succeeds."""
    catalog = Catalog(tmp_path)
    catalog.open()

    def fail(_: Path) -> None:
        """Stands for a database with settings of other types, which another program wrote."""
        raise TypeError("not supported between instances")

    with monkeypatch.context() as changed:
        changed.setattr(catalog_database, "open_database", fail)
        with pytest.raises(CacheError, match="cannot write the catalog"):
            catalog.write({KEY: CatalogRow(1, "digest")})
    catalog.write({KEY: CatalogRow(1, "digest")})
    catalog.close()
    assert contents(tmp_path) == {KEY: CatalogRow(1, "digest")}


def test_rows_are_removed(folder: Path) -> None:
    """`write` removes the rows of given keys and ignores unknown keys."""
    catalog = Catalog(folder)
    catalog.open()
    catalog.write({}, removed=[KEY, b"?" * 16])
    catalog.close()
    assert contents(folder) == {}


@pytest.mark.parametrize("column", ["key", "value"])
def test_a_planted_pickle_does_not_run(folder: Path, tmp_path: Path, column: str) -> None:
    """A pickle in a row's key or value is never loaded, and the catalog is made anew."""
    target = tmp_path / "executed"
    bomb = sqlite3.Binary(pickle.dumps(Bomb(target)))
    key, raw, mode, value = (bomb, 0, 1, b"x") if column == "key" else (b"k" * 16, 1, 4, bomb)
    plant(folder, "INSERT INTO Cache (key, raw, mode, value) VALUES (?, ?, ?, ?)", key, raw, mode, value)
    assert contents(folder) == {}
    assert not target.exists()
    pickle.loads(bytes(bomb))  # the bomb is a real one
    assert target.exists()


@pytest.mark.parametrize(
    "row",
    [
        (b"k" * 16, 1, 2, "../../etc/passwd", None),
        (b"k" * 16, 1, 3, "cache.db", None),
        (b"k" * 16, 1, 1, None, 17),
        (b"k" * 16, 1, 1, None, b"\x07unknown version"),
        (b"short", 1, 1, None, b"\x01" + bytes(8)),
        (12, 1, 1, None, b"x"),
        ("text nobody wrote", 1, 3, None, "x"),
        ("used:d", 1, 3, None, "not a number"),
    ],
)
def test_a_row_that_is_not_ours_makes_it_anew(folder: Path, row: tuple[object, ...]) -> None:
    """A catalog with a foreign row (a file outside, a number, another version, another key) is made anew, empty."""
    statement = "INSERT INTO Cache (key, raw, mode, filename, value) VALUES (?, ?, ?, ?, ?)"
    plant(folder, statement, *row)
    assert contents(folder) == {}
    assert contents(folder) == {}


def test_a_trigger_makes_it_anew(folder: Path) -> None:
    """A catalog with a planted SQL trigger is made anew, so that foreign SQL never runs."""
    plant(folder, "CREATE TRIGGER planted AFTER INSERT ON Cache BEGIN DELETE FROM Settings; END")
    assert contents(folder) == {}


@pytest.mark.parametrize("damage", [b"", b"not a database at all" * 100, None])
def test_a_damaged_database_makes_it_anew(folder: Path, damage: bytes | None) -> None:
    """An empty, foreign or truncated database is made anew, since the chunk files are the truth."""
    database = folder / "cache.db"
    whole = database.read_bytes()
    database.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    assert contents(folder) == {}
    assert contents(folder) == {}


def test_a_settings_row_cannot_configure_us(folder: Path) -> None:
    """A catalog with an unknown row in its settings is made anew, without an error."""
    plant(folder, "INSERT OR REPLACE INTO Settings VALUES ('disk_planted', 'x')")
    assert contents(folder) == {}


def test_peek_changes_nothing(folder: Path) -> None:
    """`peek` reads the rows without a change of the database, and returns none where there is no catalog."""
    before = (folder / "cache.db").read_bytes()
    assert Catalog(folder).peek() == {KEY: CatalogRow(4711, "digest")}
    assert (folder / "cache.db").read_bytes() == before
    assert Catalog(folder.parent / "none").peek() == {}


@pytest.mark.parametrize("value", [1, 1.5, None, {"a": 1}])
def test_the_disk_refuses_anything_but_bytes_and_text(tmp_path: Path, value: object) -> None:
    """The catalog's disk takes only bytes and text as keys and values."""
    disk = CatalogDisk(str(tmp_path))
    with pytest.raises(TypeError, match="the catalog stores bytes and text, not"):
        disk.store(value, False)
    with pytest.raises(TypeError, match="the catalog stores bytes and text, not"):
        disk.put(value)


def test_the_disk_has_no_files(tmp_path: Path) -> None:
    """The catalog's disk gives out no filename and unlinks nothing for a row."""
    disk = CatalogDisk(str(tmp_path))
    keep = tmp_path / "keep"
    keep.touch()
    disk.remove(str(keep))
    assert keep.exists()
    with pytest.raises(ForeignRowError):
        disk.filename()


def test_a_closed_catalog_says_so(folder: Path) -> None:
    """Writing to a closed catalog raises CacheError."""
    catalog = Catalog(folder)
    catalog.open()
    catalog.close()
    with pytest.raises(CacheError, match="closed"):
        catalog.write({})


def test_a_catalog_that_cannot_be_read_is_empty(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog that the disk cannot read counts as empty, both at `open` and at `peek`, without an error."""
    catalog = Catalog(folder)
    catalog.open()
    catalog.write({bytes(16): CatalogRow(10, "d")})
    catalog.close()
    error = OSError(errno.EIO, os.strerror(errno.EIO))

    def fails(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("streamer.cache.catalog_database.read_rows", fails)
    assert catalog.open().chunks == {}
    assert catalog.peek() == {}
    catalog.close()


def test_a_python_without_sqlite(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a Python without sqlite3 the catalog reads as empty, and a write raises CacheError that names the module."""
    monkeypatch.delitem(sys.modules, "streamer.cache.catalog_database")
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    assert contents(folder) == {}
    assert Catalog(folder).peek() == {}
    catalog = Catalog(folder)
    catalog.open()
    with pytest.raises(CacheError, match="this Python has no sqlite3"):
        catalog.write({KEY: CatalogRow(1, "digest")})
    catalog.close()
