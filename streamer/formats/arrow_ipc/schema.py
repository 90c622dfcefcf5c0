"""The schema of an Arrow file: its columns, and the fields of samples, which are those of the same table in Parquet.

Source: Arrow, format/Schema.fbs; the numbers of types and fields are those.
"""

from __future__ import annotations

import json

import msgspec

from streamer.flatbuffer import FlatbufferError, Table
from streamer.formats.arrow_ipc.messages import PREFIX_BYTES, schema_of
from streamer.formats.parquet.schema import (
    BOOLEAN,
    BYTE_ARRAY,
    DOUBLE,
    FIXED,
    FLOAT,
    INT32,
    INT64,
    REPEATED,
    Element,
    Field,
    Node,
    fields_of,
    tree,
)

_HUGGING_FACE = "huggingface"
_DEEPEST = 32
_MOST_COLUMNS = 10_000
_INT, _FLOAT, _FIXED_BINARY = 2, 3, 15
_STRUCT, _MAP = 13, 17
_LISTS = {12: "list", 16: "fixed_size_list", 21: "large_list"}
# Types of values that are laid out in one way: name, type and meaning as Parquet has them.
_PLAIN = {
    1: ("null", INT32, ""),
    4: ("binary", BYTE_ARRAY, ""),
    5: ("utf8", BYTE_ARRAY, "text"),
    6: ("bool", BOOLEAN, ""),
    7: ("decimal", FIXED, "decimal"),
    18: ("duration", INT64, ""),
    19: ("large_binary", BYTE_ARRAY, ""),
    20: ("large_utf8", BYTE_ARRAY, "text"),
    23: ("binary_view", BYTE_ARRAY, ""),
    24: ("utf8_view", BYTE_ARRAY, "text"),
}
# Date, time, timestamp, with the width of those that do not say it.
_TIMES = {8: "date", 9: "time", 10: "timestamp"}
_FLOATS = (("float16", FIXED, "<f2"), ("float", FLOAT, ""), ("double", DOUBLE, ""))


class UnreadError(ValueError):
    """Columns of a kind that is not read."""


class Schema(msgspec.Struct, frozen=True):
    """The columns of a file.

    Attributes:
        root: of the columns, as Parquet nests them.
        types: name and exact type of each part, in order; files of one dataset have the same.
        fields: of the samples.
    """

    root: Node
    types: list[str]
    fields: list[Field]


def read_schema(message: memoryview) -> Schema:
    """Parses the message of a schema.

    Args:
        message: with its prefix.

    Raises:
        UnreadError: a type that is not read.
        ValueError: no schema.
    """
    table = schema_of(message[PREFIX_BYTES:])
    if table.number(0, "<h"):
        raise UnreadError("numbers in big-endian order, which are not read")
    reader = _Columns()
    columns = table.tables(1)
    for column in columns:
        reader.add(column, "")
    root = tree([Element("schema", len(columns)), *reader.elements])
    metadata = {pair.text(0): pair.text(1) for pair in table.tables(2)}
    return Schema(root, reader.types, fields_of(root, _features(metadata)))


def _features(metadata: dict[str, str]) -> object:
    """How Hugging Face's datasets describe the columns."""
    try:
        return json.loads(metadata.get(_HUGGING_FACE, "null"))["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


class _Columns:
    """Collects the parts of columns."""

    def __init__(self) -> None:
        self.elements: list[Element] = []
        self.types: list[str] = []

    def add(self, field: Table, name: str, depth: int = 0) -> None:
        """Adds a column, or a part of one under another name, and what is below it."""
        if depth > _DEEPEST or len(self.types) > _MOST_COLUMNS:
            raise FlatbufferError(f"columns nested more than {_DEEPEST} deep, or more than {_MOST_COLUMNS}")
        own = field.text(0)
        name, kind, children = name or own, field.number(2, "<B"), field.tables(5)
        if kind in _LISTS and len(children) == 1:
            self._note(field, own, _LISTS[kind])
            self.elements += [Element(name, 1, meaning="list"), Element("list", 1, repetition=REPEATED)]
            self.add(children[0], "element", depth + 1)
        elif kind == _MAP and len(children) == 1 and len(children[0].tables(5)) == 2:
            self._note(field, own, "map")
            self.elements += [Element(name, 1, meaning="map"), Element("key_value", 2, repetition=REPEATED)]
            for part, child in zip(("key", "value"), children[0].tables(5), strict=True):
                self.add(child, part, depth + 1)
        elif kind == _STRUCT and children:
            self._note(field, own, "struct")
            self.elements.append(Element(name, len(children)))
            for child in children:
                self.add(child, "", depth + 1)
        else:
            exact, physical, meaning, length = _primitive(kind, own, field)
            self._note(field, own, exact)
            self.elements.append(Element(name, type=physical, meaning=meaning, length=length))

    def _note(self, field: Table, name: str, kind: str) -> None:
        self.types.append(f"{name}: {kind}{', dictionary' if field.has(4) else ''}")


def _primitive(kind: int, name: str, field: Table) -> tuple[str, int, str, int]:
    """The exact type of values; type, meaning and length as Parquet has them."""
    if kind in _PLAIN:
        return *_PLAIN[kind], 0
    details = field.table(3)
    first = details.number(0, "<i" if kind in {_INT, _FIXED_BINARY} else "<h", int(kind in {8, 9}))
    if kind == _INT and first in {8, 16, 32, 64}:
        signed = details.number(1, "<?")
        dtype = f"{'<' if first > 8 else ''}{'i' if signed else 'u'}{first // 8}"
        physical = INT64 if first == 64 else INT32
        return dtype, physical, dtype if dtype not in {"<i4", "<i8"} else "", 0
    if kind == _FLOAT and 0 <= first < len(_FLOATS):
        return *_FLOATS[first], 2 if first == 0 else 0
    if kind == _FIXED_BINARY and first > 0:
        return f"fixed_size_binary[{first}]", FIXED, "", first
    if kind in _TIMES:
        # Days, and times of seconds and milliseconds, have 32 bits.
        narrow = (kind == 8 and first == 0) or (kind == 9 and details.number(1, "<i", 32) == 32)
        return f"{_TIMES[kind]} of unit {first}", INT32 if narrow else INT64, "", 0
    raise UnreadError(f"a column {name!r} of type number {kind} (Arrow's Schema.fbs), which is not read")
