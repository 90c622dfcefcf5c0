"""Parses the schema of an Arrow file: its columns, and the fields of samples, as of the same table in Parquet.

Source: Arrow, format/Schema.fbs; the numbers of types and fields are those.
"""

from __future__ import annotations

import msgspec

from streamer.base.flatbuffer import FlatbufferError, Table
from streamer.formats.failures import UnreadError
from streamer.tables.arrow_ipc.messages import PREFIX_BYTES, schema_of
from streamer.tables.parquet import schema as parquet
from streamer.tables.parquet.arrow_schema import duration_of, tensor_of

_HUGGING_FACE = "huggingface"
_DEEPEST = 32
_MOST_COLUMNS = 10_000
_INT = 2
_FLOAT = 3
_DECIMAL = 7
_TIMESTAMP = 10
_FIXED_BINARY = 15
_DURATION = 18
_STRUCT = 13
_MAP = 17
_LISTS = {12: "list", 16: "fixed_size_list", 21: "large_list"}
# Types of values that are laid out in one way: name, type and meaning as Parquet has them.
_PLAIN = {
    1: ("null", parquet.INT32, ""),
    4: ("binary", parquet.BYTE_ARRAY, ""),
    5: ("utf8", parquet.BYTE_ARRAY, "text"),
    6: ("bool", parquet.BOOLEAN, ""),
    7: ("decimal", parquet.FIXED, "decimal"),
    18: ("duration", parquet.INT64, ""),
    19: ("large_binary", parquet.BYTE_ARRAY, ""),
    20: ("large_utf8", parquet.BYTE_ARRAY, "text"),
    23: ("binary_view", parquet.BYTE_ARRAY, ""),
    24: ("utf8_view", parquet.BYTE_ARRAY, "text"),
}
# Date, time, timestamp, with the width of those that do not say it.
_TIMES = {8: "date", 9: "time", 10: "timestamp"}
# Types whose values mean what their layout does not say: null, dates and times, duration.
_LOGICAL_KINDS = frozenset([1, *_TIMES, _DURATION])
_FLOATS = (("float16", parquet.FIXED, "<f2"), ("float", parquet.FLOAT, ""), ("double", parquet.DOUBLE, ""))


class Schema(msgspec.Struct, frozen=True):
    """The columns of a file.

    Attributes:
        root: the columns, as Parquet nests them.
        types: name and type of each part, in order; files of one dataset have the same.
        layouts: how they are laid out, besides their types: the dictionary of each part, scales of decimals.
        fields: fields of the samples.
        features: How Hugging Face's datasets describe the columns, as JSON.
    """

    root: parquet.Node
    types: list[str]
    layouts: list[str]
    fields: list[parquet.Field]
    features: str


def read_schema(message: memoryview) -> Schema:
    """Parses the message of a schema, with its prefix; raises ValueError, and UnreadError for other types."""
    table = schema_of(message[PREFIX_BYTES:])
    if table.number(0, "<h"):
        raise UnreadError("numbers in big-endian order, which are not read")
    reader = _Columns()
    columns = table.tables(1)
    for column in columns:
        reader.add(column, "")
    root = parquet.tree([parquet.Element("schema", len(columns)), *reader.elements], reader.logicals)
    metadata = {pair.text(0): pair.text(1) for pair in table.tables(2)}
    features = metadata.get(_HUGGING_FACE, "null")
    fields = parquet.fields_of(root, parquet.features_of(features))
    return Schema(root, reader.types, reader.layouts, fields, features)


class _Columns:
    """Collects the parts of columns."""

    def __init__(self) -> None:
        self.elements: list[parquet.Element] = []
        self.types: list[str] = []
        self.layouts: list[str] = []
        # What the layout does not say, and shapes of tensors, by the place of the parts behind the root.
        self.logicals: dict[int, str] = {}

    def add(self, field: Table, name: str, depth: int = 0, *, inside: bool = False) -> None:
        """Adds a column, or a part of one under another name, and what is below it; `inside`: it is in a list."""
        if depth > _DEEPEST or len(self.types) > _MOST_COLUMNS:
            raise FlatbufferError(f"columns nested more than {_DEEPEST} deep, or more than {_MOST_COLUMNS}")
        own = field.text(0)
        name = name or own
        kind = field.number(2, "<B")
        children = field.tables(5)
        parts = [("", child) for child in children]
        if kind in _LISTS and len(children) == 1:
            exact = _LISTS[kind]
            elements = _repeated(name, "list", "list", 1)
            parts = [("element", children[0])]
        elif kind == _MAP and len(children) == 1 and len(children[0].tables(5)) == 2:
            exact = "map"
            elements = _repeated(name, "map", "key_value", 2)
            parts = list(zip(("key", "value"), children[0].tables(5), strict=True))
        elif kind == _STRUCT and children:
            exact = "struct"
            elements = [parquet.Element(name, len(children))]
        else:
            exact, physical, meaning, length = _primitive(kind, own, field)
            elements = [parquet.Element(name, type=physical, meaning=meaning, length=length)]
            parts = []
            if kind in _LOGICAL_KINDS:
                self.logicals[1 + len(self.elements)] = exact
        if shape := tensor_of(field):
            if inside:
                raise UnreadError(f"a tensor inside of a list, column {own!r}, which is not read")
            self.logicals[1 + len(self.elements)] = exact = f"tensor[{','.join(map(str, shape))}]"
        self.types.append(f"{own}: {exact}")
        self.layouts.append(_layout(kind, field))
        self.elements += elements
        for part, child in parts:
            self.add(child, part, depth + 1, inside=inside or kind != _STRUCT)


def _layout(kind: int, field: Table) -> str:
    """Returns what may differ between files: the dictionary of a column, the scale of decimals."""
    found = ""
    if field.has(4):
        dictionary = field.table(4)
        index = dictionary.table(1) if dictionary.has(1) else None
        bits = (index.number(0, "<i"), index.number(1, "<?")) if index else (32, 1)
        found = f"dictionary {dictionary.number(0, '<q')} of {bits}"
    if kind == _DECIMAL:
        details = field.table(3)
        found += f"decimal {details.number(0, '<i')}, {details.number(1, '<i')}, {details.number(2, '<i', 128)}"
    return found


def _repeated(name: str, meaning: str, inner: str, children: int) -> list[parquet.Element]:
    """Returns the groups of a list or a map, as Parquet nests them."""
    return [parquet.Element(name, 1, meaning=meaning), parquet.Element(inner, children, repetition=parquet.REPEATED)]


def _primitive(kind: int, name: str, field: Table) -> tuple[str, int, str, int]:
    """Returns the exact type of values; type, meaning and length as Parquet has them."""
    if kind in _PLAIN:
        exact, physical, meaning = _PLAIN[kind]
        return duration_of(field) if kind == _DURATION else exact, physical, meaning, 0
    details = field.table(3)
    first = details.number(0, "<i" if kind in {_INT, _FIXED_BINARY} else "<h", int(kind in {8, 9}))
    if kind == _INT and first in {8, 16, 32, 64}:
        signed = details.number(1, "<?")
        dtype = f"{'<' if first > 8 else ''}{'i' if signed else 'u'}{first // 8}"
        physical = parquet.INT64 if first == 64 else parquet.INT32
        return dtype, physical, dtype if dtype not in {"<i4", "<i8"} else "", 0
    if kind == _FLOAT and 0 <= first < len(_FLOATS):
        return *_FLOATS[first], 2 if first == 0 else 0
    if kind == _FIXED_BINARY and first > 0:
        return f"fixed_size_binary[{first}]", parquet.FIXED, "", first
    if kind in _TIMES:
        # Days, and times of seconds and milliseconds, have 32 bits.
        narrow = (kind == 8 and first == 0) or (kind == 9 and details.number(1, "<i", 32) == 32)
        zone = ", UTC" if kind == _TIMESTAMP and details.text(1) else ""
        return f"{_TIMES[kind]} of unit {first}{zone}", parquet.INT32 if narrow else parquet.INT64, "", 0
    what = f"integers of {first} bits" if kind == _INT else f"type number {kind} (Arrow's Schema.fbs)"
    raise UnreadError(f"a column {name!r} of {what}, which is not read")
