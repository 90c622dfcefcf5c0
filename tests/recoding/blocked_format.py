"""Two blocked formats for tests, installed as other packages' formats are: by an entry point.

An object is a sequence of blocks: three little-endian uint32 (samples, packed bytes, unpacked bytes), then the samples,
packed with zlib, each a uint32 length and that many bytes. A sample that begins with "!" tells the recoder what to do.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from streamer.errors import RecodeError
from streamer.formats.base import Block, Facts, Field, Format, Indexing, Need, Records, SampleName, Source

_HEAD = struct.Struct("<3I")
_LENGTH = struct.Struct("<I")

_NUMBER = struct.Struct("<I")
CELL_BYTES = 2000

ENTRY_POINTS = "[streamer.formats]\nblocks = blocked_format:Blocks\ncells = blocked_format:Cells\n"


class Blocks(Format, frozen=True, forbid_unknown_fields=True):
    """Stands for a format of another package whose samples are compressed in blocks.

    Attributes:
        understated: Factor by which the index says that records are shorter than they are.
    """

    name = "blocks"
    understated: int = 1

    def accepts(self, key: str) -> bool:
        return key.endswith(".blocks")

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        position = 0
        while position < source.record.size:
            head = yield Need(position, position + _HEAD.size)
            assert isinstance(head, memoryview)
            samples, packed, unpacked = _HEAD.unpack(head)
            stop = position + _HEAD.size + packed
            yield Block(((position, stop),), samples, unpacked // self.understated)
            position = stop

    def opener(self, facts: Facts) -> Blocks:
        return self

    def open(self, content: memoryview, name: SampleName) -> tuple[str | None, Sequence[Field]]:
        return None, [Field("txt", content[_LENGTH.size :])]

    def recoder(self, facts: Facts) -> Recoder:
        return Recoder()


class Recoder:
    """Decompresses a block, and does what its samples ask for."""

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        unpacked = zlib.decompress(content[_HEAD.size :])
        lengths, at = [], 0
        while at < len(unpacked):
            length = _LENGTH.size + _LENGTH.unpack_from(unpacked, at)[0]
            _obey(unpacked[at + _LENGTH.size : at + length])
            lengths.append(length)
            at += length
        return Records([unpacked], np.array(lengths, np.int64))


class Cells(Format, frozen=True, forbid_unknown_fields=True):
    """An object is cells of 2,000 bytes; a sample is some of them from one on, and the first cell of its block.

    The samples of a block share cells. In front of them each has the number of its first cell in the block.

    Attributes:
        cells: Number of cells that follow each other in a sample.
        block_samples: Number of samples of a block.
        told: Number of ranges of parts that the index says; the recoder makes two.
    """

    name = "cells"
    endings = (".cells",)
    cells: int = 3
    block_samples: int = 8
    told: int = 2

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        last = source.record.size // CELL_BYTES - self.cells + 1
        for first in range(0, last, self.block_samples):
            samples = min(self.block_samples, last - first)
            parts = samples + self.cells - 1
            span = (first * CELL_BYTES, (first + parts) * CELL_BYTES)
            record_bytes = parts * CELL_BYTES + samples * _NUMBER.size
            yield Block((span,), samples, record_bytes, parts=parts, part_ranges=self.told)

    def open(self, content: memoryview, name: SampleName) -> tuple[str | None, Sequence[Field]]:
        edge = _NUMBER.size + self.cells * CELL_BYTES
        fields = [Field("cells", content[_NUMBER.size : edge], "bytes"), Field("cover", content[edge:], "bytes")]
        return bytes(content[_NUMBER.size : 12]).decode(), fields

    def recoder(self, facts: Facts) -> CellRecoder:
        return CellRecoder(self.cells)


class CellRecoder:
    """Makes records that share the cells of a block."""

    def __init__(self, cells: int) -> None:
        self._cells = cells

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        first = np.arange(samples)
        ranges = np.stack([np.stack([first, first + self._cells], 1), np.tile([0, 1], (samples, 1))], 1)
        return Records(
            [_NUMBER.pack(number) for number in range(samples)],
            np.full(samples, _NUMBER.size, np.int64),
            [content],
            np.full(len(content) // CELL_BYTES, CELL_BYTES, np.int64),
            ranges.astype(np.int64),
        )


def _try(what: str, secret: str, pid: int) -> None:
    """Tries what no format needs and the sandbox forbids."""
    match what:
        case "read":
            Path(secret).read_text()
        case "environ":
            Path(f"/proc/{os.getppid()}/environ").read_text()
        case "write":
            Path(secret).write_text("changed")
        case "connect":
            socket.create_connection(("127.0.0.1", 9))
        case "exec":
            subprocess.run(["/bin/true"], check=True)
        case "signal":
            os.kill(pid, 0)


def _is_done(path: str) -> bool:
    """Says whether this was asked for before.

    A recoder writes no file: what it shares with its successors has an offset, which tells it.
    """
    if not sys.argv[0].endswith("recode/__main__.py"):
        try:
            Path(path).touch(exist_ok=False)
        except FileExistsError:
            return True
        return False
    memory = int(sys.argv[2])
    if os.lseek(memory, 0, os.SEEK_CUR):
        return True
    os.lseek(memory, 1, os.SEEK_SET)
    return False


def _obey(sample: bytes) -> None:
    """Does what a sample asks for: "!<what> <path>", once only where a path is given."""
    if not sample.startswith(b"!"):
        return
    what, _, path = sample.decode().partition(" ")
    if what.startswith("!try-"):
        secret, _, pid = path.partition(" ")
        _try(what.removeprefix("!try-"), secret, int(pid))
        return
    if path and _is_done(path):
        return
    match what:
        case "!kill":
            signal.raise_signal(signal.SIGKILL)
        case "!stop":
            signal.raise_signal(signal.SIGSTOP)
        case "!spin":
            while True:
                pass
        case "!refuse":
            raise RecodeError("this block is refused")
        case "!raise":
            raise KeyError("a mistake of the format")
        case "!grow":
            bytearray(3 << 30)


def packed_block(samples: Sequence[bytes]) -> bytes:
    """Returns one block."""
    unpacked = b"".join(_LENGTH.pack(len(sample)) + sample for sample in samples)
    packed = zlib.compress(unpacked, 1)
    return _HEAD.pack(len(samples), len(packed), len(unpacked)) + packed


def packed_object(blocks: Iterable[Sequence[bytes]]) -> bytes:
    """Returns one object."""
    return b"".join(map(packed_block, blocks))


def install(folder: Path) -> Path:
    """Makes a package of this file in a folder, which belongs into `sys.path`."""
    information = folder / "blocked_format-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / "blocked_format.py").write_text(Path(__file__).read_text())
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: blocked-format\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder
