"""Reads and writes structs in Thrift's compact protocol, without definitions of the structs.

Parquet's footers, page indexes and page headers are such structs: `footer.py`, `schema.py`, `pages.py` and
`number_lists.py` read them with it, and `recode.py` writes a footer. Bytes that are not Thrift, or not the struct that
is expected, raise `DamagedError`.
Source: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

from streamer.formats.failures import DamagedError

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

# Footers nest eight structs.
_DEEPEST = 32

T = TypeVar("T")
Value: TypeAlias = "bool | int | bytes | list[Value] | dict[int, Value]"
# Argument of `write_struct`: (type, value) by number of the field. The value of a list is (type of the items, items).
Fields: TypeAlias = Mapping[int, tuple[int, object]]


class Struct:
    """A struct as it was read. Its methods return a field by its number.

    They raise DamagedError for a field of another type, and for a missing one if there is no default.
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[int, Value]) -> None:
        self._fields = fields

    def __contains__(self, number: int) -> bool:
        return number in self._fields

    def integer(self, number: int, default: int | None = None) -> int:
        """Returns a number; `default` if the field is missing."""
        return self._value(number, int, default)

    def binary(self, number: int, default: bytes | None = None) -> bytes:
        """Returns bytes; `default` if the field is missing."""
        return self._value(number, bytes, default)

    def flag(self, number: int, default: bool = False) -> bool:
        """Returns a truth value; `default` if the field is missing."""
        return self._value(number, bool, default)

    def struct(self, number: int) -> Struct:
        """Returns a struct."""
        return Struct(self._value(number, dict, None))

    def structs(self, number: int) -> list[Struct]:
        """Returns a list of structs; [] if the field is missing."""
        return [Struct(item) for item in self.items(number, dict)]

    def items(self, number: int, kind: type[T]) -> list[T]:
        """Returns a list whose items all have the Python type `kind`; [] if the field is missing."""
        value = self._fields.get(number, [])
        if type(value) is not list or not all(type(item) is kind for item in value):
            raise _make_field_error(number, f"list of {kind.__name__}", value)
        return value  # type: ignore[return-value]

    def only(self) -> tuple[int, Struct]:
        """Returns the number and the value of the only field of a union, which must be a struct."""
        if len(self._fields) != 1:
            raise DamagedError(f"a union of {len(self._fields)} fields")
        number = next(iter(self._fields))
        return number, self.struct(number)

    def _value(self, number: int, kind: type[T], default: T | None) -> T:
        value = self._fields.get(number, default)
        if type(value) is not kind:
            raise _make_field_error(number, kind.__name__, value)
        return value


def _make_field_error(number: int, kind: str, value: object) -> DamagedError:
    found = "missing" if value is None else f"a {type(value).__name__}"
    return DamagedError(f"field {number} is {found}, not a {kind}")


def read_struct(content: bytes, last: int | None = None) -> tuple[Struct, int]:
    """Reads the struct at the beginning of some bytes; returns it, and the byte behind what was read.

    Args:
        content: the bytes.
        last: number of the last field to read, or None to read all.

    Raises:
        DamagedError: the bytes are no struct, or end inside of it.
    """
    reader = _Reader(content)
    try:
        return Struct(reader.struct(0, last)), reader.position
    except IndexError:
        raise DamagedError("cut off", len(content)) from None


def read_varint(content: bytes | memoryview, position: int) -> tuple[int, int]:
    """Returns the unsigned number of up to 64 bits (ULEB128) at `position`, and the byte behind it.

    Raises:
        DamagedError: the number has more than 64 bits.
        IndexError: the bytes end inside of the number.
    """
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if value >> 64:
            raise DamagedError("a number of more than 64 bits", position)
        if byte < 0x80:
            return value, position
        shift += 7


class _Reader:
    """Parses values one after the other from `position` on.

    Its methods raise DamagedError, or IndexError if the bytes end.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.position = 0

    def struct(self, depth: int, last: int | None = None) -> dict[int, Value]:
        """Returns the fields of a struct by number, up to the field `last`; `depth` counts the structs around it."""
        if depth > _DEEPEST:
            raise DamagedError(f"structs nested more than {_DEEPEST} deep", self.position)
        fields: dict[int, Value] = {}
        number = 0
        while True:
            begin = self.position
            head = self._content[self.position]
            self.position += 1
            if not head:
                return fields
            number = number + (head >> 4) if head >> 4 else self._number()
            if last is not None and number > last:
                self.position = begin
                return fields
            fields[number] = self._value(head & 15, depth)

    def _value(self, kind: int, depth: int) -> Value:
        if kind in (I32, I64, I16):
            return self._number()
        if kind == BINARY:
            return self._bytes(self._varint())
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind in (LIST, SET):
            return self._items(depth)
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind == BYTE:
            return self._byte()
        if kind == DOUBLE:
            return self._bytes(8)
        raise DamagedError(f"type {kind} is not known", self.position)

    def _items(self, depth: int) -> list[Value]:
        head = self._byte()
        count = head >> 4
        kind = head & 15
        if count == 15:
            count = self._varint()
        # An item takes at least one byte.
        if count > len(self._content) - self.position:
            raise DamagedError(f"a list of {count} items", self.position)
        if depth > _DEEPEST:
            raise DamagedError(f"lists nested more than {_DEEPEST} deep", self.position)
        if kind in (TRUE, FALSE):
            return [self._byte() == TRUE for _ in range(count)]
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _byte(self) -> int:
        value = self._content[self.position]
        self.position += 1
        return value

    def _bytes(self, count: int) -> bytes:
        value = self._content[self.position : self.position + count]
        if len(value) != count:
            raise DamagedError(f"{count} bytes are cut off", self.position)
        self.position += count
        return value

    def _varint(self) -> int:
        value, self.position = read_varint(self._content, self.position)
        return value

    def _number(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


def write_struct(fields: Fields) -> bytes:
    """Returns the bytes of a struct. Its fields may have the types TRUE, FALSE, I16, I32, I64, BINARY, LIST, STRUCT."""
    parts = []
    last = 0
    for number in sorted(fields):
        kind, value = fields[number]
        if kind in (TRUE, FALSE):
            kind = TRUE if value else FALSE
        step = number - last
        parts.append(bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + _encode_value(I64, number))
        if kind not in (TRUE, FALSE):
            parts.append(_encode_value(kind, value))
        last = number
    return b"".join([*parts, b"\0"])


def _encode_value(kind: int, value: Any) -> bytes:  # noqa: ANN401 - as the type says
    if kind in (I16, I32, I64):
        return _varint((value << 1) ^ (value >> 63))
    if kind == BINARY:
        return _varint(len(value)) + bytes(value)
    if kind == STRUCT:
        return write_struct(value)
    assert kind == LIST
    item, items = value
    head = bytes([len(items) << 4 | item]) if len(items) < 15 else bytes([0xF0 | item]) + _varint(len(items))
    return head + b"".join(_encode_value(item, each) for each in items)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
