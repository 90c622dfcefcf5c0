"""Reads whole tables by pyarrow: CSV, TSV, JSON lines, JSON, Parquet.

Recoders read tables of annotations (`annotations/parse.py`) and of segments (`media/containers/segment_table.py`) with
it, and `annotations/coco.py` explains damaged JSON by it. A column becomes a field:

| column | field |
| --- | --- |
| number, boolean | number |
| text, date, time | text |
| bytes | bytes, or an image if they begin like one |
| list of numbers | array; JSON if an integer or a boolean in it is null |
| no value in any row | null |
| everything else | JSON |
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamer.errors import RecodeError
from streamer.formats.base import FieldSpec
from streamer.formats.table.writer import Column, bytes_column, json_column, nulls_of, whole_column

# Max bytes of an object of JSON lines and of a line of CSV, and of the first line of CSV, which has the names.
_LONGEST_ROW = 64 << 20
_LONGEST_HEAD = 1 << 20
_NUMBERS = ("?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
# Gets the names of all columns, and returns those to read. A CSV's column that is returned first is read as text.
Choose: TypeAlias = Callable[[Sequence[str]], Sequence[str]]
_DTYPES = {pa.from_numpy_dtype(np.dtype(dtype)): dtype for dtype in _NUMBERS}


def read_rows(content: memoryview, ending: str, choose: Choose) -> pa.Table:
    """Reads the chosen columns of a table.

    Args:
        content: bytes of the file.
        ending: extension of the file: "csv", "tsv", "parquet", "pq" or "json"; any other is read as JSON lines.
        choose: see `Choose`.

    Raises:
        RecodeError: a CSV or TSV has text that is not UTF-8, or quotes whose meaning is not known.
        Exception: what pyarrow and msgspec raise for other damage, and what `choose` raises.
    """
    if ending in {"csv", "tsv"}:
        return _read_csv(content, "\t" if ending == "tsv" else ",", choose)
    if ending in {"parquet", "pq"}:
        import pyarrow.parquet as pq

        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(content)))
        return file.read(columns=list(choose(file.schema_arrow.names)), use_threads=False)
    if ending == "json":
        rows = msgspec.json.decode(content, type=list[dict[str, object]])
        # `from_pylist` alone takes the columns of the first row, and leaves out all others.
        names = dict.fromkeys(name for row in rows for name in row)
        table = pa.Table.from_pydict({name: [row.get(name) for row in rows] for name in names})
    else:
        table = _read_lines(content)
    return table.select(choose(table.column_names))


def _read_csv(content: memoryview, delimiter: str, choose: Choose, texts: Sequence[str] = ()) -> pa.Table:
    """Reads the chosen columns of a CSV or TSV; the columns `texts` are read as texts, and dates always are."""
    from pyarrow import csv as arrow_csv

    head = bytes(content[:_LONGEST_HEAD]).partition(b"\n")[0].decode("utf-8-sig", "replace")
    wanted = list(choose(next(csv.reader([head.rstrip("\r")], delimiter=delimiter), [])))
    quoted = delimiter != "\t" or _has_quotes(content, wanted)
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(pa.py_buffer(content)),
            read_options=arrow_csv.ReadOptions(use_threads=False, block_size=_block_bytes(content)),
            parse_options=arrow_csv.ParseOptions(
                delimiter=delimiter, quote_char='"' if quoted else False, newlines_in_values=quoted
            ),
            # The first column is the key and stays a text: "0139" is a name, not a number.
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys([wanted[0], *texts], pa.string()), include_columns=wanted
            ),
        )
    except pa.ArrowInvalid as error:
        if "UTF8" in str(error):
            raise _no_utf_8(content) from error
        raise
    for field in table.schema:
        # If one text is not UTF-8, pyarrow makes bytes of the whole column.
        if pa.types.is_binary(field.type):
            raise _no_utf_8(content, field.name)
    return _read_csv(content, delimiter, choose, dates) if (dates := _dates(table)) else table


def _no_utf_8(content: memoryview, column: str = "") -> RecodeError:
    """Makes the error of a text that is not UTF-8, which names the first line with such a text, and the column."""
    in_column = f", in column {column!r}" if column else ""
    try:
        str(content, "utf-8")
    except UnicodeDecodeError as error:
        line = bytes(content[: error.start]).count(b"\n")
        around = bytes(content[max(0, error.start - 12) : error.start + 6])
        return RecodeError(
            f"line {line + 1}{in_column} has text that is not UTF-8 ({around!r}); write the file as UTF-8, as "
            "`iconv -f latin1 -t utf-8` does for Latin-1"
        )
    return RecodeError(f"a text{in_column} is not UTF-8; write the file as UTF-8")


# A field of TSV that begins and ends with a quote on one line, and one whose quote does not end on its line.
_QUOTED_FIELD = re.compile(rb'(?:^|[\t\n])"[^\t\r\n]*"(?=[\t\r\n]|$)')
_LONE_QUOTE = re.compile(rb'(?:^|[\t\n])"(?![^\t\r\n]*"(?:[\t\r\n]|$))')


def _has_quotes(content: memoryview, wanted: Sequence[str]) -> bool:
    """Whether quotes of a TSV enclose fields, as in CSV. If not, they are letters, as in the registered type of TSV.

    Raises:
        RecodeError: the file has quotes of both kinds, so that rows could be lost.
    """
    from pyarrow import csv as arrow_csv

    if (lone := _LONE_QUOTE.search(content)) is None:
        return True
    try:
        arrow_csv.read_csv(
            pa.BufferReader(pa.py_buffer(content)),
            read_options=arrow_csv.ReadOptions(use_threads=False, block_size=_block_bytes(content)),
            parse_options=arrow_csv.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=arrow_csv.ConvertOptions(
                column_types={wanted[0]: pa.binary()}, include_columns=[wanted[0]]
            ),
        )
    except (pa.ArrowInvalid, KeyError):
        # Lines have other numbers of fields: some go on behind a line break within quotes.
        return True
    if _QUOTED_FIELD.search(content) is None:
        return False
    line = bytes(content[: lone.start() + 1]).count(b"\n") + 1
    raise RecodeError(
        f"line {line} has a quote that does not end on it, and other fields are enclosed by quotes, so that rows may "
        "be lost in a text; write it as CSV, JSON lines or Parquet, or without enclosing quotes"
    )


def _read_lines(content: memoryview, texts: Sequence[str] = ()) -> pa.Table:
    """Reads all columns of JSON lines; the columns `texts` are read as texts, and dates always are."""
    from pyarrow import json as arrow_json

    table = arrow_json.read_json(
        pa.BufferReader(pa.py_buffer(content)),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=_block_bytes(content)),
        parse_options=arrow_json.ParseOptions(explicit_schema=pa.schema([(name, pa.string()) for name in texts])),
    )
    return _read_lines(content, dates) if (dates := _dates(table)) else table


def _dates(table: pa.Table) -> list[str]:
    """Returns the columns of which pyarrow has made dates or times; they are read again as texts."""
    return [field.name for field in table.schema if pa.types.is_temporal(field.type)]


# Numbers that Python writes, and JSON does not have.
_NO_JSON = re.compile(rb"[:\[,]\s*(NaN|-?Infinity)\b")


def explain_bad_json(content: memoryview) -> str:
    """Returns the end of a message that names NaN or Infinity in a JSON file; "" if it has neither."""
    if (found := _NO_JSON.search(content)) is None:
        return ""
    return f"; it has {found[1].decode()} at byte {found.start(1)}, which JSON does not have: write null or a number"


def _block_bytes(content: memoryview) -> int:
    return min(len(content) + 1, _LONGEST_ROW)


def plain_column(table: pa.Table, name: str) -> pa.Array:
    """Returns a column as one array, with a dictionary decoded."""
    found = whole_column(table, name)
    return found.dictionary_decode() if pa.types.is_dictionary(found.type) else found


def texts_of(table: pa.Table, name: str, what: str) -> list[str]:
    """Returns the texts of a column, one per row.

    Args:
        table: the table.
        name: name of the column.
        what: meaning of the column, for the error ("the key of its sample").

    Raises:
        RecodeError: a row has no text.
    """
    values = plain_column(table, name)
    if values.null_count:
        row = pc.index(values.is_null(), True).as_py()
        raise RecodeError(f"row {row} has no {name!r}, {what} ({values.null_count} rows have none)")
    found: list[str] = values.cast(pa.string()).to_pylist()
    return found


def field_of(table: pa.Table, name: str) -> tuple[FieldSpec, Column]:
    """Returns the field that a column becomes (see the table of the module), and its values."""
    values = plain_column(table, name)
    kind = values.type
    nulls = nulls_of(values)
    if pa.types.is_decimal(kind):
        values = values.cast(pa.float64())
        kind = pa.float64()
    if kind in _DTYPES:
        return FieldSpec(name, _DTYPES[kind]), Column(_numbers(values, 0), nulls=nulls)
    if pa.types.is_null(kind):
        return FieldSpec(name, "null"), Column(np.empty(0, np.uint8), np.zeros(len(values), np.int64), nulls)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_temporal(kind):
        return FieldSpec(name, "txt"), bytes_column(values.cast(pa.string()))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return FieldSpec(name, ""), bytes_column(values.cast(pa.large_binary()))
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and kind.value_type in _DTYPES:
        items = values.flatten()
        # An item without a value becomes NaN. Lists of integers with such items become JSON, below.
        if not items.null_count or pa.types.is_floating(kind.value_type):
            numbers = np.ascontiguousarray(_numbers(items, float("nan")))
            counts = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
            array = Column(numbers.view(np.uint8), counts * numbers.itemsize, nulls)
            return FieldSpec(name, f"{_DTYPES[kind.value_type]}[]"), array
    return FieldSpec(name, "json"), json_column(values.to_pylist())


def _numbers(values: pa.Array, missing_value: float) -> NDArray[np.generic]:
    if values.null_count:
        values = values.fill_null(False if pa.types.is_boolean(values.type) else missing_value)
    found: NDArray[np.generic] = values.to_numpy(zero_copy_only=False)
    return found
