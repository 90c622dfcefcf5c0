"""Puts the rows of an object together to blocks of windows, which share rows in the chunk file.

A block of windows takes pieces, runs of rows that can only be decoded together, and its hint has theirs. Where two
blocks meet, the pieces with the rows that windows of both have are fetched twice: so pieces are small beside a block,
and blocks grow where the rows of a window are many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import RecodeError
from streamer.formats.base import Block, Recoder, Records
from streamer.manifest.blocks import LONGEST_HINT
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Span

Int64Array = NDArray[np.int64]

# Pieces of a chunk, where the format can cut them: the last ones of a block are fetched twice.
PIECES = 16
# What is fetched twice is at most a twelfth, unless blocks become longer than this, fetched or decoded.
_SHARE = 12
_MOST_BYTES = 64 << 20
# Room of a piece in a hint, besides its own, and the room for all.
_HINT_BYTES = 16
_MOST_HINT_BYTES = LONGEST_HINT - 1024


class Piece(msgspec.Struct, frozen=True):
    """A run of rows: as in `Block`; a hint of None: its bytes are the rows."""

    ranges: tuple[tuple[int, int], ...]
    rows: int
    hint: bytes | None = None
    objects: tuple[ObjectRecord, ...] = ()

    @property
    def fetch_bytes(self) -> int:
        """Bytes of all ranges."""
        return sum(stop - start for start, stop in self.ranges)

    def without(self, first: int, last: int) -> Piece:
        """Leaves out so many rows at its beginning and at its end, if its bytes are the rows."""
        if self.hint is not None:
            return self
        (start, stop) = self.ranges[0]
        row_bytes = self.fetch_bytes // self.rows
        return Piece(((start + first * row_bytes, stop - last * row_bytes),), self.rows - first - last)


class PieceHint(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a block, for the recoder."""

    fetch_bytes: int
    rows: int
    hint: bytes | None


class WindowHint(msgspec.Struct, frozen=True, array_like=True):
    """The rows of a block of windows: how many are before the first window, and the pieces."""

    skipped: int
    pieces: list[PieceHint]


_HINT = msgspec.msgpack.Decoder(WindowHint)


class Pieces:
    """Collects the rows of an object; spans that follow each other are joined up to `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._found: list[Piece] = []
        self._run: tuple[int, int, int] | None = None

    def add(self, item: Span | Block) -> None:
        """Takes the next row, or block of rows."""
        if isinstance(item, Block):
            self._close()
            self._found.append(Piece(item.ranges, item.samples, item.hint, item.objects))
            return
        if self._run is not None and (item.start != self._run[1] or item.stop - self._run[0] > self._most_bytes):
            self._close()
        first, _, rows = self._run or (item.start, 0, 0)
        self._run = first, item.stop, rows + 1

    def all(self) -> list[Piece]:
        """The pieces, in order."""
        self._close()
        return self._found

    def _close(self) -> None:
        if self._run is not None:
            start, stop, rows = self._run
            self._found.append(Piece(((start, stop),), rows))
            self._run = None


def windows_of(pieces: Sequence[Piece], window: tuple[int, int], row_bytes: int, chunk_bytes: int) -> Iterator[Block]:
    """Yields the windows of an object as blocks of about `chunk_bytes`.

    Args:
        pieces: all its rows.
        window: rows of a window, and from the first row of one to that of the next.
        row_bytes: bytes of a row in a record.
        chunk_bytes: length of a chunk.
    """
    length, stride = window
    edges = _edges([piece.rows for piece in pieces])
    fetched = _edges([piece.fetch_bytes for piece in pieces])
    hinted = _edges([_HINT_BYTES + len(piece.hint or b"") for piece in pieces])
    count = max(0, (int(edges[-1]) - length) // stride + 1)
    goal = _goal(edges, fetched, window, chunk_bytes)
    window_number = 0
    while window_number < count:
        row = window_number * stride
        first = int(np.searchsorted(edges, row, "right")) - 1
        limits = (fetched, goal), (hinted, _MOST_HINT_BYTES), (edges, _MOST_BYTES // row_bytes)
        most = min(int(np.searchsorted(sums, sums[first] + limit, "right")) - 1 for sums, limit in limits)
        stop = max(most, int(np.searchsorted(edges, row + length)))
        following = min(count, (int(edges[stop]) - length) // stride + 1)
        yield _block(pieces[first:stop], (row - int(edges[first]), following - window_number), window, row_bytes)
        window_number = following


def parts_of(windows: int, window: tuple[int, int]) -> tuple[Int64Array, Int64Array]:
    """The shared parts of windows that overlap.

    Returns:
        The boundaries of the parts in rows from the first window's on, int64, shape (parts + 1,); and the range of
        parts of each window, int64, shape (windows, 1, 2).
    """
    length, stride = window
    starts = np.arange(windows, dtype=np.int64) * stride
    edges = np.unique(np.concatenate([starts, starts + length]))
    return edges, np.stack([np.searchsorted(edges, starts), np.searchsorted(edges, starts + length)], 1)[:, None]


class WindowRecoder:
    """Makes records of windows: `rows` decodes pieces; it is None where all of them are rows as they are."""

    def __init__(self, window: tuple[int, int], row_bytes: int, rows: Recoder | None) -> None:
        self._window = window
        self._row_bytes = row_bytes
        self._rows = rows

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Decodes the pieces of a block; rows that windows have in common are shared parts."""
        length, stride = self._window
        rows = self._decoded(content, hint)
        needed = (samples - 1) * stride + length
        if samples < 1 or not needed <= len(rows):
            raise RecodeError(f"{len(rows)} rows are not {samples} windows of {length} rows, one every {stride}")
        if stride >= length:
            places = np.arange(samples)[:, None] * stride + np.arange(length)
            return Records([rows[places].reshape(-1)], np.full(samples, length * self._row_bytes, np.int64))
        edges, ranges = parts_of(samples, self._window)
        shared = np.ascontiguousarray(rows[:needed]).reshape(-1)
        return Records((), np.zeros(samples, np.int64), [shared], np.diff(edges) * self._row_bytes, ranges)

    def _decoded(self, content: memoryview, hint: bytes) -> NDArray[np.uint8]:
        """The rows of a block from the first window on, uint8, shape (rows, row_bytes)."""
        try:
            block = _HINT.decode(hint)
        except msgspec.MsgspecError as error:
            raise RecodeError(f"a hint of {len(hint)} bytes does not say where rows are: {error}") from error
        found = []
        at = 0
        for piece in block.pieces:
            found += self._piece(content[at : at + piece.fetch_bytes], piece)
            at += piece.fetch_bytes
        joined = np.frombuffer(found[0], np.uint8) if len(found) == 1 else np.frombuffer(b"".join(found), np.uint8)
        return joined.reshape(-1, self._row_bytes)[block.skipped :]

    def _piece(self, content: memoryview, piece: PieceHint) -> list[memoryview]:
        buffers = [content]
        if piece.hint is not None:
            assert self._rows is not None, "formats with blocks have a recoder"
            buffers = [
                memoryview(part).cast("B")  # type: ignore[arg-type]
                for part in self._rows.recode(content, piece.rows, piece.hint).parts
            ]
        if sum(map(len, buffers)) != piece.rows * self._row_bytes:
            raise RecodeError(
                f"{sum(map(len, buffers))} bytes are not {piece.rows} rows of {self._row_bytes} bytes", rows=piece.rows
            )
        return buffers


def _goal(edges: Int64Array, fetched: Int64Array, window: tuple[int, int], chunk_bytes: int) -> int:
    """Bytes of a block, so that what it shares with the next one is a small part of it."""
    length, stride = window
    if length <= stride or len(edges) < 2:
        return chunk_bytes
    row_bytes = fetched[-1] / max(1, int(edges[-1]))
    piece_bytes = fetched[-1] / (len(edges) - 1)
    twice = (length - stride) * row_bytes + piece_bytes
    return max(chunk_bytes, min(_MOST_BYTES, int(_SHARE * twice)))


def _block(pieces: Sequence[Piece], windows: tuple[int, int], window: tuple[int, int], row_bytes: int) -> Block:
    """A block of these pieces; `windows` are the rows before the first window, and how many windows there are."""
    (skipped, samples) = windows
    (length, stride) = window
    pieces, surplus = list(pieces), sum(piece.rows for piece in pieces) - skipped - (samples - 1) * stride - length
    while surplus >= pieces[-1].rows:
        surplus -= pieces.pop().rows
    # Rows that lie as they are can be left out one by one.
    pieces[-1] = pieces[-1].without(0, surplus)
    if pieces[0].hint is None:
        pieces[0] = pieces[0].without(skipped, 0)
        skipped = 0
    hint = WindowHint(skipped, [PieceHint(piece.fetch_bytes, piece.rows, piece.hint) for piece in pieces])
    ranges = tuple(span for piece in pieces for span in piece.ranges)
    owners = tuple(owner for piece in pieces for owner in piece.objects)
    encoded = msgspec.msgpack.encode(hint)
    if stride >= length:
        return Block(ranges, samples, samples * length * row_bytes, encoded, owners)
    rows = (samples - 1) * stride + length
    parts = len(parts_of(samples, window)[0]) - 1
    return Block(ranges, samples, rows * row_bytes, encoded, owners, parts, 1)


def _edges(lengths: Sequence[int]) -> Int64Array:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
