"""Reads tables of FlatBuffers, the form of Arrow's metadata, and checks every offset. No I/O.

Used by the readers of Arrow's files and schemas: `manifest/arrow_ipc/reader.py`, `tables/arrow_ipc/` and
`tables/parquet/arrow_schema.py`. The number of a field is its place in the table's definition in Arrow's format/*.fbs.
Source: https://flatbuffers.dev/internals.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

# Most entries of a vector of tables. The longest such vector is that of a schema's columns.
_MOST_TABLES: Final = 10_000


class FlatbufferError(ValueError):
    """Raised for bytes that are no table, lack a needed field, have too many tables or point outside of the buffer."""


class Table:
    """Reads the fields of one table in a buffer.

    Args:
        content: the buffer.
        at: offset of the table in it.

    Raises:
        FlatbufferError: an offset points outside of the buffer. Every method that reads a field raises it, too.
    """

    def __init__(self, content: memoryview, at: int) -> None:
        self._content = content
        self._at = at
        self._vtable = at - self._number("<i", at)
        self._fields = (self._number("<H", self._vtable) - 4) // 2

    @property
    def place(self) -> int:
        """Offset of the table in the buffer."""
        return self._at

    @property
    def start(self) -> int:
        """Offset of the table or of the list of its fields (vtable), whichever comes first in the buffer."""
        return min(self._at, self._vtable)

    @classmethod
    def root(cls, content: memoryview) -> Table:
        """Returns the table at the root of a buffer.

        Raises:
            FlatbufferError: the buffer is too short, or its first bytes do not point to a table.
        """
        if len(content) < 4:
            raise FlatbufferError(f"metadata of {len(content)} bytes")
        return cls(content, int.from_bytes(content[:4], "little"))

    def number(self, field: int, layout: str, default: int = 0) -> int:
        """Returns a numeric field; `default` if the table does not have it.

        Args:
            field: number of the field.
            layout: format of the number for `struct`.
            default: value of a field that the table does not have.
        """
        place = self.find_field(field)
        return self._number(layout, place) if place else default

    def table(self, field: int) -> Table:
        """Returns a field that is a table.

        Raises:
            FlatbufferError: the table does not have the field, or it points outside of the buffer.
        """
        place = self.find_field(field)
        if not place:
            raise FlatbufferError(f"metadata lacks field {field} of the table at {self._at}")
        return Table(self._content, self._target(place))

    def has(self, field: int) -> bool:
        """Whether the table has the field."""
        return self.find_field(field) > 0

    def tables(self, field: int) -> list[Table]:
        """Returns a field that is a vector of tables; [] if the table does not have it.

        Raises:
            FlatbufferError: it has more than 10,000 tables, or points outside of the buffer.
        """
        start, count = self._vector(field, 4)
        if count > _MOST_TABLES:
            raise FlatbufferError(f"metadata has {count} tables, at most {_MOST_TABLES} are read")
        return [Table(self._content, self._target(place)) for place in range(start, start + 4 * count, 4)]

    def structs(self, field: int, dtype: np.dtype[np.void]) -> NDArray[np.void]:
        """Returns a field that is a vector of structs, as a view of the buffer; empty if the table does not have it."""
        start, count = self._vector(field, dtype.itemsize)
        return np.frombuffer(self._content, dtype, count, start) if count else np.empty(0, dtype)

    def find_structs(self, field: int) -> int:
        """Returns the offset of the first item of a field that is a vector; 0 if the table does not have it.

        It does not check that the items are inside the buffer.
        """
        return self._vector(field, 0)[0]

    def text(self, field: int) -> str:
        """Returns a field that is text, wrong UTF-8 replaced; "" if the table does not have it."""
        start, count = self._vector(field, 1)
        return bytes(self._content[start : start + count]).decode("utf-8", "replace")

    def find_field(self, field: int) -> int:
        """Returns the offset of a field; 0 if the table does not have it."""
        offset = self._number("<H", self._vtable + 4 + 2 * field) if field < self._fields else 0
        return self._at + offset if offset else 0

    def _target(self, place: int) -> int:
        return place + self._number("<I", place)

    def _vector(self, field: int, item_bytes: int) -> tuple[int, int]:
        """Returns the offset of the first item of a vector, and how many there are; (0, 0) if it does not exist.

        Raises:
            FlatbufferError: not all items, of `item_bytes` each, are inside the buffer.
        """
        place = self.find_field(field)
        if not place:
            return 0, 0
        start = self._target(place)
        count = self._number("<I", start)
        if start + 4 + count * item_bytes > len(self._content):
            raise FlatbufferError(f"metadata has a vector of {count} items at {start}")
        return start + 4, count

    def _number(self, layout: str, at: int) -> int:
        """Returns the number at an offset of the buffer; raises FlatbufferError if it is not inside."""
        try:
            if at < 0:
                raise FlatbufferError(f"metadata points to {at}")
            return int(struct.unpack_from(layout, self._content, at)[0])
        except struct.error as error:
            raise FlatbufferError(f"metadata points to {at} of {len(self._content)}") from error
