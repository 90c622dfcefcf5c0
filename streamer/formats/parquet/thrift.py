"""Thrift's compact protocol: structs to dicts and back, without a definition of them.

Source: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

# Footers nest eight structs.
_DEEPEST = 32

T = TypeVar("T")
Value: TypeAlias = "bool | int | bytes | list[Value] | dict[int, Value]"
# Field number -> (type, value); lists are (type of the items, items).
Fields: TypeAlias = Mapping[int, tuple[int, object]]


class ThriftError(ValueError):
    """Bytes that are not Thrift, or not the struct that is expected.

    Args:
        reason: what is wrong.
        offset: where, from the start of the bytes.
    """

    def __init__(self, reason: str, offset: int = 0) -> None:
        super().__init__(reason)
        self.offset = offset


class Struct:
    """A struct as read; asks for its fields by number and type."""

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[int, Value]) -> None:
        self._fields = fields

    def __contains__(self, number: int) -> bool:
        return number in self._fields

    def integer(self, number: int, default: int | None = None) -> int:
        """A number; `default` where it is missing.

        Raises:
            ThriftError: it is missing and has no default, or is something else. So do the other methods.
        """
        value = self._fields.get(number, default)
        if type(value) is not int:
            raise _missing(number, "number", value)
        return value

    def binary(self, number: int, default: bytes | None = None) -> bytes:
        """Bytes."""
        value = self._fields.get(number, default)
        if type(value) is not bytes:
            raise _missing(number, "text", value)
        return value

    def flag(self, number: int, default: bool = False) -> bool:
        """A truth value."""
        value = self._fields.get(number, default)
        if type(value) is not bool:
            raise _missing(number, "flag", value)
        return value

    def struct(self, number: int) -> Struct:
        """A struct."""
        value = self._fields.get(number)
        if type(value) is not dict:
            raise _missing(number, "struct", value)
        return Struct(value)

    def structs(self, number: int) -> list[Struct]:
        """A list of structs; empty where it is missing."""
        return [Struct(item) for item in self._list(number, dict)]

    def binaries(self, number: int) -> list[bytes]:
        """A list of bytes; empty where it is missing."""
        return list(self._list(number, bytes))

    def integers(self, number: int) -> list[int]:
        """A list of numbers; empty where it is missing."""
        return list(self._list(number, int))

    def only(self) -> tuple[int, Struct]:
        """The one field of a union: its number, and the struct that it is."""
        if len(self._fields) != 1:
            raise ThriftError(f"a union of {len(self._fields)} fields")
        number = next(iter(self._fields))
        return number, self.struct(number)

    def _list(self, number: int, kind: type[T]) -> list[T]:
        value = self._fields.get(number, [])
        if type(value) is not list or not all(type(item) is kind for item in value):
            raise _missing(number, f"list of {kind.__name__}", value)
        return value  # type: ignore[return-value]


def _missing(number: int, kind: str, value: object) -> ThriftError:
    found = "missing" if value is None else f"a {type(value).__name__}"
    return ThriftError(f"field {number} is {found}, not a {kind}")


def read_struct(content: bytes, offset: int = 0) -> Struct:
    """Reads one struct.

    Raises:
        ThriftError: it is cut off, nested too deeply, or no Thrift.
    """
    return read_struct_and_end(content, offset)[0]


def read_struct_and_end(content: bytes, offset: int = 0) -> tuple[Struct, int]:
    """Reads one struct; also where it ends.

    Raises:
        ThriftError: as above.
    """
    reader = _Reader(content, offset)
    try:
        return Struct(reader.struct(0)), reader.position
    except IndexError:
        raise ThriftError("cut off", len(content)) from None


def read_varint(content: bytes | memoryview, position: int) -> tuple[int, int]:
    """A number of up to 64 bits without sign (ULEB128), and where it ends.

    Raises:
        ThriftError: it is longer.
        IndexError: it is cut off.
    """
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if value >> 64:
            raise ThriftError("a number of more than 64 bits", position)
        if byte < 0x80:
            return value, position
        shift += 7


class _Reader:
    def __init__(self, content: bytes, position: int) -> None:
        self._content = content
        self.position = position

    def struct(self, depth: int) -> dict[int, Value]:
        if depth > _DEEPEST:
            raise ThriftError(f"structs nested more than {_DEEPEST} deep", self.position)
        fields: dict[int, Value] = {}
        number = 0
        while True:
            head = self._content[self.position]
            self.position += 1
            if not head:
                return fields
            number = number + (head >> 4) if head >> 4 else self._number()
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
        raise ThriftError(f"type {kind} is not known", self.position)

    def _items(self, depth: int) -> list[Value]:
        head = self._byte()
        count, kind = head >> 4, head & 15
        if count == 15:
            count = self._varint()
        # Each item takes a byte at least.
        if count > len(self._content) - self.position:
            raise ThriftError(f"a list of {count} items", self.position)
        if depth > _DEEPEST:
            raise ThriftError(f"lists nested more than {_DEEPEST} deep", self.position)
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
            raise ThriftError(f"{count} bytes are cut off", self.position)
        self.position += count
        return value

    def _varint(self) -> int:
        value, self.position = read_varint(self._content, self.position)
        return value

    def _number(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


def write_struct(fields: Fields) -> bytes:
    """Writes one struct."""
    out = bytearray()
    _write_struct(out, fields)
    return bytes(out)


def _write_struct(out: bytearray, fields: Fields) -> None:
    last = 0
    for number in sorted(fields):
        kind, value = fields[number]
        if kind in (TRUE, FALSE):
            kind = TRUE if value else FALSE
        if 0 < number - last < 16:
            out.append(number - last << 4 | kind)
        else:
            out.append(kind)
            _write_number(out, number)
        last = number
        if kind not in (TRUE, FALSE):
            _WRITERS[kind](out, value)
    out.append(0)


def _write_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _write_number(out: bytearray, value: int) -> None:
    _write_varint(out, (value << 1) ^ (value >> 63))


def _write_binary(out: bytearray, value: bytes) -> None:
    _write_varint(out, len(value))
    out += value


def _write_list(out: bytearray, value: tuple[int, Sequence[object]]) -> None:
    kind, items = value
    if len(items) < 15:
        out.append(len(items) << 4 | kind)
    else:
        out.append(0xF0 | kind)
        _write_varint(out, len(items))
    for item in items:
        _WRITERS[kind](out, item)


_WRITERS: dict[int, Callable[..., None]] = {
    BYTE: bytearray.append,
    **dict.fromkeys([I16, I32, I64], _write_number),
    BINARY: _write_binary,
    LIST: _write_list,
    STRUCT: _write_struct,
}
