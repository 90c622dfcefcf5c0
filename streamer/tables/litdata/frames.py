"""Finds blocks in LitData's chunks of frames: a table, and runs of items that are compressed with Zstandard together.

magic, uint16 version and flags, uint32 items, run and frames; uint32 starts of the items among the unpacked ones; for
each frame uint32 first item and items, uint64 place, uint32 length and unpacked length; the frames.
"""

from __future__ import annotations

from struct import Struct

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.formats.base import Block
from streamer.formats.failures import damaged
from streamer.formats.reading import read_range
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing
from streamer.tables.index_json import runs_of

MAGIC = b"LDFZ01\0\0"
_HEAD = Struct("<8sHHIII")
_FRAME = np.dtype([("first", "<u4"), ("items", "<u4"), ("place", "<u8"), ("length", "<u4"), ("unpacked", "<u4")])


class Run(msgspec.Struct, frozen=True, array_like=True):
    """The hint of a block: the lengths of its frames, packed and unpacked."""

    packed: list[int]
    unpacked: list[int]


def table_bytes(items: int, run: int) -> int:
    """Returns the number of bytes before the first frame."""
    return _HEAD.size + 4 * (items + 1) + _FRAME.itemsize * -(-items // run)


def frame_blocks(record: ObjectRecord, items: int, run: int) -> Indexing:
    """Yields the blocks of a chunk of `items` in frames of `run` items, as the index says."""
    length = table_bytes(items, run)
    content = yield from read_range(0, length if length <= record.size else 0)
    try:
        offsets, frames = _tables(content, items, run, record.size)
    except ValueError as error:
        raise damaged(record, str(error), 0) from error
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
            hint=msgspec.msgpack.encode(Run(chosen["length"].tolist(), chosen["unpacked"].tolist())),
        )


def _tables(content: memoryview, items: int, run: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
    if len(content) < _HEAD.size:
        raise ValueError(f"{size} bytes are too few for the table of {items} items")
    magic, version, _, found, rows, count = _HEAD.unpack_from(content)
    if magic != MAGIC or version != 1:
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
