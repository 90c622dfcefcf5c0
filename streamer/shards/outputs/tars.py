"""Writes shards as WebDataset tars: each field of a sample is a file named by the sample's key and the field.

`registry.py` names it as an output. Headers have fixed times, owners and rights, so that equal samples give equal
bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from streamer.errors import PackError
from streamer.formats.base import Field
from streamer.formats.checksum import crc32
from streamer.formats.tar import BLOCK
from streamer.formats.webdataset import WebDataset
from streamer.shards.outputs.base import Output, ShardWriter
from streamer.shards.plan import TAR_OVERHEAD
from streamer.shards.receipts import Written, encode_numbers
from streamer.shards.values import Content, Sample, files_of, key_of, value_of

_ZERO = bytes(BLOCK)
_NAME_BYTES = 100
_OCTAL_LIMIT = 8 << 30
_RECORD_BYTES = 20 * BLOCK
# Contents are kept as views until they have this length together, so that small ones are written by one call.
_HELD_BYTES = 4 << 20
# The most buffers in one call (IOV_MAX).
_HELD_PARTS = 1000
_FILE = b"0"
_PAX = b"x"
_BEFORE_SIZE = b"0000644\0" + b"0000000\0" * 2
_BETWEEN = b"00000000000\0"
_AFTER_KIND = bytes(100) + b"ustar\x0000" + bytes(247)
# The checksum counts its own eight bytes as spaces.
_CONSTANT_SUM = sum(_BEFORE_SIZE) + sum(_BETWEEN) + sum(_AFTER_KIND) + 8 * 0x20


class TarWriter:
    """Writes a tar of samples; context manager, which closes the file.

    Args:
        path: an existing file, which is overwritten.

    Attributes:
        size: length of the tar so far in bytes.
        blocks: length of each sample in blocks of 512 bytes.
        sums: CRC-32 of the bytes of each sample, headers and padding included.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        self._parts: list[Content] = []
        self._held_bytes = 0
        self.size = 0
        self.blocks: list[int] = []
        self.sums: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; idempotent, because its number may be that of another file later."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def add(self, key: str, fields: Sequence[tuple[str, Content]]) -> None:
        """Adds a sample, whose contents must not change until `flush`.

        Args:
            key: key of the sample.
            fields: name and content of each file; the file is called "key.name".

        Raises:
            OSError: the file cannot be written.
        """
        parts: list[Content] = []
        for name, content in fields:
            parts += (*headers(f"{key}.{name}", len(content)), content, _ZERO[: -len(content) % BLOCK])
        crc = length = 0
        for part in parts:
            crc = crc32(part, crc)
            length += len(part)
        self.blocks.append(length // BLOCK)
        self.sums.append(crc)
        self._hold(parts, length)

    def flush(self) -> None:
        """Writes what `add` has kept in memory; raises OSError."""
        held, self._parts, self._held_bytes = self._parts, [], 0
        for first in range(0, len(held), _HELD_PARTS):
            # A disk that fills up, or a signal, ends a call early.
            parts = held[first : first + _HELD_PARTS]
            written = os.writev(self._descriptor, parts)
            if written < sum(map(len, parts)):
                rest = memoryview(b"".join(parts))[written:]
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]

    def finish(self) -> None:
        """Writes what is in memory, the end mark, and zeros up to a multiple of 10 KiB; raises OSError."""
        end = self.size + 2 * BLOCK
        self._hold([bytes(2 * BLOCK + -end % _RECORD_BYTES)], 2 * BLOCK + -end % _RECORD_BYTES)
        self.flush()

    def _hold(self, parts: list[Content], length: int) -> None:
        """Keeps parts of `length` bytes together until they are written; writes all if these are enough."""
        self._parts += parts
        self._held_bytes += length
        self.size += length
        if self._held_bytes > _HELD_BYTES:
            self.flush()


def headers(name: str, size: int) -> tuple[bytes, ...]:
    """Returns the headers of a file in a tar, in parts; a name over 100 bytes is in a PAX header before the file's own.

    Args:
        name: name of the file.
        size: length of its content in bytes.
    """
    raw = name.encode("utf-8", "surrogateescape")
    if len(raw) <= _NAME_BYTES:
        return (_header(raw, size, _FILE),)
    # A record is `<length> key=value`, where the length counts itself.
    rest = b" path=%s\n" % raw
    length = len(rest) + len(str(len(rest)))
    if len(str(length)) > len(str(len(rest))):
        length += 1
    record = b"%d%s" % (length, rest)
    extended = record + _ZERO[: -len(record) % BLOCK]
    return _header(b"PaxHeaders/sample", len(record), _PAX), extended, _header(raw[:_NAME_BYTES], size, _FILE)


def _header(name: bytes, size: int, kind: bytes) -> bytes:
    """Returns one header of 512 bytes. A size of 8 GiB or more is binary, as GNU tar writes it."""
    length = b"%011o\0" % size if size < _OCTAL_LIMIT else b"\x80" + size.to_bytes(11, "big")
    checksum = b"%06o\0 " % (_CONSTANT_SUM + sum(name) + sum(length) + kind[0])
    return b"".join((name.ljust(100, b"\0"), _BEFORE_SIZE, length, _BETWEEN, checksum, kind, _AFTER_KIND))


class TarOutput(Output):
    """WebDataset tars. They need no facts of the first samples."""

    name = "webdataset"
    extension = "tar"
    format = WebDataset.name
    overhead_bytes = TAR_OVERHEAD
    needs_kinds = False
    is_indexed_by_receipts = True
    has_files = True

    def open_writer(self, path: Path, described: Mapping[str, Any]) -> ShardWriter:
        """Opens a tar; see `Output.open_writer`."""
        return TarShard(path)

    def field_value(self, field: Field) -> tuple[str, object]:
        """Returns bytes of file kinds as they are, other kinds decoded; see `values.value_of`."""
        return value_of(field)


class TarShard(ShardWriter):
    """Writes a shard as a tar, in which each key may occur once.

    Args:
        path: an existing file, which is overwritten.
    """

    def __init__(self, path: Path) -> None:
        self._tar = TarWriter(path)
        self._seen: dict[str, int] = {}

    def add(self, sample: Sample, ordinal: int) -> None:
        """Adds a sample as files; see `SampleTaker.add`.

        Raises:
            PackError: a field or the key cannot be written, or an earlier sample of the shard has the key.
        """
        key = key_of(sample, ordinal)
        files = files_of(sample)
        if (before := self._seen.setdefault(key, ordinal)) != ordinal:
            raise PackError(f"its key {key!r} is that of sample {before} too; every sample of a shard needs its own")
        self._tar.add(key, files)
        self.filled = self._tar.size

    def flush(self) -> None:
        """Writes the samples kept in memory; see `SampleTaker.flush`."""
        self._tar.flush()

    def finish(self) -> Written:
        """Writes the rest and the end mark, and returns the facts about the file."""
        self._tar.finish()
        blocks = encode_numbers(self._tar.blocks)
        sums = encode_numbers(self._tar.sums)
        return Written(size=self._tar.size, blocks=blocks, sums=sums)

    def close(self) -> None:
        """Closes the file; idempotent."""
        self._tar.close()
