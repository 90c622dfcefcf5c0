"""The persistent index of the cache: one row per chunk in diskcache (SQLite), bytes and text only.

The files are the truth and the catalog is their index: it is read in one query at start, written in batches off the
loop, and made anew when anything in it is not what we write ourselves. Nothing in it is ever unpickled: diskcache by
itself runs `pickle.load` on a row that says so (CVE-2025-69872), so a row somebody planted would run code.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sqlite3
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import diskcache
from diskcache.core import DBNAME, DEFAULT_SETTINGS, METADATA, MODE_RAW, MODE_TEXT

from streamer.cache.table import KEY_BYTES
from streamer.errors import CacheError

logger = logging.getLogger(__name__)

# version of the row, file_bytes; the rest is the dataset's id in UTF-8.
_ROW = struct.Struct("<BQ")
ROW_VERSION = 1
_USED = "used:"

# Culling and eviction are ours. No vacuum at each delete (it pays each eviction twice), no mmap (64 MB of address
# space), and a small page cache and log: both count against the limit or the engine's memory.
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


class ForeignRowError(CacheError):
    """The catalog holds a row that this program does not write."""


class PlainDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache has no types
    """Stores and accepts bytes and text inside the row; refuses pickles, numbers and files, both ways."""

    def put(self, key: object) -> tuple[object, bool]:
        """A key as SQLite stores it."""
        if isinstance(key, bytes):
            return sqlite3.Binary(key), True
        return _text(key), True

    def get(self, key: object, raw: int) -> bytes | str:
        """A key as it was put."""
        if not raw or not isinstance(key, bytes | str):
            raise ForeignRowError(f"the catalog holds a key of type {type(key).__name__} (raw={raw})")
        return key

    def store(self, value: object, read: bool, key: object = None) -> tuple[int, int, None, object]:
        """A value as SQLite stores it: size of a file (none), mode, file name (none), value."""
        if isinstance(value, bytes) and not read:
            return 0, MODE_RAW, None, sqlite3.Binary(value)
        return 0, MODE_TEXT, None, _text(value)

    def fetch(self, mode: int, filename: str | None, value: object, read: bool) -> bytes | str:
        """A value as it was stored; any other mode is somebody else's."""
        plain = (mode == MODE_RAW and isinstance(value, bytes)) or (mode == MODE_TEXT and isinstance(value, str))
        if filename is not None or read or not plain:
            raise ForeignRowError(f"the catalog holds a row of mode {mode}, file {filename!r}: it is not ours")
        assert isinstance(value, bytes | str)
        return value

    def filename(self, key: object = None, value: object = None) -> tuple[str, str]:
        """Values never go to files."""
        raise ForeignRowError("the catalog does not store files")

    def remove(self, file_path: str) -> None:
        """A row cannot make us unlink a file, wherever it points."""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"the catalog stores bytes and text, not {type(value).__name__}")
    return value


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """What the catalog says of a chunk file."""

    file_bytes: int
    dataset: str

    def encode(self) -> bytes:
        """The row's value."""
        return _ROW.pack(ROW_VERSION, self.file_bytes) + self.dataset.encode()

    @classmethod
    def decode(cls, raw: bytes) -> CatalogRow:
        """Reads a value.

        Raises:
            ForeignRowError: another version, or not ours.
        """
        if len(raw) < _ROW.size or raw[0] != ROW_VERSION:
            raise ForeignRowError(f"a catalog row of {len(raw)} bytes is not of version {ROW_VERSION}")
        _, file_bytes = _ROW.unpack_from(raw)
        return cls(file_bytes, raw[_ROW.size :].decode(errors="replace"))


@dataclass(slots=True)
class CatalogContents:
    """All rows: chunks by key, and when each dataset was last used (seconds since 1970)."""

    chunks: dict[bytes, CatalogRow]
    used: dict[str, float]


class Catalog:
    """The catalog's folder. Lives on one thread (SQLite connections do); owned by `ChunkCache`.

    Args:
        directory: made when missing, mode 0700.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cache: diskcache.Cache | None = None

    def __repr__(self) -> str:
        return f"Catalog({str(self._directory)!r}, {'open' if self._cache else 'closed'})"

    def open(self) -> CatalogContents:
        """Opens it and reads every row in one query; a damaged or foreign one is made anew, empty.

        Raises:
            CacheError: the folder cannot be written.
        """
        try:
            return self._open()
        except (sqlite3.Error, ForeignRowError, diskcache.Timeout, TypeError, ValueError) as error:
            logger.warning("catalog %s is made anew from the chunk files: %s", self._directory, error)
            self.close()
            shutil.rmtree(self._directory, ignore_errors=True)
        try:
            return self._open()
        except (sqlite3.Error, diskcache.Timeout) as error:
            raise CacheError(f"cannot write the catalog in {self._directory}: {error}") from error

    def _open(self) -> CatalogContents:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        if (self._directory / DBNAME).exists():
            _refuse_foreign(self._directory / DBNAME)
        self._cache = diskcache.Cache(str(self._directory), timeout=5, disk=PlainDisk, **_SETTINGS)
        return self._read()

    def peek(self) -> dict[bytes, CatalogRow]:
        """The chunk rows, read without changing anything; empty when it cannot be read, and in a layer."""
        if not (self._directory / DBNAME).exists():
            return {}
        try:
            return self._read().chunks
        except (sqlite3.Error, ForeignRowError, ValueError) as error:
            logger.warning("catalog %s is not readable: %s", self._directory, error)
            return {}

    def _read(self) -> CatalogContents:
        contents = CatalogContents({}, {})
        disk = PlainDisk(str(self._directory))
        with contextlib.closing(_connect(self._directory / DBNAME)) as connection:
            for key, raw, mode, filename, value in connection.execute(
                "SELECT key, raw, mode, filename, value FROM Cache"
            ):
                _sort_in(disk.get(key, raw), disk.fetch(mode, filename, value, False), contents)
        return contents

    def write(
        self,
        added: Mapping[bytes, CatalogRow],
        removed: Iterable[bytes] = (),
        used: Iterable[str] = (),
        forgotten: Iterable[str] = (),
    ) -> None:
        """One transaction: rows added, rows removed, datasets used now and those that are never used again.

        Raises:
            CacheError: the disk does not take it; the files are unharmed, the next start reconciles.
        """
        if self._cache is None:
            raise CacheError(f"the catalog {self._directory} is closed")
        try:
            with self._cache.transact():
                for key in removed:
                    self._cache.delete(key)
                for key, row in added.items():
                    self._cache.set(key, row.encode())
                for dataset in forgotten:
                    self._cache.delete(_USED + dataset)
                for dataset in used:
                    self._cache.set(_USED + dataset, f"{time.time():.3f}")
        except (sqlite3.Error, diskcache.Timeout) as error:
            raise CacheError(f"cannot write the catalog in {self._directory}: {error}") from error

    def close(self) -> None:
        """Closes the connection; again is harmless."""
        if self._cache is not None:
            self._cache.close()
            self._cache = None


def _connect(path: Path) -> sqlite3.Connection:
    """A connection that only reads."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _refuse_foreign(path: Path) -> None:
    """Looks before diskcache does: damage, somebody's SQL that would run at our writes, somebody's settings.

    (Its constructor leaves connections open when it fails.)
    """
    with contextlib.closing(_connect(path)) as connection:
        sound = connection.execute("PRAGMA quick_check(1)").fetchone()
        code = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchall()
        names = connection.execute("SELECT key FROM Settings").fetchall()
    known = {*DEFAULT_SETTINGS, *METADATA, *_SETTINGS}
    foreign = {name for (name,) in names} - known | {name for (name,) in code if not str(name).startswith("Settings_")}
    if foreign or sound != ("ok",):
        raise ForeignRowError(
            f"the catalog is damaged, or has settings, triggers or views that are not ours: {foreign}"
        )


def _sort_in(key: bytes | str, value: bytes | str, contents: CatalogContents) -> None:
    if isinstance(key, bytes) and isinstance(value, bytes) and len(key) == KEY_BYTES:
        contents.chunks[key] = CatalogRow.decode(value)
    elif isinstance(key, str) and isinstance(value, str) and key.startswith(_USED):
        contents.used[key.removeprefix(_USED)] = float(value)
    else:
        raise ForeignRowError(f"the catalog holds a row {key!r} that is not ours")
