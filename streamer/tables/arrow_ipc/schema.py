"""Parses the schema of an Arrow file into the tree of columns that the same table would have in Parquet.

Survey, index and recoder of Arrow use it. `Schema` is that of one file. `ArrowColumns` are the columns of a dataset, as
its facts describe them.
Source: Arrow, format/Schema.fbs, from which the numbers of types and fields are.
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
# Types with a single layout of values, by number: name, and type and meaning as in Parquet's schema.
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
# Names of the types of times, by number.
_TIMES = {8: "date", 9: "time", 10: "timestamp"}
# Types whose layout does not tell the meaning of values: null, dates and times, duration.
_LOGICAL_KINDS = frozenset([1, *_TIMES, _DURATION])
# Number of buffers of an array by type, without those of its children. Others have two: one of nulls, one of values.
_BUFFERS = {1: 0, _STRUCT: 1, 16: 1, 4: 3, 5: 3, 19: 3, 20: 3}
# Types of views, whose values are in further buffers; each batch says in how many.
_VIEWS = frozenset([23, 24])
_FLOATS = (("float16", parquet.FIXED, "<f2"), ("float", parquet.FLOAT, ""), ("double", parquet.DOUBLE, ""))


class Schema(msgspec.Struct, frozen=True):
    """The schema of one file.

    Attributes:
        root: Root of the tree of columns, as Parquet would nest them.
        types: Name and type of each column and each part of one, in order, as texts.
        layouts: For each of `types` a text that says what else decides the layout: its dictionary, scale of decimals.
        features: JSON in which Hugging Face's datasets describe the columns; "null" if the file has none.
        buffers: For each column the number of its buffers, and the number of its parts that are views (see
            `messages.find_parts`).
    """

    root: parquet.SchemaNode
    types: list[str]
    layouts: list[str]
    features: str
    buffers: list[tuple[int, int]]

    def select_fields(self, columns: Sequence[str]) -> list[fields.ColumnField]:
        """Returns the fields of the wanted columns; empty `columns` means all."""
        return fields.select_fields(self.root, fields.features_of(self.features), columns)


def read_schema(message: memoryview) -> Schema:
    """Parses the message of a schema, with its prefix.

    Raises:
        UnreadError: the schema has something that is not read: a type, big-endian numbers, two columns of one name.
        ValueError: the bytes are not the message of a schema.
    """
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
    """Returns the number of a column's buffers, and the number of its parts that are views."""
    if field.has(4):
        # The column has indexes into a dictionary, which take two buffers of a batch.
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
    """Collects what a schema says of its columns and their parts, in order.

    Attributes:
        elements: elements of the schema that Parquet would have, without the root.
        types: see `Schema`.
        layouts: see `Schema`.
        logicals: `SchemaNode.logical` by the place of the element, counted with the root.
    """

    def __init__(self) -> None:
        self.elements: list[parquet.Element] = []
        self.types: list[str] = []
        self.layouts: list[str] = []
        self.logicals: dict[int, str] = {}

    def add(self, field: Table, name: str, depth: int = 0, *, inside: bool = False) -> None:
        """Adds a column or a part of one, and all below it.

        Args:
            field: the field in Arrow's schema.
            name: name of its element; "" for the name in Arrow's schema.
            depth: number of parts around it.
            inside: whether it is inside of a list or a map.

        Raises:
            UnreadError: the type is not read.
            FlatbufferError: there are too many parts, or they are nested too deeply.
        """
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
        # Files of one dataset may differ in the dictionary of a column, and in the scale of decimals.
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
    """Returns the two elements of groups with which Parquet begins a list or a map."""
    return [parquet.Element(name, 1, meaning=meaning), parquet.Element(inner, children, repetition=parquet.REPEATED)]


def _primitive(kind: int, name: str, field: Table) -> tuple[str, int, str, int]:
    """Returns the name of a field's type, and type, meaning and length of values as in Parquet's schema.

    Raises UnreadError for a type that is not read.
    """
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
        # Dates in days, and times in seconds and milliseconds, have 32 bits; all others have 64.
        narrow = (kind == 8 and first == 0) or (kind == 9 and details.number(1, "<i", 32) == 32)
        zone = ", UTC" if kind == _TIMESTAMP and details.text(1) else ""
        return f"{_TIMES[kind]} of unit {first}{zone}", parquet.INT32 if narrow else parquet.INT64, "", 0
    what = f"integers of {first} bits" if kind == _INT else f"type number {kind} (Arrow's Schema.fbs)"
    raise UnreadError(f"a column {name!r} of {what}, which is not read")


class ArrowColumns(msgspec.Struct, frozen=True):
    """The columns of a dataset, decoded from its facts for index and recoder.

    Attributes:
        names: Names of the wanted fields, or empty for all.
        fields: Fields of the samples that are columns.
        partitions: Fields that are in the paths of files; in a sample they follow the columns.
        paths: For each field that is a column, the path of its node.
        message: The message of the first file's schema.
        first: The schema in `message`.
        united: Root of the wanted part of the schema of all files together, or None if all files have the columns of
            the first one.
        meanings: `ColumnField.meanings` of all fields together, by path.
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
        """Types and layouts of the first file. The hints of blocks of files with others contain their own schema."""
        return self.first.types, self.first.layouts

    @property
    def layout(self) -> bytes:
        """Digest of all fields and their meanings, which decide how records are laid out."""
        return layout_of([*self.fields, *self.partitions], self.meanings)

    def matches(self, schema: Schema) -> bool:
        """Whether the file alone would have the same fields in the same order, so that its records would be the same.

        It is always False if fields were chosen or united, and with partitions, or lists of nulls.
        """
        if self.partitions or self.united or self.names:
            return False
        fields = schema.select_fields(())
        if any(schema.root.at(field.path).is_list_of_nulls for field in fields):
            # Older versions made arrays of such lists, so their chunks must have other keys.
            return False
        meanings = {path: meaning for field in fields for path, meaning in field.meanings}
        return [field.spec for field in fields] == [*self.fields] and meanings == self.meanings

    def find_numbers(self, schema: Schema) -> list[int]:
        """Returns the numbers of the wanted columns in a file, or [0] if it has none of them.

        At least one column is read, because a batch without columns has no rows.
        """
        names = {path[0] for path in self.paths}
        return [number for number, child in enumerate(schema.root.children) if child.element.name in names] or [0]

    def check(self, schema: Schema) -> None:
        """Raises DifferentError if a wanted column of a file is not in the dataset, or has another type there."""
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
        """Returns, for each field that is a column, its node in a file and its node in the dataset.

        The first is None if the file lacks the field.
        """
        known = self.united or self.first.root
        if self.united is None:
            return [(schema.root.at(path), schema.root.at(path)) for path in self.paths]
        return [(values_at(schema.root, path), known.at(path)) for path in self.paths]
