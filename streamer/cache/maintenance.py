"""Counts, checks, clears and exports a cache folder, without its engine.

`streamer cache stat | check | clear | export` calls it (`cli/cache_command.py`), and `cli/warming.py` exports with it.
It is synchronous. The caller holds the engine's lock of the folder while `clear` runs.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from streamer.cache.catalog import Catalog
from streamer.cache.chunk_files import verify_file
from streamer.cache.folder import (
    MARKER,
    ROOT_ID,
    SUBFOLDERS,
    CacheFolder,
    list_chunk_files,
    measure_usage,
    open_folder,
    open_layer,
    read_header,
)
from streamer.errors import CacheError, IntegrityError, ManifestError
from streamer.manifest.reader_lock import keep_folder
from streamer.manifest.staging import settle

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class FolderStatistics:
    """What a cache folder has.

    Attributes:
        chunks: number of chunk files.
        chunk_bytes: length of these files together.
        used_bytes: bytes that the whole folder occupies on the disk.
        datasets: number of chunk files and their bytes, by the digest of the dataset's manifest ("" if unknown).
        root_id: id of the folder, 32 hex digits.
    """

    chunks: int
    chunk_bytes: int
    used_bytes: int
    datasets: dict[str, tuple[int, int]]
    root_id: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `check` found.

    Attributes:
        chunks: number of chunk files that were read.
        checked_bytes: length of these files together.
        damaged: what is wrong with each bad file, by the chunk's key in hex digits.
    """

    chunks: int
    checked_bytes: int
    damaged: dict[str, str]


def stat(path: Path) -> FolderStatistics:
    """Returns how many chunks and bytes a cache folder has. Reads the catalog without changing it.

    Raises:
        CacheError: it cannot be read, or is not a cache folder (CacheVersionError).
        OSError: its files cannot be listed.
    """
    folder = open_layer(path)
    rows = Catalog(path / "catalog").peek()
    datasets: dict[str, tuple[int, int]] = {}
    chunks = total = 0
    for key, length in list_chunk_files(folder):
        chunks = chunks + 1
        total = total + length
        name = rows[key].dataset if key in rows else ""
        count, size = datasets.get(name, (0, 0))
        datasets[name] = (count + 1, size + length)
    return FolderStatistics(
        chunks=chunks, chunk_bytes=total, used_bytes=measure_usage(path), datasets=datasets, root_id=folder.root_id
    )


def check(path: Path, *, repair: bool = False, progress: Progress | None = None) -> CheckReport:
    """Reads every chunk file of a folder and compares it with its checksums; returns what it found.

    Args:
        path: the cache folder, or a layer.
        repair: whether to unlink damaged files (the next engine fetches them again).
        progress: called after each chunk with (chunks done, chunks).

    Raises:
        CacheError: it cannot be read, or is not a cache folder (CacheVersionError).
        OSError: the files cannot be listed, or a damaged one cannot be unlinked.
    """
    folder = open_layer(path)
    files = list(list_chunk_files(folder))
    damaged: dict[str, str] = {}
    for done, (key, _) in enumerate(files, 1):
        try:
            verify_file(folder.chunk_path(key), key)
        except (IntegrityError, OSError) as error:
            damaged[key.hex()] = str(error)
            if repair:
                folder.chunk_path(key).unlink(missing_ok=True)
        if progress:
            progress(done, len(files))
    return CheckReport(len(files), sum(length for _, length in files), damaged)


def clear(path: Path) -> int:
    """Removes chunks, manifests, catalog and markers, but not the folder, so that mounts and permissions stay.

    Returns:
        Bytes that the folder occupied on the disk before.

    Raises:
        CacheError: it cannot be used, or is not a cache folder (CacheVersionError); then nothing is removed.
        OSError: the folder cannot be measured, or a marker cannot be removed. Other files that cannot be removed stay.
    """
    open_layer(path)
    freed = measure_usage(path)
    for name in SUBFOLDERS:
        shutil.rmtree(path / name, ignore_errors=True)
    for name in (ROOT_ID, MARKER):
        (path / name).unlink(missing_ok=True)
    return freed


def export(path: Path, target: Path, *, keys: Iterable[bytes] | None = None, progress: Progress | None = None) -> int:
    """Copies checked chunks and all manifests into another folder, to be used as a read-only layer (a disk image).

    Chunks that the target already has are not copied again. Damaged and missing ones are left out, and logged.

    Args:
        path: the cache folder.
        target: the other folder, which is created if missing, with the same layout.
        keys: keys of the chunks to copy. None means all.
        progress: called after each chunk with (chunks done, chunks).

    Returns:
        Number of requested chunks that the target has now.

    Raises:
        CacheError: one of the folders cannot be used, the disk of the target is full, or one of the disks fails. The
            target has whole files only.
        ManifestError: a manifest cannot be locked or read.
        OSError: the chunks of the source cannot be listed.
        ConfigError: the group of the target does not exist, or this process may open no more files.
    """
    there = export_chunks(path, target, keys, progress)
    export_manifests(path, target)
    return len(there)


def export_chunks(
    path: Path, target: Path, keys: Iterable[bytes] | None = None, progress: Progress | None = None
) -> set[bytes]:
    """Copies checked chunks as `export` does, and returns the keys of those that the target has now.

    Raises:
        CacheError, OSError, ConfigError: as for `export`.
    """
    source = open_layer(path)
    layer = open_folder(target)
    wanted = [key for key, _ in list_chunk_files(source)] if keys is None else list(keys)
    there = set()
    for done, key in enumerate(wanted, 1):
        try:
            _copy_chunk(source, layer, key)
            there.add(key)
        except (IntegrityError, FileNotFoundError) as error:
            logger.warning("not exported: %s", error)
        except OSError as error:
            raise _refuse_target(target, error) from error
        if progress:
            progress(done, len(wanted))
    return there


def export_manifests(path: Path, target: Path) -> None:
    """Copies all manifests, and what is made of them, into another folder, each as a whole.

    What is still being written is left out, and so is what is removed meanwhile.

    Raises:
        CacheError: one of the folders cannot be used, the disk of the target is full, or one of the disks fails.
        ManifestError: a manifest cannot be locked or read.
        ConfigError: the group of the target does not exist, or this process may open no more files.
    """
    open_layer(path)
    layer = open_folder(target)
    try:
        for source in sorted((path / "manifests").iterdir()):
            # Writers and removers work under names that begin with a dot.
            if not source.name.startswith("."):
                _copy_manifest(source, layer)
    except OSError as error:
        raise _refuse_target(target, error) from error


def _copy_manifest(source: Path, layer: CacheFolder) -> None:
    """Copies a manifest, or a file beside it, to a layer; does nothing if it is gone. An intact manifest there stays.

    Raises:
        OSError: it cannot be read, or the disk of the layer cannot be written.
        ManifestError: it cannot be locked or read.
        ConfigError: this process may open no more files.
    """
    goal = layer.path / "manifests" / source.name
    temporary = layer.path / "tmp" / f"{source.name}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        if source.is_dir():
            with keep_folder(source):
                shutil.copytree(source, temporary)
            settle(temporary, goal, durable=False)
        else:
            shutil.copy2(source, temporary)
            os.replace(temporary, goal)
    except (FileNotFoundError, ManifestError):
        if source.exists():
            raise
    except shutil.Error as error:
        # Files of a folder that is no manifest, such as notes of interrupted indexes, may leave it meanwhile.
        if any(Path(file).exists() for file, _, _ in error.args[0]):
            raise OSError(None, "; ".join(sorted({why for _, _, why in error.args[0]})), str(source)) from error
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _copy_chunk(source: CacheFolder, layer: CacheFolder, key: bytes) -> None:
    """Copies a checked chunk to a layer that lacks it, as a whole or not at all.

    Raises:
        IntegrityError: the chunk of the source or of the layer is damaged.
        OSError: the source does not have it, or a disk fails.
    """
    goal = layer.chunk_path(key)
    if not goal.exists():
        verify_file(source.chunk_path(key), key)
        temporary = layer.temporary_path(key)
        try:
            shutil.copyfile(source.chunk_path(key), temporary)
            os.chmod(temporary, layer.permissions.file_mode)
            os.rename(temporary, goal)
        except BaseException:
            # A disk that refused the file may refuse this, too.
            with suppress(OSError):
                temporary.unlink()
            raise
    read_header(layer, key, goal.stat().st_size)


def _refuse_target(target: Path, error: OSError) -> CacheError:
    return CacheError(
        f"the export to {target} has ended: {error.strerror or error}; a second run copies only what is missing",
        where=str(target),
    )
