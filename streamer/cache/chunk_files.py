"""Writes single chunk files, compares them with their checksums, unlinks them, and locks their keys meanwhile.

Used in threads of the engine (`cache/`, `recode/recoded_chunks.py`, `peers/source.py`), in fetch processes
(`engine/processes/fetching.py`), and by commands (`maintenance.py`). A file is written with header, bytes and table of
checksums, and then renamed, which publishes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.base import linux
from streamer.base.system_limits import limit_error
from streamer.cache.folder import CacheFolder, Permissions
from streamer.errors import CacheError, IntegrityError
from streamer.formats.checksum import crc32, join_crc32
from streamer.formats.chunkfile import HEADER_BYTES, ChunkHeader

logger = logging.getLogger(__name__)

# Linux takes at most 1,024 buffers in a call.
_BUFFERS_PER_CALL = 1024

Buffer = memoryview | bytes


class Published(msgspec.Struct, frozen=True):
    """A chunk that has become readable.

    Attributes:
        root: the folder that it is in: the cache folder, or the folder in memory if the disk refused it.
        file_bytes: length of its file.
    """

    root: Path
    file_bytes: int


class ChunkBytes(msgspec.Struct, frozen=True):
    """A chunk that is to be published.

    Attributes:
        key: key of the chunk, 16 bytes.
        parts: bytes of the chunk in order, in one or several buffers.
        sample_offsets: where samples begin in the chunk, (samples + 1,), from 0 to the length of all parts.
        codec: number that says how the bytes are stored (`Codec`).
    """

    key: bytes
    parts: Sequence[Buffer]
    sample_offsets: NDArray[np.int64]
    codec: int = 0

    @property
    def local_bytes(self) -> int:
        """Length of all parts together."""
        return sum(len(part) for part in self.parts)


def sample_checksums(parts: Sequence[Buffer], offsets: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Returns the CRC-32 of each sample, (samples,); a sample may lie in several parts.

    Args:
        parts: bytes of a chunk, in order.
        offsets: where samples begin in the chunk, and where the last one ends, (samples + 1,).
    """
    found = np.empty(len(offsets) - 1, "<u4")
    views = [memoryview(part).cast("B") for part in parts]
    part = 0
    part_start = 0
    for sample, stop in enumerate(offsets[1:].tolist()):
        at = int(offsets[sample])
        crc = 0
        while at < stop:
            if at >= part_start + len(views[part]):
                part_start += len(views[part])
                part += 1
                continue
            piece = views[part][at - part_start : stop - part_start]
            crc = crc32(piece, crc)
            at += len(piece)
        found[sample] = crc
    return found


def compute_checksums(parts: Sequence[Buffer], offsets: NDArray[np.int64]) -> tuple[NDArray[np.uint32], int]:
    """Returns the CRC-32 of each sample, as `sample_checksums`, and that of all parts together."""
    samples = sample_checksums(parts, offsets)
    return samples, join_crc32(samples.tolist(), np.diff(offsets).tolist(), parts)


def write_chunk(chunk: ChunkBytes, folder: CacheFolder) -> int:
    """Writes a chunk's file under a temporary name, and renames it; leaves nothing behind if that fails.

    There is no fsync: a file torn by a power loss is found by its checksums and fetched again.

    Returns:
        Length of the file.

    Raises:
        CacheError: the offsets do not cover the bytes.
        ConfigError: `ulimit -f` is smaller than the file.
        OSError: the disk refuses (ENOSPC, EIO, ...).
    """
    offsets = chunk.sample_offsets
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != chunk.local_bytes:
        raise CacheError(
            f"chunk {chunk.key.hex()} has {chunk.local_bytes} bytes, its samples do not cover them exactly",
            local_bytes=chunk.local_bytes,
        )
    samples, payload_crc = compute_checksums(chunk.parts, offsets)
    table = samples.tobytes()
    header = ChunkHeader(
        key=chunk.key,
        local_bytes=chunk.local_bytes,
        samples=len(offsets) - 1,
        table_crc=crc32(table),
        payload_crc=payload_crc,
        codec=int(chunk.codec),
    )
    temporary = folder.temporary_path(chunk.key)
    try:
        _write(temporary, [header.encode(), *chunk.parts, table], header.file_bytes, folder.permissions)
        os.rename(temporary, folder.chunk_path(chunk.key))
    except BaseException as error:
        # A disk that refused the file may refuse this, too; the next start of an engine removes such files.
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno == errno.EFBIG and (limit := limit_error(error)) is not None:
            raise limit from error
        raise
    return header.file_bytes


def _write(path: Path, buffers: list[Buffer], length: int, permissions: Permissions) -> None:
    """Writes buffers, `length` bytes together, to a new file. Raises OSError if it exists or the disk refuses it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, permissions.file_mode)
    try:
        permissions.apply_to_file(descriptor)
        # All blocks are allocated before the bytes are written: a full disk says so at once, a growing file on XFS
        # would take more than it needs, and it is cheaper (0.24 instead of 0.32 CPU s/GB, ext4, 8 MiB, 2026-11-20).
        # There is no sync_file_range afterwards: it costs 0.05 CPU s/GB and now and then waits 100 ms for the disk.
        linux.allocate(descriptor, length)
        views = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        at = 0
        first = 0
        while first < len(views):
            written = os.pwritev(descriptor, views[first : first + _BUFFERS_PER_CALL], at)
            at += written
            while first < len(views) and written >= len(views[first]):
                written -= len(views[first])
                first += 1
            if written:
                views[first] = views[first][written:]
    finally:
        os.close(descriptor)


_PIECE_BYTES = 1 << 20
# How often a read that fails is tried: many failures of a disk pass.
_TRIES = 3


def verify_file(path: Path, key: bytes) -> ChunkHeader:
    """Reads the whole file of a chunk and compares it with its checksums; returns its header.

    Raises:
        IntegrityError: it is truncated, has other bytes than were written, or is the file of another chunk. The text
            says what differs.
        FileNotFoundError: it does not exist.
        OSError: it cannot be opened, or a part of it could not be read in several tries.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        head = bytearray(HEADER_BYTES)
        count = _preadv(descriptor, memoryview(head), 0)
        header = ChunkHeader.decode(bytes(head[:count]), str(path))
        _check_equal(path, "key", key.hex(), header.key.hex())
        _check_equal(path, "length", header.file_bytes, os.fstat(descriptor).st_size)
        table_at = HEADER_BYTES + header.local_bytes
        payload_crc = _compute_crc(descriptor, HEADER_BYTES, table_at)
        _check_equal(path, "checksum of its bytes", header.payload_crc, payload_crc)
        table_crc = _compute_crc(descriptor, table_at, header.file_bytes)
        _check_equal(path, "checksum of its table", header.table_crc, table_crc)
    finally:
        os.close(descriptor)
    return header


def _check_equal(path: Path, what: str, expected: str | int, actual: str | int) -> None:
    if expected != actual:
        raise IntegrityError(
            f"{path}: {what} is {actual}, expected {expected}", where=str(path), expected=expected, actual=actual
        )


def _compute_crc(descriptor: int, start: int, stop: int) -> int:
    """Returns the CRC-32 of the bytes from `start` to `stop` of a file, or to its end if it is shorter."""
    buffer = memoryview(bytearray(min(_PIECE_BYTES, max(0, stop - start))))
    crc = 0
    while start < stop:
        count = _preadv(descriptor, buffer[: stop - start], start)
        if not count:
            break
        crc = crc32(buffer[:count], crc)
        start += count
    return crc


def _preadv(descriptor: int, buffer: memoryview, offset: int) -> int:
    for _ in range(_TRIES - 1):
        with contextlib.suppress(OSError):
            return os.preadv(descriptor, [buffer], offset)
    return os.preadv(descriptor, [buffer], offset)


class KeyLocks:
    """Locks keys of chunks, so that each has one writer or unlinker at a time. Lives on one loop."""

    def __init__(self) -> None:
        self._busy: dict[bytes, asyncio.Event] = {}

    def __repr__(self) -> str:
        return f"KeyLocks({len(self._busy)} keys busy)"

    @contextlib.asynccontextmanager
    async def hold(self, keys: Sequence[bytes]) -> AsyncIterator[asyncio.Event]:
        """Waits until all keys are free, then holds all of them inside an `async with`.

        Yields an event that is set when they are free again.
        """
        while others := [self._busy[key] for key in keys if key in self._busy]:
            await others[0].wait()
        done = asyncio.Event()
        self._busy.update(dict.fromkeys(keys, done))
        try:
            yield done
        finally:
            for key in set(keys):
                del self._busy[key]
            done.set()


def unlink_all(paths: Mapping[bytes, Path], failed: dict[bytes, OSError]) -> None:
    """Unlinks files, of which some may be missing; adds the error of each that stays to `failed`, by key."""
    for key, path in paths.items():
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            failed[key] = error


def advise(path: Path, advice: linux.Advice) -> None:
    """Advises the kernel about the pages of a file; does nothing if the file cannot be opened.

    The reason, such as an eviction or a failing disk, is left to the reader of the file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            linux.advise(descriptor, advice)
        finally:
            os.close(descriptor)
    except OSError as error:
        logger.debug("no advice about the pages of %s: %s", path, error)
