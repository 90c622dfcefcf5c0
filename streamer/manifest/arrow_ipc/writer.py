"""Writes a table as an Arrow IPC stream: a schema message, one record batch and the end mark.

Used by `indexing/publish.py`, `annotations/table.py` and `batches/rows/table.py`, and for columns and selections beside
a manifest. It is not in `reader.py`, because importing nanoarrow takes 16 ms of CPU and 1 MB a process (2026-11-23),
and trainers only read.
"""

from __future__ import annotations

from pathlib import Path

import nanoarrow
import numpy as np
from nanoarrow.ipc import StreamWriter
from numpy.typing import NDArray

from streamer.manifest.columns import BinaryColumn, Column, Table


def write_table(path: Path, table: Table) -> int:
    """Writes one table to a file, replacing one that is there; returns the file's length in bytes.

    Args:
        path: the file.
        table: one column or more by name, all of the same length, in the order in which they are written.

    Raises:
        OSError: the file cannot be written.
    """
    rows = {len(column) for column in table.values()}
    assert len(rows) == 1, f"columns of {path.name} differ in length: {rows}"
    with path.open("wb") as file:
        schema = nanoarrow.struct({name: _arrow_type(column) for name, column in table.items()}, nullable=False)
        children = []
        for column in table.values():
            values: list[NDArray[np.uint8] | None]
            if isinstance(column, BinaryColumn):
                values = [None, column.offsets.view(np.uint8), column.content]
            else:
                values = [None, np.ascontiguousarray(column).reshape(-1).view(np.uint8)]
            buffers = (_arrow_type(column), len(column), values)
            children.append(nanoarrow.c_array_from_buffers(*buffers, null_count=0, validation_level="none"))
        batch = nanoarrow.c_array_from_buffers(
            schema, rows.pop(), [None], null_count=0, children=children, validation_level="none"
        )
        with StreamWriter.from_writable(file) as writer:
            writer.write_array(batch)
        return file.tell()


def _arrow_type(column: Column) -> object:
    """Returns the nanoarrow type of a column; an array of two dimensions is one of byte strings of equal length."""
    if isinstance(column, BinaryColumn):
        wide = column.offsets.dtype == np.int64
        return (nanoarrow.large_binary if wide else nanoarrow.binary)(nullable=False)
    if column.ndim == 2:
        return nanoarrow.fixed_size_binary(column.shape[1], nullable=False)
    return getattr(nanoarrow, column.dtype.name)(nullable=False)
