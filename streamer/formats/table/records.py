"""Defines the record of a row of a table, and opens such records.

    null bits, one per field | uint32 length of each variable field | fixed fields | variable fields

Recoders write these records (`formats/table/writer.py`), and workers open them (`TableOpener`). Most formats of
`tables/` and `media/` use them, and so do `annotations/join.py` and `loader/members/columns.py`. `decode/` takes dtypes
and codes of nested values from here. The fields are those of the dataset's facts, in order. A field is fixed if its
kind is a number, or an array of which all lengths are known; all others are variable. A field of text that is named
`__key__` is the key of the sample.
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

# Dtypes of arrays of one dimension in nested values. Such an array is an extension of MessagePack whose code is the
# place of the dtype here; all other codes are those of `Extension`.
ARRAY_DTYPES = ("?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")

_FIXED = re.compile(r"([<>|=]?[?a-z][0-9]*)(?:\[(\d+(?:,\d+)*)\])?")
_KEY = "__key__"
_NULL = "null"
_NO_BYTES = memoryview(b"")


class Extension(IntEnum):
    """Codes of MessagePack extensions in nested values.

    BYTES: bytes, which are an image if they begin like one.
    IMAGE: bytes of an image.
    JSON: a JSON text.
    """

    BYTES = 16
    IMAGE = 17
    JSON = 18


def find_dtype(kind: str) -> np.dtype[np.generic] | None:
    """Returns the dtype of a fixed field of this kind, with its shape; None for a variable one."""
    found = _FIXED.fullmatch(kind)
    if found is None:
        return None
    try:
        dtype = np.dtype((found[1], tuple(map(int, found[2].split(","))) if found[2] else ()))
    except (TypeError, ValueError):
        return None
    return dtype if dtype.base.kind in "biufc" else None


def is_dtype(name: object, kinds: str) -> bool:
    """Whether a value names a dtype of numpy, or is one, and its `kind` is one of the letters in `kinds` ("biufc")."""
    # numpy also makes dtypes of tuples, lists and None, which is float64.
    if not isinstance(name, str | type | np.dtype):
        return False
    try:
        return np.dtype(name).kind in kinds
    except TypeError:
        return False


def head_bytes(fields: Sequence[FieldSpec]) -> int:
    """Returns the bytes of null bits and lengths, which a record has besides the values of its fields."""
    variable = sum(find_dtype(field.kind) is None for field in fields)
    return null_bytes(fields) + 4 * variable


def head_dtype(fields: Sequence[FieldSpec]) -> np.dtype[np.void]:
    """Returns the dtype of a record without its variable fields.

    Its fields are "nulls" (uint8), "lengths" (uint32), and the fixed fields, named by their numbers ("0", "2").
    """
    dtypes = [find_dtype(field.kind) for field in fields]
    fixed = [(str(number), dtype) for number, dtype in enumerate(dtypes) if dtype is not None]
    variable = len(fields) - len(fixed)
    return np.dtype([("nulls", "u1", (null_bytes(fields),)), ("lengths", "<u4", (variable,)), *fixed])


class TableOpener:
    """Opens records with the given fields; a field of kind "" is an image if its bytes begin like one, else bytes."""

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
        """Returns the key of a record (None if it has none or a null) and its fields, which refer to `content`.

        A field without a value gets the kind "null".

        Raises:
            DecodeError: the bytes are not a record of these fields, or the key is not UTF-8.
        """
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
        """Returns the bytes of each field, and an integer whose bit i is set if field i has no value.

        Raises:
            DecodeError: the bytes are not a record of these fields.
        """
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
    """Returns the number of bytes that the null bits of a record take."""
    return -(-len(fields) // 8)
