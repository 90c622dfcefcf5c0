"""Tables of Arrow IPC streams, read as numpy views over one mapping.

A file is a schema message, one record batch and the end mark, so any Arrow library reads it
(`pyarrow.ipc.open_stream`). Columns are neither nullable nor compressed, so a column is its buffer. nanoarrow's own
reader copies (20 MB of file cost 58 MB of anonymous memory, 2026-11-20): reading is `layout.py` plus
`numpy.frombuffer`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Never

import numpy as np
from numpy.typing import NDArray

from streamer.errors import ManifestCorruptError
from streamer.manifest.arrow_ipc.layout import BatchLayout, read_layout
from streamer.manifest.columns import KEY_BYTES, BinaryColumn, Column, ColumnType, Schema, Table
from streamer.manifest.mmap_file import map_file


def map_table(path: Path, schema: Schema) -> Table:
    """Maps a file and returns its columns as read-only views; takes no memory per row.

    Raises:
        ManifestCorruptError: it is not such a file, has another schema, or an offset points outside.
    """
    try:
        mapping = map_file(path)
    except OSError as error:
        raise ManifestCorruptError(f"{path}: cannot be mapped: {error}", path=str(path)) from error
    return read_table(mapping, schema, str(path))


def read_table(mapping: memoryview, schema: Schema, where: str) -> Table:
    """Returns the columns of a file's bytes, as read-only views.

    Raises:
        ManifestCorruptError: it is not such a file, has another schema, or an offset points outside.
    """
    layout = read_layout(mapping, where)
    if [field.name for field in layout.fields] != list(schema):
        found = ", ".join(field.name for field in layout.fields)
        raise ManifestCorruptError(f"{where}: has columns {found}; expected {', '.join(schema)}", path=where)
    cursor = _Cursor(mapping, layout, where)
    return {name: cursor.column(kind) for name, kind in schema.items()}


class _Cursor:
    """Takes the buffers of a batch, column by column."""

    def __init__(self, mapping: memoryview, layout: BatchLayout, where: str) -> None:
        self._mapping = mapping
        self._layout = layout
        self._where = where
        self._fields = iter(layout.fields)
        self._ranges = iter(layout.buffers)

    def column(self, kind: ColumnType) -> Column:
        field = next(self._fields)
        if field.kind not in _ACCEPTED[kind]:
            self._fail(f"column {field.name} is {field.kind}, expected {kind}")
        self._next()  # validity: empty, as no column is nullable
        if kind == "binary":
            return self._binary(8 if field.kind == "large_binary" else 4)
        if kind == "key16":
            return self._array(np.dtype("u1"), self._layout.rows * KEY_BYTES).reshape(-1, KEY_BYTES)
        return self._array(np.dtype(kind).newbyteorder("<"), self._layout.rows)

    def _binary(self, offset_bytes: int) -> BinaryColumn:
        if not self._layout.rows:  # the format lets writers leave out the one offset
            self._next()
            self._next()
            return BinaryColumn.of([])
        found = self._array(np.dtype(f"<i{offset_bytes}"), self._layout.rows + 1)
        offsets = found.view(np.int64) if offset_bytes == 8 else found.view(np.int32)
        start, stop = self._next()
        content = np.frombuffer(self._mapping, np.uint8, stop - start, start)
        if int(offsets[0]) != 0 or not 0 <= int(offsets[-1]) <= len(content):
            self._fail(f"byte strings end at {offsets[-1]} of {len(content)}")
        return BinaryColumn(offsets, content[: int(offsets[-1])])

    def _array(self, dtype: np.dtype[np.generic], count: int) -> NDArray[np.generic]:
        start, stop = self._next()
        if count * dtype.itemsize > stop - start:
            self._fail(f"a buffer of {stop - start} bytes for {count} values of {dtype}")
        return np.frombuffer(self._mapping, dtype, count, start)

    def _next(self) -> tuple[int, int]:
        found = next(self._ranges, None)
        if found is None:
            self._fail("fewer buffers than its schema needs")
        return found

    def _fail(self, what: str) -> Never:
        raise ManifestCorruptError(f"{self._where}: {what}", path=self._where)


_ACCEPTED: dict[ColumnType, frozenset[str]] = {
    "uint8": frozenset({"uint8"}),
    "uint32": frozenset({"uint32"}),
    "int32": frozenset({"int32"}),
    "int64": frozenset({"int64"}),
    "binary": frozenset({"binary", "large_binary"}),
    "key16": frozenset({f"fixed_size_binary[{KEY_BYTES}]"}),
}
