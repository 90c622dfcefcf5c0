"""Reads samples from chunks' files in the cache folder, and compares every byte that is used with its checksum.

The readers of samples use it (`batches/samples/`, `loader/scan_reader.py`); `loader/rank/sharing.py` asks
`find_chunks`. A file's checksums are read once and kept for a while, also if another file replaces it meanwhile: other
bytes would not match. Files are not mapped: reading cold pages through a mapping holds the GIL for 13-15 ms at a time.
Nor are they kept open: an open costs 8 us, and an evicted file that is still open would occupy space that the cache
counts as free.

A read that fails or is wrong is repeated at once, because many failures of a disk pass. Then it is an IntegrityError,
upon which the caller rejects the chunk and gets another copy.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import CacheError, IntegrityError
from streamer.formats import chunkfile
from streamer.formats.checksum import crc32, crc32_of
from streamer.formats.chunkfile import COUNTS_BYTES, RecordTable, counts_of, table_bytes
from streamer.manifest.model import Codec

_CRC = struct.Struct("<I")
# Adjacent samples are read together, up to this many bytes. Longer calls gain nothing: reading and checking takes 55
# us/MiB of CPU in calls of 256 KiB, 48 in calls of 1 MiB, 43 in calls of 4 MiB (2026-11-20).
_RUN_BYTES = 4 << 20
# The most buffers of one system call (IOV_MAX).
_RUN_PIECES = 1024
# A folder in which every user may make folders, also one with the name of an engine's folder in memory.
_SHARED_BY_ALL = "/dev/shm/"
# Checksums of chunks of at most this many samples are kept, together 16 MiB: 25,000 chunks of 8 MiB in samples of
# 100 KB. Reading header and checksums again cost 3 us of 38 for each of those (2026-11-22).
_KEPT_BYTES = 16 << 20
_KEPT_SAMPLES = 16 << 10
# Memory of a chunk's kept checksums besides themselves: key, tuple and place in the dict (CPython 3.11).
_ENTRY_BYTES = 320
# The tables of recoded chunks are kept up to this size together. These may have any number of samples.
_KEPT_RECORDS = _KEPT_BYTES
# A file that cannot be read, or is wrong, is read this often. If a disk fails at 1 % of all calls, all tries fail for
# 3e-5 of the samples, each of which takes three calls.
_TRIES = 3
# Errors of what this process lacks, which no other copy of the chunk would mend.
_OWN_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

T = TypeVar("T")


class WantedSample(msgspec.Struct, frozen=True):
    """Names a sample of a chunk: its number in the chunk, and its bytes, from `start` to `stop` in the chunk.

    In a recoded chunk the range is that of the record in `RecordTable.bounds`.
    """

    sample: int
    start: int
    stop: int


_Target = tuple[WantedSample, Sequence[memoryview]]


class ChunkReader:
    """Reads chunks' files from the folders that may hold them. Usable from any thread.

    Args:
        roots: the cache folder, then those in memory and the read-only layers, in the order of looking for files.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        # The second value says whether every user may make folders beside the root.
        self._roots = [(os.fspath(root), os.fspath(root).startswith(_SHARED_BY_ALL)) for root in roots]
        # The user of the cache, and so of the engine, once the folder was looked at.
        self._owner: int | None = None
        self._tables: dict[tuple[bytes, int, int], bytes] = {}
        self._tables_left = _KEPT_BYTES
        self._records: dict[bytes, RecordTable] = {}
        self._records_left = _KEPT_RECORDS

    def __repr__(self) -> str:
        return f"ChunkReader({[root for root, _ in self._roots]!r})"

    def read(self, key: bytes, local_bytes: int, samples: int, wanted: Sequence[WantedSample]) -> list[memoryview]:
        """Returns the bytes of each wanted sample, checked.

        Args:
            key: key of the chunk, 16 bytes.
            local_bytes: length of the chunk by the manifest. (For recoded chunks it has none: see `read_records`.)
            samples: number of samples in the chunk.
            wanted: samples of this chunk, in any order.

        Raises:
            FileNotFoundError: the chunk is not on this machine. The caller leases it again.
            IntegrityError: the file cannot be read, or is wrong. The caller rejects the chunk.
            CacheError: this process may open no more files, or has no memory.
        """
        buffers = [memoryview(bytearray(item.stop - item.start)) for item in wanted]
        pieces = [[buffer] for buffer in buffers]
        self.read_into(key, local_bytes, samples, list(zip(wanted, pieces, strict=True)))
        return buffers

    def read_into(
        self, key: bytes, local_bytes: int, samples: int, wanted: Sequence[tuple[WantedSample, Sequence[memoryview]]]
    ) -> None:
        """Reads samples into the caller's memory; raises as `read`. Reads adjacent samples together.

        Args:
            key: key of the chunk, 16 bytes.
            local_bytes: length of the chunk by the manifest.
            samples: number of samples in the chunk.
            wanted: samples of this chunk, each with memory (format "B") whose total length is the sample's.
        """
        self._read(key, (local_bytes, samples), sorted(wanted, key=_sample_number))

    def read_records(
        self, key: bytes, samples: int, wanted: Sequence[tuple[WantedSample, Sequence[memoryview]]]
    ) -> None:
        """Reads records of a recoded chunk into the caller's memory, as `read_into` does for other chunks.

        If records share parts, a call reads the head of a record or a range of its parts.
        """
        table = self.records(key, samples)
        ordered = sorted(wanted, key=_sample_number)
        if table.is_shared:
            ordered = [entry for target in ordered for entry in _cut_entries(table, *target)]
        self._read(key, (table.local_bytes, table.entries), ordered)

    def _read(self, key: bytes, lengths: tuple[int, int], wanted: Iterable[_Target]) -> None:
        """Reads entries of the file of a chunk of these lengths (bytes, entries), adjacent ones together."""
        entries = list(wanted)
        # A closure and a loop took 0.6 us of a call of 24 us.
        try:
            self._read_once(key, lengths, entries, 0)
        except FileNotFoundError:
            raise
        except (IntegrityError, OSError):
            self._try(key, lambda tries: self._read_once(key, lengths, entries, tries), first=1)

    def _try(self, key: bytes, read: Callable[[int], T], first: int = 0) -> T:
        """Calls `read` until it returns, at most `_TRIES` times, and returns its result.

        Args:
            key: key of the chunk, 16 bytes.
            read: reads from the file, given the number of tries before.
            first: number of tries that were made before this call.

        Raises:
            FileNotFoundError: the chunk is not on this machine.
            IntegrityError: the file cannot be read, or is wrong, at the last try.
            CacheError: this process may open no more files, or has no memory.
        """
        for tries in range(first, _TRIES):
            is_last = tries == _TRIES - 1
            try:
                return read(tries)
            except FileNotFoundError:
                raise
            except IntegrityError:
                if is_last:
                    raise
            except OSError as error:
                if error.errno in _OWN_LIMITS:
                    raise CacheError(
                        f"cannot read chunk {key.hex()}: {error.strerror}; raise the limit of open files or of memory "
                        "of this process",
                        errno=error.errno,
                    ) from error
                if is_last:
                    path = error.filename or chunkfile.relative_path(key)
                    raise IntegrityError(f"{path}: cannot be read: {error.strerror}", errno=error.errno) from error
        raise AssertionError("the last try returns or raises")

    def _read_once(self, key: bytes, lengths: tuple[int, int], wanted: Sequence[_Target], tries: int) -> None:
        """Makes one try of `_read`; forgets the kept tables of the chunk if a byte is wrong."""
        descriptor, path = self._open(key, tries)
        chunk = key, *lengths
        try:
            table = self._tables.get(chunk)
            if table is None:
                table = self._table(descriptor, path, chunk)
            for run in _group_runs(wanted):
                _read_run(descriptor, path, local_bytes=lengths[0], table=table, run=run)
        except IntegrityError:
            # The kept tables may be what is wrong.
            if (wrong := self._tables.pop(chunk, None)) is not None:
                self._tables_left += _ENTRY_BYTES + len(wrong)
            if (known := self._records.pop(key, None)) is not None:
                self._records_left += _measure(known)
            raise
        finally:
            os.close(descriptor)

    def records(self, key: bytes, samples: int) -> RecordTable:
        """Returns the table of a recoded chunk, which says where its records are; keeps it for later calls.

        Raises:
            FileNotFoundError, IntegrityError, CacheError: see `read`.
        """
        known = self._records.get(key)
        if known is None:
            known = self._try(key, lambda tries: self._read_records(key, samples, tries))
            if (size := _measure(known)) > self._records_left:
                self._records = {}
                self._records_left = _KEPT_RECORDS
            if size <= self._records_left:
                self._records[key] = known
                self._records_left -= size
        return known

    def _read_records(self, key: bytes, samples: int, tries: int) -> RecordTable:
        descriptor, path = self._open(key, tries)
        try:
            header = chunkfile.ChunkHeader.decode(_pread(descriptor, chunkfile.HEADER_BYTES, 0), path)
            end = chunkfile.HEADER_BYTES + header.local_bytes
            tail = _pread(descriptor, COUNTS_BYTES, max(0, end - COUNTS_BYTES))
        finally:
            os.close(descriptor)
        # The manifest has neither length nor starts; key, length and entries are compared with the header below.
        try:
            size = table_bytes(samples, *(counts_of(tail) if header.codec == Codec.SHARED else ()))
            last = WantedSample(header.samples - 1, header.local_bytes - size, header.local_bytes)
            if last.start < 0:
                raise ValueError(f"its table has {size} bytes of {header.local_bytes}")
            [content] = self.read(key, header.local_bytes, header.samples, [last])
            table = RecordTable.decode(content, samples, header.codec, header.local_bytes)
            if table.entries != header.samples:
                raise ValueError(f"{header.samples} entries, its table has {table.entries}")
        except ValueError as error:
            raise IntegrityError(f"{path}: not a recoded chunk of {samples} samples: {error}", where=path) from error
        return table

    def _table(self, descriptor: int, path: str, chunk: tuple[bytes, int, int]) -> bytes:
        """Returns the checksums of a chunk's samples, and keeps them; b"" if they are too many to be kept.

        Raises:
            IntegrityError: the file belongs to another chunk.
        """
        header = chunkfile.ChunkHeader.decode(_pread(descriptor, chunkfile.HEADER_BYTES, 0), path)
        found = (header.key, header.local_bytes, header.samples)
        if found != chunk:
            raise IntegrityError(
                f"{path}: header says {found[1]} bytes, {found[2]} samples, key {found[0].hex()}; the manifest says "
                f"{chunk[1]} bytes, {chunk[2]} samples, key {chunk[0].hex()}",
                where=path,
                expected=chunk[1],
                actual=found[1],
            )
        _, local_bytes, samples = chunk
        if samples > _KEPT_SAMPLES:
            return b""
        table = _pread(descriptor, chunkfile.CRC_BYTES * samples, chunkfile.crc_offset(local_bytes, 0))
        if (cost := _ENTRY_BYTES + len(table)) > self._tables_left:
            self._tables = {}
            self._tables_left = _KEPT_BYTES
        self._tables[chunk] = table
        self._tables_left -= cost
        return table

    def _open(self, key: bytes, tries: int) -> tuple[int, str]:
        """Opens a chunk's file; returns its descriptor, which the caller closes, and its path.

        Every second try looks through the roots in reverse order, because one of two copies may be damaged.

        Raises:
            FileNotFoundError: no root has the chunk.
            OSError: it cannot be opened.
        """
        name = chunkfile.relative_path(key)
        failure: OSError | None = None
        for root, is_shared in reversed(self._roots) if tries % 2 else self._roots:
            path = f"{root}/{name}"
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            except OSError as error:
                # A folder in memory that this process may not read, as it is another user's, is passed over.
                if not (is_shared and isinstance(error, PermissionError)):
                    failure = error
                continue
            if not is_shared or os.fstat(descriptor).st_uid == self._find_owner():
                return descriptor, path
            os.close(descriptor)  # the file belongs to another user than the cache, so the engine did not write it
        raise failure or FileNotFoundError(errno.ENOENT, "chunk is not in the cache", name)

    def _find_owner(self) -> int:
        """Returns the user of the cache folder; this process's own while the folder is missing and was not seen."""
        if self._owner is None:
            try:
                self._owner = os.stat(self._roots[0][0]).st_uid
            except OSError:
                return os.geteuid()
        return self._owner


def find_chunks(root: Path, keys: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Returns which chunks, given their keys, uint8 (M, 16), have a file in a cache folder: bool (M,); 2 us each."""
    paths = (f"{root}/{chunkfile.relative_path(key.tobytes())}" for key in keys)
    return np.fromiter(map(os.path.exists, paths), np.bool_, len(keys))


def _sample_number(target: _Target) -> int:
    return target[0].sample


def _measure(table: RecordTable) -> int:
    """Returns the size in bytes of a table's arrays; without shared parts `bounds` is the memory of `starts`."""
    return int(table.starts.nbytes + table.ranges.nbytes + (table.bounds.nbytes if table.is_shared else 0))


def _cut_entries(table: RecordTable, item: WantedSample, pieces: Sequence[memoryview]) -> Iterator[_Target]:
    """Yields the entries of a record with shared parts, each with its part of the record's memory.

    Raises:
        IntegrityError: the memory does not have the length of the record.
    """
    if sum(map(len, pieces)) != table.bounds[item.sample + 1] - table.bounds[item.sample]:
        raise IntegrityError(f"sample {item.sample} does not have the bytes that its boundaries said")
    left = list(reversed(pieces))
    for first, stop in table.entries_of(item.sample):
        edges = table.starts[first : stop + 1].tolist()
        for entry, (begin, end) in enumerate(pairwise(edges), first):
            yield WantedSample(entry, begin, end), _take(left, end - begin)


def _take(left: list[memoryview], length: int) -> list[memoryview]:
    """Removes memory of this length from a list of pieces in reversed order, and returns it in order."""
    taken = []
    while length > 0:
        piece = left.pop()
        if len(piece) > length:
            left.append(piece[length:])
            piece = piece[:length]
        taken.append(piece)
        length -= len(piece)
    return taken


def _group_runs(wanted: Iterable[_Target]) -> Iterator[list[_Target]]:
    """Yields runs of adjacent samples, each as one call reads it; `wanted` is sorted by the samples' numbers."""
    run: list[_Target] = []
    begin = stop = pieces = sample = 0
    # The loop calls no function: a MiB of samples of 100 KB takes 3.4 us instead of 5.3, besides 22 us for the copy and
    # 18 for the checksums (2026-11-20).
    for one in wanted:
        item, parts = one
        pieces += len(parts)
        adjacent = item.sample == sample and item.start == stop
        if run and (not adjacent or item.stop - begin > _RUN_BYTES or pieces > _RUN_PIECES):
            yield run
            run = []
        if not run:
            begin = item.start
            pieces = len(parts)
        run.append(one)
        sample = item.sample + 1
        stop = item.stop
    if run:
        yield run


def _read_run(descriptor: int, path: str, local_bytes: int, table: bytes, run: Sequence[_Target]) -> None:
    """Reads adjacent samples into their memory, and compares them with their checksums.

    If `table` is b"", the checksums are read from the file.

    Raises:
        IntegrityError: the file is truncated, or a sample does not match its checksum.
    """
    first = run[0][0]
    last = run[-1][0]
    length = last.stop - first.start
    offset = chunkfile.HEADER_BYTES + first.start
    buffers = [piece for _, pieces in run for piece in pieces]
    got = os.preadv(descriptor, buffers, offset) if length else 0
    if got < length:
        got = _fill(descriptor, buffers, offset, got)
    if table:
        stored = table[chunkfile.CRC_BYTES * first.sample : chunkfile.CRC_BYTES * (last.sample + 1)]
    else:
        stored = _pread(descriptor, chunkfile.CRC_BYTES * len(run), chunkfile.crc_offset(local_bytes, first.sample))
    actual = [crc32(pieces[0]) if len(pieces) == 1 else crc32_of(pieces) for _, pieces in run]
    # All are compared at once: comparing each took 1 us a sample, a tenth of the cost of reading one of 100 KB.
    if got < length or stored != struct.pack(f"<{len(run)}I", *actual):
        _refuse(path, [item for item, _ in run], first.start + got, (stored, actual))


def _pread(descriptor: int, length: int, offset: int) -> bytes:
    """Reads `length` bytes from `offset` on, fewer only at the file's end; one call may return only a part."""
    content = os.pread(descriptor, length, offset)
    while len(content) < length and (more := os.pread(descriptor, length - len(content), offset + len(content))):
        content += more
    return content


def _fill(descriptor: int, buffers: Sequence[memoryview], offset: int, got: int) -> int:
    """Continues a read from `offset` on that has `got` bytes so far; returns the number of bytes in all."""
    total = sum(map(len, buffers))
    while got < total:
        rest = []
        skip = got
        for buffer in buffers:
            rest.append(buffer[min(skip, len(buffer)) :])
            skip -= min(skip, len(buffer))
        count = os.preadv(descriptor, rest, offset + got)
        if count == 0:
            break
        got += count
    return got


def _refuse(path: str, items: Sequence[WantedSample], end: int, sums: tuple[bytes, Sequence[int]]) -> None:
    """Raises the error for the first wrong sample of a run.

    Args:
        path: path of the file.
        items: the samples of the run.
        end: chunk-local end of the bytes that were read.
        sums: the checksums in the file, and those of the bytes that were read.

    Raises:
        IntegrityError: always.
    """
    for number, (item, actual) in enumerate(zip(items, sums[1], strict=True)):
        if end < item.stop:
            raise IntegrityError(
                f"{path}: sample {item.sample} ends after {max(0, end - item.start)} of "
                f"{item.stop - item.start} bytes: the file is truncated",
                where=path,
                expected=item.stop - item.start,
                actual=max(0, end - item.start),
            )
        stored = sums[0][chunkfile.CRC_BYTES * number :][: chunkfile.CRC_BYTES]
        expected = _CRC.unpack(stored)[0] if len(stored) == chunkfile.CRC_BYTES else -1
        if expected != actual:
            raise IntegrityError(
                f"{path}: sample {item.sample} (bytes {item.start}..{item.stop}) does not match its checksum",
                where=path,
                expected=expected,
                actual=actual,
            )
