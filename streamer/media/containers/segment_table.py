"""Reads tables of segments of videos (`Video(segments=)`), in CSV, TSV, JSON, JSON lines or Parquet.

`recode.py` imports it in a recoder, which alone needs pyarrow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamer.errors import RecodeError, StreamerError
from streamer.formats.base import Records
from streamer.formats.names import base_name
from streamer.formats.table.rows import field_of, plain_column, read_rows, texts_of
from streamer.formats.table.writer import write_records
from streamer.media.containers.segments import END, PATH, START, SegmentTable

_CLOCK = re.compile(r"(?:(?:(\d+):)?(\d+):)?(\d+(?:[.,]\d+)?)")
# A longer row is refused: the hint of a block has the rows of its clips, and less than 64 KiB.
_MAX_ROW_BYTES = 32 << 10


def read_segments(content: memoryview, url: str, taken: Sequence[str]) -> Records:
    """Makes one record of a table: a `SegmentTable`.

    Args:
        content: the whole table.
        url: url of the table, whose extension says what it is; an unknown one is read as JSON lines.
        taken: names of fields that its columns cannot have.

    Raises:
        RecodeError: it cannot be read, has no rows or not all columns, or a row is too long for the manifest.
    """
    try:
        ending = base_name(url).lower().rpartition(".")[2]
        table = read_rows(content, ending, partial(_order_columns, taken))
        if not len(table):
            raise RecodeError("it has no rows")
        fields = [field_of(table, name) for name in table.column_names if name not in {PATH, START, END}]
        # A row without a path gets "", which the index refuses with the row's number.
        place = table.column_names.index(PATH)
        if table.column(place).null_count and pa.types.is_string(table.column(place).type):
            table = table.set_column(place, PATH, pc.fill_null(table.column(place), ""))
        paths = texts_of(table, PATH, "the video of its segment")
        start, end = _seconds(table, START), _seconds(table, END)
        made = write_records([spec for spec, _ in fields], [column for _, column in fields], len(table))
        if (longest := int(made.lengths.max())) > _MAX_ROW_BYTES:
            raise RecodeError(
                f"row {int(made.lengths.argmax())} has {longest} bytes besides {PATH}, {START} and {END}; at most "
                f"{_MAX_ROW_BYTES} are read, because the manifest has them: texts and numbers, no images"
            )
        edges = np.append(0, np.cumsum(made.lengths)).tolist()
        joined = b"".join(map(bytes, made.parts))
        records = [joined[first:stop] for first, stop in pairwise(edges)]
        read = SegmentTable(
            paths=paths, start=start.tolist(), end=end.tolist(), fields=[spec for spec, _ in fields], records=records
        )
    except (StreamerError, MemoryError):
        raise
    except Exception as error:  # pyarrow has its own, and OSError, and those of Python
        raise RecodeError(f"cannot be read: {type(error).__name__}: {error}") from error
    record = msgspec.msgpack.encode(read)
    return Records([record], np.array([len(record)], np.int64))


def _order_columns(taken: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Returns the columns with the path first; raises RecodeError if one is missing, or has a name that is taken."""
    if missing := [name for name in (PATH, START, END) if name not in columns]:
        raise RecodeError(f"it has no column {' and no '.join(missing)}, but {', '.join(columns)}")
    if doubled := [name for name in columns if name in taken]:
        raise RecodeError(f"its column {doubled[0]!r} has the name of a field of clips: rename it")
    return [PATH, *(name for name in columns if name != PATH)]


def _seconds(table: pa.Table, name: str) -> np.ndarray:
    """Returns a column of times in seconds, float64; NaN where one is missing. Raises RecodeError for other types."""
    values = plain_column(table, name)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return np.array([math.nan if text is None else _clock(text) for text in values.to_pylist()], np.float64)
    if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type) or pa.types.is_decimal(values.type)):
        raise RecodeError(
            f"the column {name!r} has values of type {values.type}; they are seconds, or hours:minutes:seconds"
        )
    found: np.ndarray = pc.fill_null(values.cast(pa.float64()), float("nan")).to_numpy(zero_copy_only=False)
    return found


def _clock(text: str) -> float:
    """Reads seconds, minutes:seconds or hours:minutes:seconds; NaN if a text is none of them."""
    if (found := _CLOCK.fullmatch(text.strip())) is None:
        return math.nan
    hours, minutes, seconds = found.groups()
    return 3600 * int(hours or 0) + 60 * int(minutes or 0) + float(seconds.replace(",", "."))
