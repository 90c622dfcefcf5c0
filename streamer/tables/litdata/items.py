"""Opens LitData's items, decompresses them, and finds blocks in chunks of frames and in Arrow chunks.

`tables/litdata/format.py` uses it. A frame is a run of items that are compressed together with Zstandard. A chunk of
frames has a table, and the frames. The parts of the table are:

    magic | uint16 version, flags | uint32 items, items of a frame, frames
    uint32 start of each item among the decompressed items, and the end
    for each frame: uint32 first item, items | uint64 place | uint32 length, decompressed length

An Arrow chunk has the head of a chunk of items (whose items have no bytes), an Arrow file, its uint32 length, a magic.
The footer of the Arrow file is a flatbuffer with the place of each record batch; all but the last have 256 rows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from struct import Struct

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import ConfigError, DecodeError, RecodeError
from streamer.formats.base import Block, Field, FieldSpec, Records, SampleName
from streamer.formats.compressed import MAX_ITEM_BYTES, decompress, decompress_shard
from streamer.formats.failures import make_damage_error
from streamer.formats.reading import join_ranges, read_range
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing
from streamer.tables.arrow_ipc.messages import MAGIC, PLACE, read_footer
from streamer.tables.index_json import LengthsOpener, head_bytes, read_offsets, runs_of

FRAMES_MAGIC = b"LDFZ01\0\0"
_HEAD = Struct("<8sHHIII")
_FRAME = np.dtype([("first", "<u4"), ("items", "<u4"), ("place", "<u8"), ("length", "<u4"), ("unpacked", "<u4")])


class FrameRun(msgspec.Struct, frozen=True, array_like=True):
    """The hint of a block of frames: the bytes of each frame, compressed (`packed`) and decompressed (`unpacked`)."""

    packed: list[int]
    unpacked: list[int]


def table_bytes(items: int, run: int) -> int:
    """Returns the bytes of the table of a chunk of frames, which has `items` items, `run` in a frame."""
    return _HEAD.size + 4 * (items + 1) + _FRAME.itemsize * -(-items // run)


def frame_blocks(record: ObjectRecord, items: int, run: int) -> Indexing:
    """Reads the table of a chunk of frames, and yields blocks that are runs of frames.

    Args:
        record: the chunk.
        items: number of its items, by the index file.
        run: items of a frame, by the index file.

    Raises:
        ManifestError: the table contradicts the index file or itself.
    """
    length = table_bytes(items, run)
    content = yield from read_range(0, length if length <= record.size else 0)
    try:
        offsets, frames = _tables(content, items, run, record.size)
    except ValueError as error:
        raise make_damage_error(record, str(error), 0) from error
    edges = np.append(frames["first"], items).astype(np.int64)
    for first, stop in runs_of(frames["length"]):
        place = int(edges[first])
        end = int(edges[stop])
        begin = int(frames["place"][first])
        chosen = frames[first:stop]
        yield Block(
            ranges=(
                (_HEAD.size + 4 * place, _HEAD.size + 4 * (end + 1)),
                (begin, begin + int(chosen["length"].sum(dtype=np.int64))),
            ),
            samples=end - place,
            record_bytes=int(offsets[end] - offsets[place]),
            hint=msgspec.msgpack.encode(FrameRun(chosen["length"].tolist(), chosen["unpacked"].tolist())),
        )


def _tables(content: memoryview, items: int, run: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
    """Parses the table of a chunk of frames with `size` bytes; returns starts of items (with the end), and frames.

    Raises ValueError if the table contradicts the index file or itself.
    """
    if len(content) < _HEAD.size:
        raise ValueError(f"{size} bytes are too few for the table of {items} items")
    magic, version, _, found, rows, count = _HEAD.unpack_from(content)
    if magic != FRAMES_MAGIC or version != 1:
        raise ValueError(f"not a chunk of frames of version 1: it begins with {magic!r} and version {version}")
    if (found, rows, count) != (items, run, -(-items // run)):
        raise ValueError(f"{found} items in {count} frames of {rows}, index.json says {items} in frames of {run}")
    offsets = np.frombuffer(content, "<u4", items + 1, _HEAD.size).astype(np.int64)
    frames = np.frombuffer(content, _FRAME, count, _HEAD.size + 4 * (items + 1))
    firsts = np.arange(count, dtype=np.int64) * run
    lasts = np.minimum(firsts + run, items)
    ends = frames["place"].astype(np.int64) + frames["length"]
    tiles = (
        (frames["first"] == firsts).all()
        and (frames["items"] == lasts - firsts).all()
        and (frames["place"][1:] == ends[:-1]).all()
        and (not count or (frames["place"][0] == len(content) and ends[-1] == size))
        and frames["length"].all()
    )
    if not tiles:
        raise ValueError("its frames are not one behind the other")
    if offsets[0] or (np.diff(offsets) < 0).any() or (offsets[lasts] - offsets[firsts] != frames["unpacked"]).any():
        raise ValueError("the places of its items are not ascending, or do not fit into its frames")
    return offsets, frames


ARROW_END = b"LDARW01\0"
BATCH_ROWS = 256
# A chunk ends with the length of the Arrow file and a magic. The Arrow file ends with the length of its footer and
# Arrow's magic.
_END_BYTES = 4 + len(ARROW_END)
_FOOTER_END_BYTES = 4 + len(MAGIC)
_SCHEMA_BYTES = 16 << 10


def tail_bytes(items: int) -> int:
    """Returns the bytes that are read of the end of an Arrow chunk, with room for the footer of `items` rows."""
    return _SCHEMA_BYTES + PLACE.itemsize * -(-items // BATCH_ROWS)


def arrow_blocks(record: ObjectRecord, items: int, growth: int) -> Indexing:
    """Reads the end of an Arrow chunk, and yields blocks that are the schema and a run of record batches.

    Args:
        record: the chunk.
        items: number of its rows, by the index file.
        growth: estimate of how many times longer records are than the batches.

    Raises:
        ManifestError: the chunk is damaged, has dictionaries, or does not have so many rows.
    """
    first = max(0, record.size - tail_bytes(items))
    tail = yield from read_range(first, record.size)
    try:
        start, batches = _batches(tail, record.size)
        if len(batches) != -(-items // BATCH_ROWS) or start < head_bytes(items):
            raise ValueError(f"{len(batches)} record batches of {BATCH_ROWS} rows, index.json says {items} rows")
    except (ValueError, struct.error) as error:
        raise make_damage_error(record, str(error), 0) from error
    ends = batches["place"] + batches["head"] + batches["body"]
    for begin, stop in runs_of(batches["head"] + batches["body"]):
        place = start + int(batches["place"][begin])
        end = start + int(ends[stop - 1])
        rows = min(items, stop * BATCH_ROWS) - begin * BATCH_ROWS
        schema = (start + 8, start + int(batches["place"][0]))
        ranges = join_ranges([schema, (place, end)])
        yield Block(ranges, rows, growth * (end - place), struct.pack("<q", schema[1] - schema[0]))


def _batches(tail: memoryview, size: int) -> tuple[int, NDArray[np.void]]:
    """Returns the byte of the chunk at which the Arrow file begins, and the places of its batches, counted from there.

    Raises ValueError or struct.error if the chunk does not end with such a file.

    Args:
        tail: the last bytes of the chunk.
        size: length of the chunk, bytes.
    """
    if len(tail) < _END_BYTES + _FOOTER_END_BYTES or tail[-len(ARROW_END) :] != ARROW_END:
        raise ValueError("no rows of Arrow are at its end")
    (length,) = struct.unpack_from("<I", tail, len(tail) - _END_BYTES)
    stop = len(tail) - _END_BYTES - _FOOTER_END_BYTES
    (footer_bytes,) = struct.unpack_from("<i", tail, stop)
    start = size - _END_BYTES - length
    if tail[stop + 4 : stop + 4 + len(MAGIC)] != MAGIC or start < 0:
        raise ValueError(f"its last {length} bytes are not an Arrow file with a footer, which LitData 0.2.76 writes")
    if not 0 < footer_bytes <= stop:
        raise ValueError(f"the footer of its rows has {footer_bytes} bytes; at most {stop} are read")
    dictionaries, batches = read_footer(tail[stop - footer_bytes : stop])
    if len(dictionaries):
        raise ValueError("its rows have dictionaries")
    places = batches["place"]
    ends = batches["place"] + batches["head"] + batches["body"]
    last = length - _FOOTER_END_BYTES - footer_bytes
    if len(batches) and not (
        (batches["head"] > 0).all()
        and (batches["body"] >= 0).all()
        and (batches["body"] <= size).all()
        and 8 < places[0] <= last
        and (places[1:] == ends[:-1]).all()
        and ends[-1] <= last
    ):
        raise ValueError("the record batches of its rows are not one behind the other")
    return start, batches


_RUN = msgspec.msgpack.Decoder(FrameRun)
# The hint of a chunk that is compressed as a whole: number of its items, and its decompressed bytes.
_CHUNK = msgspec.json.Decoder(tuple[int, int])


class ItemOpener(LengthsOpener):
    """Opens samples that are items, by splitting them into leaves.

    Args:
        fields: the leaves of every item.
        whole: whether the bytes of a sample are its only leaf, without a length before it.
        packed: whether each item is compressed with Zstandard.
    """

    def __init__(self, fields: Sequence[FieldSpec], *, whole: bool, packed: bool) -> None:
        super().__init__(fields, [0] * len(fields), "an item of LitData")
        self._whole = whole
        self._packed = packed

    def open(self, content: memoryview, name: SampleName) -> tuple[None, Sequence[Field]]:
        """Returns no key, and a field for each leaf in their order.

        Raises:
            DecodeError: the bytes are no item.
            ConfigError: the item is compressed, and cramjam is not installed.
        """
        if self._packed:
            try:
                content = decompress("zst", content, MAX_ITEM_BYTES)
            except ConfigError:
                raise
            except ValueError as error:
                raise DecodeError(f"not a packed item of LitData: {error}") from error
        if self._whole:
            return None, [Field(field, content, kind) for field, kind, _ in self._fields]
        return super().open(content, name)


class ItemRecoder:
    """Makes records of chunks that are compressed as a whole, as a `Recoder`.

    Args:
        sample_bytes: bytes of a sample that is cut out of tokens; 0 if samples are items.
    """

    def __init__(self, sample_bytes: int) -> None:
        self._sample_bytes = sample_bytes

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Makes records of a chunk.

        Raises:
            RecodeError: it is not the chunk that the index file describes.
            ConfigError: cramjam is not installed.
        """
        try:
            items, raw_bytes = _CHUNK.decode(hint)
            chunk = decompress_shard("zstd", content, raw_bytes)
            offsets = read_offsets(chunk, items, len(chunk), behind=chunk[-len(ARROW_END) :] == ARROW_END)
        except ConfigError:
            raise
        except ValueError as error:
            raise RecodeError(f"not the chunk that its index.json describes: {error}") from error
        if not self._sample_bytes:
            return Records([chunk[offsets[0] : offsets[-1]]], offsets[1:] - offsets[:-1])
        first = head_bytes(items)
        used = samples * self._sample_bytes
        if first + used > len(chunk):
            raise RecodeError(f"{samples} samples of {self._sample_bytes} bytes in a chunk of {len(chunk)}")
        return Records([chunk[first : first + used]], np.full(samples, self._sample_bytes, np.int64))


class RunRecoder:
    """Makes records of blocks of frames, as a `Recoder`: a block is the starts of its items, and its frames."""

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Makes records of the items of a block.

        Raises:
            RecodeError: its frames are not what the table says.
            ConfigError: cramjam is not installed.
        """
        table = 4 * (samples + 1)
        try:
            run = _RUN.decode(hint)
            offsets = np.frombuffer(content, "<u4", samples + 1).astype(np.int64)
            lengths = offsets[1:] - offsets[:-1]
            places = list(accumulate(run.packed, initial=table))
            if places[-1] != len(content) or lengths.sum() != sum(run.unpacked) or (lengths < 0).any():
                raise ValueError(f"{len(content)} bytes are not {len(run.packed)} frames of {samples} items")
            pieces = [content[start:stop] for start, stop in pairwise(places)]
            parts = [
                decompress_shard("zstd", piece, length) for piece, length in zip(pieces, run.unpacked, strict=True)
            ]
        except ConfigError:
            raise
        except ValueError as error:
            raise RecodeError(f"not the frames that the chunk's table describes: {error}") from error
        return Records(parts, lengths)
