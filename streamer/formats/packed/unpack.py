"""Unpacks gzip, bzip2, xz, Zstandard, Brotli and Snappy, to a limit or to a length that is known.

Runs in a recoder; for fields and for entries of zip files in a worker.

A file may have several streams or frames, one after the other, as parallel compressors write them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from streamer.errors import ConfigError
from streamer.formats.failures import needing

inflate: Any
try:
    from isal import isal_zlib as inflate
except ImportError:  # no wheel for this platform: half as fast, the same interface
    import zlib as inflate

_GZIP_HEADER = 31
# Given to a decompressor at a time, and taken from it.
_FED_BYTES = 1 << 20
_TAKEN_BYTES = 8 << 20
_FRAME = b"\x28\xb5\x2f\xfd"
_SKIPPED_FRAMES = range(0x184D2A50, 0x184D2A60)
_ZSTD_BLOCK_BYTES = 128 << 10
_RAW = 0
_REPEATED = 1
# The name in an index.json, and what unpacks it: cramjam where it is of another kind than files are.
_FILES = {"bz2": "bz2", "gz": "gz", "zstd": "zst"}
_OTHERS = {"br": ("brotli", "decompress_into"), "snappy": ("snappy", "decompress_raw_into")}
COMPRESSIONS = tuple(sorted([*_FILES, *_OTHERS]))
# Most bytes of an item that is compressed by itself.
MOST_ITEM_BYTES = 1 << 30


class UnpackError(ValueError):
    """Raised for bytes that cannot be unpacked, or that unpack to too many."""


def unpack(packing: str, content: memoryview, most: int) -> memoryview:
    """Returns the unpacked bytes of a file, at most `most`; `packing` is a key of `UNPACKERS`.

    Raises:
        UnpackError: the file is damaged, cut off, or longer than `most`.
        ConfigError: cramjam is not installed.
    """
    return UNPACKERS[packing](content, most)


class _Decompressor(Protocol):
    """The interface of the standard library's decompressors for bzip2 and xz."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: memoryview | bytes, max_length: int) -> bytes: ...


class _Inflate:
    """zlib's object with the interface of the others."""

    def __init__(self) -> None:
        self._object = inflate.decompressobj(_GZIP_HEADER)
        self._rest: bytes = b""
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return bool(self._object.eof)

    @property
    def unused_data(self) -> bytes:
        unused: bytes = self._object.unused_data
        return unused

    def decompress(self, data: memoryview | bytes, max_length: int) -> bytes:
        found: bytes = self._object.decompress(self._rest or data, max_length)
        self._rest = self._object.unconsumed_tail
        # A full answer may leave more of it inside.
        self.needs_input = not self._rest and len(found) < max_length
        return found


_Library = tuple[Callable[[], _Decompressor], tuple[type[Exception], ...]]


def _by_streams(find_library: Callable[[], _Library]) -> Callable[[memoryview, int], memoryview]:
    def unpack(content: memoryview, most: int) -> memoryview:
        make, errors = find_library()
        found = bytearray()
        at = 0
        try:
            while at < len(content):
                at = _behind_zeros(content, _stream(make(), content, at, found, most))
        except errors as error:
            raise UnpackError(f"cannot be unpacked at byte {at}: {error}") from error
        return memoryview(found)

    return unpack


def _stream(unpacker: _Decompressor, content: memoryview, at: int, found: bytearray, most: int) -> int:
    """Unpacks the stream that begins at `at`; returns where it ends."""
    while not unpacker.eof:
        fed = content[at : at + _FED_BYTES] if unpacker.needs_input else content[:0]
        if unpacker.needs_input and not fed:
            raise UnpackError(f"is cut off: it ends inside of a stream, after {len(content)} bytes")
        at += len(fed)
        found += unpacker.decompress(fed, min(_TAKEN_BYTES, most + 1 - len(found)))
        if len(found) > most:
            raise UnpackError(f"unpacks to more than {most} bytes")
    return at - len(unpacker.unused_data)


def _behind_zeros(content: memoryview, at: int) -> int:
    """Returns where the zeros end that begin at `at`: gzip(1) and xz(1) allow them behind a stream."""
    return at if at < len(content) and content[at] else len(content) - len(bytes(content[at:]).lstrip(b"\0"))


def _by_cramjam(module: str, function: str, content: memoryview, length: int) -> memoryview:
    """Unpacks into new memory of `length` bytes, of which only what is written to is taken."""
    cramjam = _cramjam()
    place = np.empty(length, np.uint8)
    try:
        written: int = getattr(getattr(cramjam, module), function)(content, place)
    except cramjam.DecompressionError as error:
        raise UnpackError(f"cannot be unpacked to {length} bytes: {error}") from error
    return place.data[:written]


def _zstd_bound(content: memoryview, most: int) -> int:
    """Returns the most bytes that the frames unpack to: as they say, or as their blocks may have.

    Source: RFC 8878, 3.1.
    """
    bound = at = 0
    while at < len(content):
        if int.from_bytes(content[at : at + 4], "little") in _SKIPPED_FRAMES:
            at += 8 + _little(content, at + 4, 4)
            continue
        if content[at : at + 4] != _FRAME:
            raise UnpackError(f"is not Zstandard at byte {at}")
        frame, at = _zstd_frame(content, at + 4)
        bound += frame
        if bound > most:
            raise UnpackError(f"unpacks to more than {most} bytes")
    return bound


def _zstd_frame(content: memoryview, at: int) -> tuple[int, int]:
    """Returns the most bytes of a frame whose descriptor is at `at`, and where it ends."""
    descriptor = _little(content, at, 1)
    single = bool(descriptor & 0x20)
    checksum = bool(descriptor & 0x04)
    width = 1 << (descriptor >> 6) if descriptor >> 6 or single else 0
    at += 1 + (not single) + (0, 1, 2, 4)[descriptor & 3]
    stated = _little(content, at, width) + (256 if width == 2 else 0)
    at += width
    bound = 0
    last = False
    while not last:
        header = _little(content, at, 3)
        last = bool(header & 1)
        kind = header >> 1 & 3
        size = header >> 3
        bound += size if kind in (_RAW, _REPEATED) else _ZSTD_BLOCK_BYTES
        at += 3 + (1 if kind == _REPEATED else size)
    return stated if width else bound, at + 4 * checksum


def _little(content: memoryview, at: int, width: int) -> int:
    if at + width > len(content):
        raise UnpackError(f"is cut off: it ends inside of a frame, after {len(content)} bytes")
    return int.from_bytes(content[at : at + width], "little")


def _bzip2() -> _Library:
    return _standard_library("bz2", "bzip2").BZ2Decompressor, (OSError, ValueError)


def _xz() -> _Library:
    lzma = _standard_library("lzma", "xz")
    return lambda: lzma.LZMADecompressor(memlimit=512 << 20), (lzma.LZMAError, EOFError)


def _standard_library(name: str, compression: str) -> ModuleType:
    """Imports a module that a Python lacks which was built without its headers.

    Raises:
        ConfigError: it is one of these.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{compression} is unpacked by Python's module {name}, which {sys.executable} was built without ({error}): "
            "install the headers (libbz2-dev, liblzma-dev) and build it again, or use another Python",
            field="format",
        ) from error


UNPACKERS: dict[str, Callable[[memoryview, int], memoryview]] = {
    "gz": _by_streams(lambda: (_Inflate, (inflate.error,))),
    "bz2": _by_streams(_bzip2),
    "xz": _by_streams(_xz),
    "zst": lambda content, most: _by_cramjam("zstd", "decompress_into", content, _zstd_bound(content, most)),
}


def unpack_shard(compression: str, content: memoryview, length: int) -> memoryview:
    """Unpacks a shard compressed with one of `COMPRESSIONS`, or "" for none; raises ValueError for another length."""
    if not compression:
        found = content
    elif compression in _FILES:
        found = unpack(_FILES[compression], content, length)
    else:
        found = _by_cramjam(*_OTHERS[compression], content, length)
    if len(found) != length:
        raise ValueError(f"unpacks to {len(found)} bytes, expected {length}")
    return found


def check_installed(compression: str) -> None:
    """Imports what unpacks this compression; raises ConfigError if it is not installed."""
    if compression == "bz2":
        _bzip2()
    elif compression != "gz":
        _cramjam()


def _cramjam() -> ModuleType:
    with needing("Zstandard, Brotli and Snappy are unpacked by cramjam", "codecs"):
        return importlib.import_module("cramjam")
