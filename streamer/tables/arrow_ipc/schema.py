"""Parses the schema of an Arrow file: its columns, and the fields of samples, as of the same table in Parquet.

`Columns` are those that all files of a dataset have together, as its facts describe them.
Source: Arrow, format/Schema.fbs; the numbers of types and fields are those.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence

import msgspec

from streamer.base.flatbuffer import FlatbufferError, Table
from streamer.formats.base import Facts, FieldSpec
from streamer.formats.failures import UnreadError
from streamer.tables.arrow_ipc.messages import PREFIX_BYTES, schema_of
from streamer.tables.parquet import fields
from streamer.tables.parquet import schema as parquet
from streamer.tables.parquet.arrow_schema import duration_of, is_json, tensor_of
from streamer.tables.parquet.facts import WantedColumns, layout_of, values_at
from streamer.tables.parquet.schema import SchemaNode
from streamer.tables.parquet.unify import DifferentError, check_same

_HUGGING_FACE = "huggingface"
_DEEPEST = 32
_MAX_COLUMNS = 10_000
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
# Buffers of an array of a type, without those of its children; others have one of nulls and one of values.
_BUFFERS = {1: 0, _STRUCT: 1, 16: 1, 4: 3, 5: 3, 19: 3, 20: 3}
# Types whose values are in a number of further buffers.
_VIEWS = frozenset([23, 24])
_FLOATS = (("float16", parquet.FIXED, "<f2"), ("float", parquet.FLOAT, ""), ("double", parquet.DOUBLE, ""))


class Schema(msgspec.Struct, frozen=True):
    """The columns of a file.

    Attributes:
        root: the columns, as Parquet nests them.
        types: name and type of each part, in order; files of one dataset have the same.
        layouts: how they are laid out, besides their types: the dictionary of each part, scales of decimals.
        features: How Hugging Face's datasets describe the columns, as JSON.
        buffers: For each column the buffers of its arrays, and its parts that have a number of them more; see
            `messages.find_parts`.
    """

    root: parquet.SchemaNode
    types: list[str]
    layouts: list[str]
    features: str
    buffers: list[tuple[int, int]]

    def select_fields(self, columns: Sequence[str]) -> list[fields.ColumnField]:
        """Returns the fields of these columns, all if there are none."""
        return fields.select_fields(self.root, fields.features_of(self.features), columns)


def read_schema(message: memoryview) -> Schema:
    """Parses the message of a schema, with its prefix; raises ValueError, and UnreadError for other types."""
    table = schema_of(message[PREFIX_BYTES:])
    if table.number(0, "<h"):
        raise UnreadError("numbers in big-endian order, which are not read")
    reader = _SchemaReader()
    columns = table.tables(1)
    for column in columns:
        reader.add(column, "")
    root = parquet.tree([parquet.Element("schema", len(columns)), *reader.elements], reader.logicals)
    metadata = {pair.text(0): pair.text(1) for pair in table.tables(2)}
    features = metadata.get(_HUGGING_FACE, "null")
    buffers = [_count_buffers(column) for column in columns]
    return Schema(root=root, types=reader.types, layouts=reader.layouts, features=features, buffers=buffers)


def _count_buffers(field: Table) -> tuple[int, int]:
    """Returns the buffers of a column's arrays, and its parts that have a number of them more."""
    if field.has(4):
        # The batch has indexes into a dictionary.
        return 2, 0
    kind = field.number(2, "<B")
    count = _BUFFERS.get(kind, 2)
    views = int(kind in _VIEWS)
    for child in field.tables(5):
        below, views_below = _count_buffers(child)
        count += below
        views += views_below
    return count, views


class _SchemaReader:
    """Collects the parts of columns."""

    def __init__(self) -> None:
        self.elements: list[parquet.Element] = []
        self.types: list[str] = []
        self.layouts: list[str] = []
        # Meanings that the layout does not say, and shapes of tensors, by the place of the parts behind the root.
        self.logicals: dict[int, str] = {}

    def add(self, field: Table, name: str, depth: int = 0, *, inside: bool = False) -> None:
        """Adds a column, or a part of one under another name, and what is below it; `inside`: it is in a list."""
        if depth > _DEEPEST or len(self.types) > _MAX_COLUMNS:
            raise FlatbufferError(f"columns nested more than {_DEEPEST} deep, or more than {_MAX_COLUMNS}")
        own = field.text(0)
        name = name or own
        kind = field.number(2, "<B")
        children = field.tables(5)
        parts = [("", child) for child in children]
        if kind in _LISTS and len(children) == 1:
            exact = _LISTS[kind]
            elements = _make_groups(name, "list", "list", 1)
            parts = [("element", children[0])]
        elif kind == _MAP and len(children) == 1 and len(children[0].tables(5)) == 2:
            exact = "map"
            elements = _make_groups(name, "map", "key_value", 2)
            parts = list(zip(("key", "value"), children[0].tables(5), strict=True))
        elif kind == _STRUCT and children:
            exact = "struct"
            elements = [parquet.Element(name, len(children))]
        else:
            exact, physical, meaning, length = _primitive(kind, own, field)
            meaning = "json" if meaning == "text" and is_json(field) else meaning
            elements = [parquet.Element(name, type=physical, meaning=meaning, length=length)]
            parts = []
            if kind in _LOGICAL_KINDS:
                self.logicals[1 + len(self.elements)] = exact
        if shape := tensor_of(field):
            if inside:
                raise UnreadError(f"a tensor inside of a list, column {own!r}, which is not read")
            self.logicals[1 + len(self.elements)] = exact = f"tensor[{','.join(map(str, shape))}]"
        self.types.append(f"{own}: {exact}")
        # Files may differ in the dictionary of a column, and in the scale of decimals.
        layout = ""
        if field.has(4):
            dictionary = field.table(4)
            index = dictionary.table(1) if dictionary.has(1) else None
            bits = (index.number(0, "<i"), index.number(1, "<?")) if index else (32, 1)
            layout = f"dictionary {dictionary.number(0, '<q')} of {bits}"
        if kind == _DECIMAL:
            details = field.table(3)
            layout += f"decimal {details.number(0, '<i')}, {details.number(1, '<i')}, {details.number(2, '<i', 128)}"
        self.layouts.append(layout)
        self.elements += elements
        for part, child in parts:
            self.add(child, part, depth + 1, inside=inside or kind != _STRUCT)


def _make_groups(name: str, meaning: str, inner: str, children: int) -> list[parquet.Element]:
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


class ArrowColumns(msgspec.Struct, frozen=True):
    """The columns of a dataset.

    Attributes:
        names: Names of the wanted fields; all are wanted if there are none.
        fields: Fields of the samples that are columns.
        partitions: Fields that the paths have, which follow them.
        paths: For each field of a column, the path of its node.
        message: The message of the first file's schema.
        first: That schema.
        united: What the files have together; None if all have the columns of the first one.
        meanings: See `Field.meanings`.
    """

    names: Sequence[str]
    fields: Sequence[FieldSpec]
    partitions: Sequence[FieldSpec]
    paths: list[tuple[str, ...]]
    message: memoryview
    first: Schema
    united: SchemaNode | None
    meanings: Mapping[tuple[str, ...], str]

    @classmethod
    def from_facts(cls, facts: Facts) -> ArrowColumns:
        """Decodes the facts of a dataset."""
        message = memoryview(b64decode(facts.notes["schema"]))
        first = read_schema(message)
        names = facts.notes.get("columns", [])
        if "united" in facts.notes:
            wanted = WantedColumns.from_facts(Facts(facts.fields, facts.notes["united"]))
            return cls(
                names=names,
                fields=wanted.fields,
                partitions=wanted.partitions,
                paths=wanted.paths,
                message=message,
                first=first,
                united=wanted.all.root,
                meanings=wanted.meanings,
            )
        own = first.select_fields(names)
        return cls(
            names=names,
            fields=facts.fields[: len(own)],
            partitions=facts.fields[len(own) :],
            paths=[field.path for field in own],
            message=message,
            first=first,
            united=None,
            meanings={path: meaning for field in own for path, meaning in field.meanings},
        )

    @property
    def first_layout(self) -> tuple[list[str], list[str]]:
        """Types and layouts of the first file, which blocks of other files must say."""
        return self.first.types, self.first.layouts

    @property
    def layout(self) -> bytes:
        """A digest of what decides how records are laid out, for blocks of files that do not say it themselves."""
        return layout_of([*self.fields, *self.partitions], self.meanings)

    def matches(self, schema: Schema) -> bool:
        """Whether a file alone would have the same fields in the same order, so that its records are the same."""
        if self.partitions or self.united or self.names:
            return False
        fields = schema.select_fields(())
        if any(schema.root.at(field.path).is_list_of_nulls for field in fields):
            # Older versions made arrays of them: their chunks are others.
            return False
        meanings = {path: meaning for field in fields for path, meaning in field.meanings}
        return [field.spec for field in fields] == [*self.fields] and meanings == self.meanings

    def find_numbers(self, schema: Schema) -> list[int]:
        """Returns the numbers of the wanted columns in a file; that of the first column if it has none of them.

        A batch has rows only where it has a column.
        """
        names = {path[0] for path in self.paths}
        return [number for number, child in enumerate(schema.root.children) if child.element.name in names] or [0]

    def check(self, schema: Schema) -> None:
        """Compares the columns of a file with these; raises DifferentError for one of another type."""
        known = self.united or self.first.root
        if schema.types == self.first.types:
            return
        for child in schema.root.children:
            if self.names and child.element.name not in {path[0] for path in self.paths}:
                continue
            if (other := known.child(child.element.name)) is None:
                raise DifferentError(child.element.name, ("missing", "there"))
            check_same(other, child)

    def nodes(self, schema: Schema) -> list[tuple[SchemaNode | None, SchemaNode]]:
        """Returns for each field its node in a file, None if the file has none, and the node as all files have it."""
        known = self.united or self.first.root
        if self.united is None:
            return [(schema.root.at(path), schema.root.at(path)) for path in self.paths]
        return [(values_at(schema.root, path), known.at(path)) for path in self.paths]
