"""Finds the record batches in LitData's Arrow chunks: in the Arrow file at their end.

The head of a chunk of items (whose items have no bytes), an Arrow file, its uint32 length, a magic. The footer of the
Arrow file is a flatbuffer with the place of each record batch; all but the last have 256 rows.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from streamer.formats.base import Block
from streamer.formats.failures import damaged
from streamer.formats.reading import joined_ranges, read_range
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing
from streamer.tables.arrow_ipc.messages import MAGIC, PLACE, read_footer
from streamer.tables.index_json import head_bytes, runs_of

ARROW_END = b"LDARW01\0"
BATCH_ROWS = 256
# Length of the Arrow file, and the magic; before them length of the footer, and Arrow's magic.
_END_BYTES = 4 + len(ARROW_END)
_FOOTER_END_BYTES = 4 + len(MAGIC)
_SCHEMA_BYTES = 16 << 10


def tail_bytes(items: int) -> int:
    """Returns how many bytes are read of a chunk's end, with room for a footer of this many rows."""
    return _SCHEMA_BYTES + PLACE.itemsize * -(-items // BATCH_ROWS)


def arrow_blocks(record: ObjectRecord, items: int, growth: int) -> Indexing:
    """Yields the blocks of a chunk: runs of record batches, each with the schema before it.

    The index says how many rows it has, and about how many times as long (`growth`) these are as the batches.
    """
    first = max(0, record.size - tail_bytes(items))
    tail = yield from read_range(first, record.size)
    try:
        start, batches = _batches(tail, record.size)
        if len(batches) != -(-items // BATCH_ROWS) or start < head_bytes(items):
            raise ValueError(f"{len(batches)} record batches of {BATCH_ROWS} rows, index.json says {items} rows")
    except (ValueError, struct.error) as error:
        raise damaged(record, str(error), 0) from error
    ends = batches["place"] + batches["head"] + batches["body"]
    for begin, stop in runs_of(batches["head"] + batches["body"]):
        place = start + int(batches["place"][begin])
        end = start + int(ends[stop - 1])
        rows = min(items, stop * BATCH_ROWS) - begin * BATCH_ROWS
        schema = (start + 8, start + int(batches["place"][0]))
        ranges = joined_ranges([schema, (place, end)])
        yield Block(ranges, rows, growth * (end - place), struct.pack("<q", schema[1] - schema[0]))


def _batches(tail: memoryview, size: int) -> tuple[int, NDArray[np.void]]:
    """Returns where the Arrow file begins, and the places of its record batches, relative to that."""
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
