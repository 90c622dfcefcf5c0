"""Opens and reads the database of the catalog: diskcache without its pickles, files and evictions.

`catalog.py` imports it only when the catalog is used, because the import takes 4 ms.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import diskcache
from diskcache.core import DBNAME, DEFAULT_SETTINGS, METADATA, MODE_RAW, MODE_TEXT

from streamer.cache.catalog_row import ForeignRowError

# The first are errors of SQLite. A database that is damaged, or that another program wrote, may cause any of them all.
DATABASE_ERRORS = (sqlite3.Error, diskcache.Timeout)
FOREIGN_ERRORS = (*DATABASE_ERRORS, ForeignRowError, TypeError, ValueError)

# The database evicts nothing by itself. There is no vacuum at each delete, which would double the work, no mmap, which
# takes 64 MB of address space, and a small page cache and log, which count against the engine's memory or the limit.
_SETTINGS: dict[str, int | str] = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "statistics": 0,
    "tag_index": 0,
    "size_limit": 2**62,
    "sqlite_auto_vacuum": 0,
    "sqlite_cache_size": 1024,
    "sqlite_mmap_size": 0,
    "sqlite_journal_size_limit": 1 << 18,
    "sqlite_wal_autocheckpoint": 32,
}


class CatalogDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache has no types
    """Stores and accepts bytes and text inside the row; refuses pickles, numbers and files in both directions.

    diskcache calls these methods, whose names and arguments are its own. What is refused when it is written raises
    TypeError, and what is refused when it is read ForeignRowError.
    """

    def put(self, key: object) -> tuple[object, bool]:
        """Returns a key as SQLite stores it, and True: it is no pickle."""
        if isinstance(key, bytes):
            return sqlite3.Binary(key), True
        return _text(key), True

    def get(self, key: object, raw: int) -> bytes | str:
        """Returns a key as it was put."""
        if not raw or not isinstance(key, bytes | str):
            raise ForeignRowError(f"the catalog holds a key of type {type(key).__name__} (raw={raw})")
        return key

    def store(self, value: object, read: bool, key: object = None) -> tuple[int, int, None, object]:
        """Returns a value as SQLite stores it: size of a file (none), mode, file name (none), value."""
        if isinstance(value, bytes) and not read:
            return 0, MODE_RAW, None, sqlite3.Binary(value)
        return 0, MODE_TEXT, None, _text(value)

    def fetch(self, mode: int, filename: str | None, value: object, read: bool) -> bytes | str:
        """Returns a value as `store` was given it; refuses any other mode as foreign."""
        plain = (mode == MODE_RAW and isinstance(value, bytes)) or (mode == MODE_TEXT and isinstance(value, str))
        if filename is not None or read or not plain:
            raise ForeignRowError(f"the catalog holds a row of mode {mode}, file {filename!r}: it is not ours")
        assert isinstance(value, bytes | str)
        return value

    def filename(self, key: object = None, value: object = None) -> tuple[str, str]:
        """Raises ForeignRowError: values never go to files."""
        raise ForeignRowError("the catalog does not store files")

    def remove(self, file_path: str) -> None:
        """Does nothing: a row must not make us unlink a file, wherever it points."""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"the catalog stores bytes and text, not {type(value).__name__}")
    return value


def open_database(directory: Path) -> diskcache.Cache:
    """Opens the database in a folder, or creates it there.

    Raises:
        sqlite3.Error, diskcache.Timeout, ForeignRowError, TypeError, ValueError: it cannot be opened, is damaged, or
            another program wrote it.
        OSError: the folder cannot be made.
    """
    directory.mkdir(mode=0o700, exist_ok=True)
    path = directory / DBNAME
    if path.exists():
        # Damage, triggers that would run at our writes, and foreign settings are refused before diskcache opens it:
        # its constructor leaves connections open when it fails.
        with contextlib.closing(_connect(path)) as connection:
            sound = connection.execute("PRAGMA quick_check(1)").fetchone()
            code = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchall()
            names = connection.execute("SELECT key FROM Settings").fetchall()
        foreign = {name for (name,) in names} - {*DEFAULT_SETTINGS, *METADATA, *_SETTINGS}
        foreign |= {name for (name,) in code if not str(name).startswith("Settings_")}
        if foreign or sound != ("ok",):
            raise ForeignRowError(
                f"the catalog is damaged, or has settings, triggers or views that are not ours: {foreign}"
            )
    cache = diskcache.Cache.__new__(diskcache.Cache)
    try:
        cache.__init__(str(directory), timeout=5, disk=CatalogDisk, **_SETTINGS)
    except BaseException:
        # If the constructor fails, on a full disk, it leaves its connection open.
        with contextlib.suppress(AttributeError):
            cache.close()
        raise
    return cache


def read_rows(directory: Path) -> Iterator[tuple[bytes | str, bytes | str]]:
    """Yields the keys and values of all rows, in one query that changes nothing.

    Raises:
        sqlite3.Error: the database cannot be read.
        ForeignRowError: another program wrote a row.
    """
    disk = CatalogDisk(str(directory))
    with contextlib.closing(_connect(directory / DBNAME)) as connection:
        for key, raw, mode, filename, value in connection.execute("SELECT key, raw, mode, filename, value FROM Cache"):
            yield disk.get(key, raw), disk.fetch(mode, filename, value, False)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
