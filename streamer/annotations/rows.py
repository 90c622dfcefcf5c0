"""Parses tables with one row per sample, by pyarrow: CSV, TSV, JSON lines, JSON, Parquet.

| column | field |
| --- | --- |
| number, boolean | number |
| text, date, time | text |
| bytes | bytes; a picture where they begin like one |
| list of numbers | array |
| everything else | JSON |
"""

from __future__ import annotations

import csv
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamer.annotations.options import USUAL_KEY, Parsed, TableOptions, chosen_fields
from streamer.errors import ConfigError, RecodeError
from streamer.formats.base import FieldSpec
from streamer.formats.table.writer import Column, bytes_column, json_column, nulls_of, whole_column

# An object of JSON lines may have this many bytes, and so may a line of CSV.
_LONGEST_ROW = 64 << 20
_LONGEST_HEAD = 1 << 20
_NUMBERS = ("?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
_DTYPES = {pa.from_numpy_dtype(np.dtype(dtype)): dtype for dtype in _NUMBERS}


def parse_rows(content: memoryview, ending: str, options: TableOptions) -> Parsed:
    """Parses the rows of a table; raises RecodeError, and ConfigError if it lacks a column."""
    read = {"csv": _read_csv, "tsv": _read_csv, "parquet": _read_parquet, "pq": _read_parquet, "json": _read_json}
    table = read.get(ending, _read_lines)(content, options)
    key, wanted = _wanted(table.column_names, options)
    fields = wanted if key in (options.fields or ()) else wanted[1:]
    kinds = [_column(name, _whole(table, name)) for name in fields]
    return Parsed(
        keys=_keys(_whole(table, key), key),
        fields=[FieldSpec(name, kind) for name, (kind, _) in zip(fields, kinds, strict=True)],
        columns=[column for _, column in kinds],
    )


def _wanted(columns: Sequence[str], options: TableOptions) -> tuple[str, list[str]]:
    """Returns the column with the keys; and, each once, that and those of the fields."""
    key = options.key or USUAL_KEY
    if key not in columns:
        raise ConfigError(
            f"annotations={options.url!r} has no column {key!r}; key= names the column with the keys of the samples, "
            f"one of {', '.join(columns)}",
            field="key",
        )
    fields = chosen_fields(options, columns, [name for name in columns if name != key])
    return key, list(dict.fromkeys([key, *fields]))


def _read_csv(content: memoryview, options: TableOptions, texts: Sequence[str] = ()) -> pa.Table:
    from pyarrow import csv as arrow_csv

    delimiter = "\t" if options.url.lower().endswith(".tsv") else ","
    head = bytes(content[:_LONGEST_HEAD]).partition(b"\n")[0].decode("utf-8-sig", "replace")
    columns = next(csv.reader([head.rstrip("\r")], delimiter=delimiter), [])
    key, wanted = _wanted(columns, options)
    table = arrow_csv.read_csv(
        pa.BufferReader(pa.py_buffer(content)),
        read_options=arrow_csv.ReadOptions(use_threads=False, block_size=_block_bytes(content)),
        parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        # The key, too: "0139" is a name, not a number.
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys([key, *texts], pa.string()), include_columns=wanted
        ),
    )
    return _read_csv(content, options, dates) if (dates := _dates(table)) else table


def _read_lines(content: memoryview, options: TableOptions, texts: Sequence[str] = ()) -> pa.Table:
    from pyarrow import json as arrow_json

    table = arrow_json.read_json(
        pa.BufferReader(pa.py_buffer(content)),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=_block_bytes(content)),
        parse_options=arrow_json.ParseOptions(explicit_schema=pa.schema([(name, pa.string()) for name in texts])),
    )
    return _read_lines(content, options, dates) if (dates := _dates(table)) else table


def _dates(table: pa.Table) -> list[str]:
    """Returns the columns that are to be read again as the texts that they are."""
    return [field.name for field in table.schema if pa.types.is_temporal(field.type)]


def _read_json(content: memoryview, options: TableOptions) -> pa.Table:
    """Reads a list of objects."""
    rows = msgspec.json.decode(content, type=list[dict[str, object]])
    return pa.Table.from_pylist(rows)


def _read_parquet(content: memoryview, options: TableOptions) -> pa.Table:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(content)))
    _, wanted = _wanted(file.schema_arrow.names, options)
    return file.read(columns=wanted, use_threads=False)


def _block_bytes(content: memoryview) -> int:
    return min(len(content) + 1, _LONGEST_ROW)


def _whole(table: pa.Table, name: str) -> pa.Array:
    found = whole_column(table, name)
    return found.dictionary_decode() if pa.types.is_dictionary(found.type) else found


def _keys(values: pa.Array, key: str) -> list[str]:
    if values.null_count:
        row = pc.index(values.is_null(), True).as_py()
        raise RecodeError(f"row {row} has no {key!r}, the key of its sample ({values.null_count} rows have none)")
    keys: list[str] = values.cast(pa.string()).to_pylist()
    return keys


def _column(name: str, values: pa.Array) -> tuple[str, Column]:
    """Returns kind and column of a field."""
    kind = values.type
    nulls = nulls_of(values)
    if pa.types.is_decimal(kind):
        values, kind = values.cast(pa.float64()), pa.float64()
    if kind in _DTYPES:
        return _DTYPES[kind], Column(_numbers(values, 0), nulls=nulls)
    if pa.types.is_null(kind):
        return "null", Column(np.empty(0, np.uint8), np.zeros(len(values), np.int64), nulls)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_temporal(kind):
        return "txt", bytes_column(values.cast(pa.string()))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "", bytes_column(values.cast(pa.large_binary()))
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and kind.value_type in _DTYPES:
        items = values.flatten()
        # NaN where there is none; whole numbers have no such value.
        if not items.null_count or pa.types.is_floating(kind.value_type):
            return f"{_DTYPES[kind.value_type]}[]", _arrays(values, items, nulls)
    return "json", json_column(values.to_pylist())


def _numbers(values: pa.Array, missing: float) -> NDArray[np.generic]:
    if values.null_count:
        values = values.fill_null(False if pa.types.is_boolean(values.type) else missing)
    found: NDArray[np.generic] = values.to_numpy(zero_copy_only=False)
    return found


def _arrays(values: pa.Array, items: pa.Array, nulls: NDArray[np.bool_] | None) -> Column:
    numbers = np.ascontiguousarray(_numbers(items, float("nan")))
    counts = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return Column(numbers.view(np.uint8), counts * numbers.itemsize, nulls)
