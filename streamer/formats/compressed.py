"""Decompresses gzip, bzip2, xz, Zstandard, Brotli and Snappy, and makes compressed files readable as blocks.

Formats whose files may be compressed (JSON lines, WebDataset, TFRecord) use `index_compressed` and `CompressedRecoder`:
a compressed file is one block, whose records are the samples of the decompressed file. Recoders of other formats
decompress parts of files here (MDS, LitData, zarr, HDF5), and workers fields of samples (`decode/dispatch.py`,
`decode/tiff.py`) and entries of zip archives. A compressed file may have several streams or frames, one after the
other, as parallel compressors write them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from streamer.base.extras import require_extra
from streamer.errors import ConfigError, ManifestError, RecodeError
from streamer.formats.base import Answer, Block, Facts, Format, Records
from streamer.formats.failures import check_not_empty, make_refusal
from streamer.manifest.blocks import MOST_FETCH_BYTES, MOST_RECORD_BYTES
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Examine, Examined, Indexing, Need, Note, Source, Span

inflate: Any
try:
    from isal import isal_zlib as inflate
except ImportError:  # no wheel for this platform: half as fast, the same interface
    import zlib as inflate

_GZIP_HEADER = 31
# Max bytes that a decompressor is given at a time, and max bytes that are taken from it.
_FED_BYTES = 1 << 20
_TAKEN_BYTES = 8 << 20
_FRAME = b"\x28\xb5\x2f\xfd"
_SKIPPED_FRAMES = range(0x184D2A50, 0x184D2A60)
_ZSTD_BLOCK_BYTES = 128 << 10
_RAW = 0
_REPEATED = 1
# The names of compressions in an index.json (MDS, LitData). Those of `_FILES` are decompressed as files are, by the
# function of this key of `DECOMPRESSORS`. Those of `_OTHERS` are decompressed by this module and function of cramjam.
_FILES = {"bz2": "bz2", "gz": "gz", "zstd": "zst"}
_OTHERS = {"br": ("brotli", "decompress_into"), "snappy": ("snappy", "decompress_raw_into")}
COMPRESSIONS = tuple(sorted([*_FILES, *_OTHERS]))
# Max decompressed bytes of an item of LitData that is compressed alone.
MAX_ITEM_BYTES = 1 << 30


class DecompressError(ValueError):
    """Raised for bytes that cannot be decompressed, or that decompress to too many."""


def decompress(compression: str, content: memoryview, limit: int) -> memoryview:
    """Returns the decompressed bytes of a file.

    Args:
        compression: a key of `DECOMPRESSORS`.
        content: bytes of the file.
        limit: max bytes to which it may decompress.

    Raises:
        DecompressError: the file is damaged, cut off, or decompresses to more than `limit` bytes.
        ConfigError: a library is missing: cramjam for Zstandard, or Python's bz2 or lzma.
    """
    return DECOMPRESSORS[compression](content, limit)


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
    """Decompresses one gzip stream by zlib or ISA-L, with the interface of `_Decompressor`."""

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
        # If an answer has the full length, zlib may hold more output, so it is asked again before it gets input.
        self.needs_input = not self._rest and len(found) < max_length
        return found


_Library = tuple[Callable[[], _Decompressor], tuple[type[Exception], ...]]


def _decompress_streams(find_library: Callable[[], _Library]) -> Callable[[memoryview, int], memoryview]:
    """Returns a function that decompresses all streams of a file, to a limit, as `decompress` does.

    `find_library` imports a library, and returns what makes a decompressor and the errors that it raises.
    """

    def decompress(content: memoryview, limit: int) -> memoryview:
        make, errors = find_library()
        found = bytearray()
        at = 0
        try:
            while at < len(content):
                unpacker = make()
                stop = at
                while not unpacker.eof:
                    fed = content[stop : stop + _FED_BYTES] if unpacker.needs_input else content[:0]
                    if unpacker.needs_input and not fed:
                        raise DecompressError(f"is cut off: it ends inside of a stream, after {len(content)} bytes")
                    stop += len(fed)
                    found += unpacker.decompress(fed, min(_TAKEN_BYTES, limit + 1 - len(found)))
                    if len(found) > limit:
                        raise DecompressError(f"decompresses to more than {limit} bytes")
                at = stop - len(unpacker.unused_data)
                # gzip(1) and xz(1) allow zeros behind a stream.
                if at == len(content) or not content[at]:
                    at = len(content) - len(bytes(content[at:]).lstrip(b"\0"))
        except errors as error:
            raise DecompressError(f"cannot be decompressed at byte {at}: {error}") from error
        return memoryview(found)

    return decompress


def _decompress_with_cramjam(module: str, function: str, content: memoryview, length: int) -> memoryview:
    """Returns the bytes to which a function of cramjam decompresses `content`, at most `length`.

    The memory is reserved for `length` bytes, but the system gives only the pages that are written. Raises
    DecompressError for damaged or longer content.
    """
    cramjam = _cramjam()
    place = np.empty(length, np.uint8)
    try:
        written: int = getattr(getattr(cramjam, module), function)(content, place)
    except cramjam.DecompressionError as error:
        raise DecompressError(f"cannot be decompressed to {length} bytes: {error}") from error
    return place.data[:written]


def _zstd_bound(content: memoryview, limit: int) -> int:
    """Returns the max bytes to which a Zstandard file can decompress, by the headers of its frames and blocks.

    Raises DecompressError if it is more than `limit`, or for bytes that are not Zstandard. Source: RFC 8878, 3.1.
    """
    bound = at = 0
    while at < len(content):
        if int.from_bytes(content[at : at + 4], "little") in _SKIPPED_FRAMES:
            at += 8 + _little(content, at + 4, 4)
            continue
        if content[at : at + 4] != _FRAME:
            raise DecompressError(f"is not Zstandard at byte {at}")
        frame, at = _zstd_frame(content, at + 4)
        bound += frame
        if bound > limit:
            raise DecompressError(f"decompresses to more than {limit} bytes")
    return bound


def _zstd_frame(content: memoryview, at: int) -> tuple[int, int]:
    """Returns the max bytes to which the frame decompresses whose descriptor is at byte `at`, and where it ends."""
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
        raise DecompressError(f"is cut off: it ends inside of a frame, after {len(content)} bytes")
    return int.from_bytes(content[at : at + width], "little")


def _bzip2() -> _Library:
    return _standard_library("bz2", "bzip2").BZ2Decompressor, (OSError, ValueError)


def _xz() -> _Library:
    lzma = _standard_library("lzma", "xz")
    return lambda: lzma.LZMADecompressor(memlimit=512 << 20), (lzma.LZMAError, EOFError)


def _standard_library(name: str, compression: str) -> ModuleType:
    """Returns a module of Python's standard library.

    Raises:
        ConfigError: this Python was built without the headers that the module needs.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{compression} is decompressed by Python's module {name}, without which {sys.executable} was built "
            f"({error}): install the headers (libbz2-dev, liblzma-dev) and build it again, or use another Python",
            field="format",
        ) from error


# Functions that decompress a content to at most so many bytes, by extension of the file.
DECOMPRESSORS: dict[str, Callable[[memoryview, int], memoryview]] = {
    "gz": _decompress_streams(lambda: (_Inflate, (inflate.error,))),
    "bz2": _decompress_streams(_bzip2),
    "xz": _decompress_streams(_xz),
    "zst": lambda content, most: _decompress_with_cramjam(
        "zstd", "decompress_into", content, _zstd_bound(content, most)
    ),
}


def decompress_shard(compression: str, content: memoryview, length: int) -> memoryview:
    """Returns the decompressed bytes of a shard of MDS or LitData.

    Args:
        compression: one of `COMPRESSIONS`, or "" if the shard is not compressed.
        content: bytes of the shard.
        length: bytes to which it must decompress.

    Raises:
        ValueError: the shard has another length, or is damaged (DecompressError).
        ConfigError: a library is missing.
    """
    if not compression:
        found = content
    elif compression in _FILES:
        found = decompress(_FILES[compression], content, length)
    else:
        found = _decompress_with_cramjam(*_OTHERS[compression], content, length)
    if len(found) != length:
        raise ValueError(f"decompresses to {len(found)} bytes, expected {length}")
    return found


def check_library(compression: str) -> None:
    """Raises ConfigError if the library for one of `COMPRESSIONS` is not installed."""
    if compression == "bz2":
        _bzip2()
    elif compression != "gz":
        _cramjam()


def _cramjam() -> ModuleType:
    with require_extra("decompressing Zstandard, Brotli or Snappy", field="format"):
        return importlib.import_module("cramjam")


# Compression (a key of `DECOMPRESSORS`) by the ending of a file's name.
ENDINGS = {
    **{f".{compression}": compression for compression in DECOMPRESSORS},
    ".gzip": "gz",
    ".zstd": "zst",
    ".tgz": "gz",
    ".tzst": "zst",
    ".tbz": "bz2",
    ".tbz2": "bz2",
    ".txz": "xz",
}


def is_compressed(name: str) -> bool:
    """Whether a file with this name is compressed as a whole, in a way that is read here."""
    return name.lower().endswith(tuple(ENDINGS))


def find_compression_of_name(name: str) -> str:
    """Returns the key of `DECOMPRESSORS` for a file name for which `is_compressed` is true."""
    return next(compression for ending, compression in ENDINGS.items() if name.lower().endswith(ending))


def index_compressed(inner: Format, source: Source, facts: Facts) -> Indexing:
    """Indexes a compressed file as one block, whose samples a recoder counts. Without samples it yields no block.

    Args:
        inner: the format of the decompressed file.
        source: the file.
        facts: facts of the dataset.

    Raises:
        ManifestError: the file is empty, too large, damaged, or not of the inner format.
        ConfigError: a library that decompresses it is missing.
    """
    record = source.record
    if record.size > MOST_FETCH_BYTES:
        raise make_refusal(
            record,
            f"is one compressed stream of {record.size} bytes, of which at most {MOST_FETCH_BYTES} can be read: its "
            "samples are reached by decompressing it from its beginning; decompress it, or pack it as several files",
        )
    check_not_empty(record)
    compression = find_compression_of_name(record.url).encode()
    found = yield Examine(object=record, format=inner.name, options=inner.options, facts=facts, hint=compression)
    assert isinstance(found, Examined)
    if found.samples:
        yield Block(((0, record.size),), found.samples, found.record_bytes, compression)


class CompressedRecoder:
    """Decompresses files of the plain format `inner`, and makes records of their samples (see `base.Recoder`)."""

    def __init__(self, inner: Format, facts: Facts) -> None:
        self._inner = inner
        self._facts = facts

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Makes records of the samples of one file; `hint` is its compression, a key of `DECOMPRESSORS`.

        Raises:
            RecodeError: the file is damaged, decompresses to too many bytes, or has another number of samples.
            ConfigError: a library that decompresses it is missing.
        """
        compression = hint.decode("ascii", "replace")
        if compression not in DECOMPRESSORS:
            raise RecodeError(f"no compression {compression[:20]!r} is known")
        try:
            decompressed = decompress(compression, content, MOST_RECORD_BYTES)
            spans = np.array(list(self._spans(decompressed, is_index=samples == -1)), np.int64).reshape(-1, 2)
        except DecompressError as error:
            raise RecodeError(f"{error}; decompress it, or pack it as several files") from error
        except ManifestError as error:
            raise RecodeError(f"decompressed, {error.details.get('reason', error.message)}") from error
        if samples not in (-1, len(spans)):
            raise RecodeError(f"it has {len(spans)} samples, {samples} were indexed")
        starts = spans[:, 0]
        stops = spans[:, 1]
        # Spans with no bytes between them are joined to one buffer; without spans there is none.
        apart = starts[1:] != stops[:-1]
        runs = np.flatnonzero(np.append(True, apart)[: len(spans)])
        ends = np.flatnonzero(np.append(apart, True)[: len(spans)])
        parts = [decompressed[a:b] for a, b in zip(starts[runs].tolist(), stops[ends].tolist(), strict=True)]
        return Records(parts, stops - starts)

    def _spans(self, decompressed: memoryview, *, is_index: bool) -> Iterator[tuple[int, int]]:
        """Yields start and stop of each sample in the decompressed file, as the inner format finds them.

        A recoder cannot pass on a `Note`. While the file is indexed, it raises RecodeError for one.
        """
        if not decompressed:
            return
        # The url gets no ending of a compressed file, so that the format reads the content as it is.
        record = ObjectRecord("the file", len(decompressed), "")
        steps = self._inner.index(Source(record), self._facts)
        answer: Answer = None
        while True:
            try:
                item = steps.send(answer)
            except StopIteration:
                return
            answer = None
            if isinstance(item, Span):
                yield item.start, item.stop
            elif isinstance(item, Need):
                answer = decompressed[item.start : item.stop]
            elif isinstance(item, Note):
                if is_index:
                    raise RecodeError(f"{item.count} {item.what} (the first is {item.example})")
            else:
                raise RecodeError(f"format {self._inner.name!r} does not read its samples alone")
