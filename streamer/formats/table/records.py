"""Records of a table: what a recoder makes of rows, and how they are opened.

    null bits, one per field | uint32 length of each variable field | fixed fields | variable fields

The fields are those of the dataset's facts, in order. A field is fixed if its kind is a number, or an array of which
all lengths are known. A field of text that is named `__key__` is the key of the sample.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from struct import Struct

import numpy as np

from streamer.errors import DecodeError
from streamer.formats.base import Field, FieldSpec, SampleName
from streamer.formats.names import kind_of_bytes

# Codes of arrays of one dimension in nested values; others are those of `Extension`.
ARRAY_DTYPES = ("?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")

_FIXED = re.compile(r"([<>|=]?[?a-z][0-9]*)(?:\[(\d+(?:,\d+)*)\])?")
_KEY = "__key__"
_NULL = "null"
_NO_BYTES = memoryview(b"")


class Extension(IntEnum):
    """Codes of extensions in nested values: bytes that may be an image, an image, a JSON text."""

    BYTES = 16
    IMAGE = 17
    JSON = 18


def find_dtype(kind: str) -> np.dtype[np.generic] | None:
    """Returns the dtype of a field of this kind, with its shape; None if its length varies."""
    found = _FIXED.fullmatch(kind)
    if found is None:
        return None
    try:
        dtype = np.dtype((found[1], tuple(map(int, found[2].split(","))) if found[2] else ()))
    except (TypeError, ValueError):
        return None
    return dtype if dtype.base.kind in "biufc" else None


def is_dtype(name: str, kinds: str) -> bool:
    """Whether numpy has a dtype of this name, of one of these kinds ("biufc")."""
    try:
        return np.dtype(name).kind in kinds
    except TypeError:
        return False


def head_bytes(fields: Sequence[FieldSpec]) -> int:
    """Returns the bytes of a record besides the values."""
    variable = sum(find_dtype(field.kind) is None for field in fields)
    return null_bytes(fields) + 4 * variable


def head_dtype(fields: Sequence[FieldSpec]) -> np.dtype[np.void]:
    """Returns the dtype of a record's head: "nulls", "lengths", and the fixed fields by their numbers ("0", "2")."""
    dtypes = [find_dtype(field.kind) for field in fields]
    fixed = [(str(number), dtype) for number, dtype in enumerate(dtypes) if dtype is not None]
    variable = len(fields) - len(fixed)
    return np.dtype([("nulls", "u1", (null_bytes(fields),)), ("lengths", "<u4", (variable,)), *fixed])


class TableOpener:
    """Opens records with these fields; a kind of "" is told by the bytes."""

    def __init__(self, fields: Sequence[FieldSpec]) -> None:
        self._count = len(fields)
        self._null_bytes = at = null_bytes(fields)
        dtypes = [find_dtype(field.kind) for field in fields]
        self._variable = [number for number, dtype in enumerate(dtypes) if dtype is None]
        self._lengths = Struct(f"<{len(self._variable)}I")
        at += self._lengths.size
        self._fixed: list[tuple[int, int, int]] = []
        for number, dtype in enumerate(dtypes):
            if dtype is not None:
                self._fixed.append((number, at, at + dtype.itemsize))
                at += dtype.itemsize
        self._head_bytes = at
        self._names = [field.name for field in fields]
        self._kinds = [field.kind for field in fields]
        self._unknown = [number for number, kind in enumerate(self._kinds) if not kind]
        keys = [number for number, field in enumerate(fields) if (field.name, field.kind) == (_KEY, "txt")]
        self._key = keys[0] if keys else None

    def open(self, content: memoryview, name: SampleName) -> tuple[str | None, Sequence[Field]]:
        """Takes a record apart. Copies nothing."""
        values, nulls = self.values(content)
        found = list(map(Field, self._names, values, self._kinds))
        for number in self._unknown:
            found[number] = Field(self._names[number], values[number], kind_of_bytes(values[number]))
        if nulls:
            found = [
                Field(field.name, _NO_BYTES, _NULL) if nulls >> number & 1 else field
                for number, field in enumerate(found)
            ]
        if self._key is None:
            return None, found
        field = found.pop(self._key)
        try:
            return (None if field.kind == _NULL else str(field.content, "utf-8")), found
        except UnicodeDecodeError as error:
            raise DecodeError(f"the key is not UTF-8: {error}", field=_KEY) from error

    def values(self, content: memoryview) -> tuple[list[memoryview], int]:
        """Returns the bytes of each field, and a bit for each field that has no value; raises DecodeError."""
        at = self._head_bytes
        if len(content) < at:
            raise DecodeError(f"a record of {len(content)} bytes; its head alone has {at}", bytes=len(content))
        found = [_NO_BYTES] * self._count
        for number, start, stop in self._fixed:
            found[number] = content[start:stop]
        for number, length in zip(self._variable, self._lengths.unpack_from(content, self._null_bytes), strict=True):
            found[number] = content[at : at + length]
            at += length
        if at != len(content):
            raise DecodeError(f"a record of {len(content)} bytes; its head says {at}", bytes=len(content))
        return found, int.from_bytes(content[: self._null_bytes], "little")


def null_bytes(fields: Sequence[FieldSpec]) -> int:
    """Returns the bytes of the null bits."""
    return -(-len(fields) // 8)
