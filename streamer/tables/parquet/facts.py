"""Finds the facts about a dataset of Parquet files: its fields, and the wanted part of the schema.

The survey unites the schemas of all files (`SchemaUnion`); Arrow's survey does so, too. Index and recoder restore the
facts (`WantedColumns`) and find what one file has of them (`Own`). The fields are columns, and after them partitions:
the `key=value` in the paths of files. A primitive is a node of the schema that has values (`schema.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise

import msgspec

from streamer.errors import ConfigError
from streamer.formats.base import Facts, FieldSpec
from streamer.formats.failures import DamagedError, UnreadError, make_refusal
from streamer.manifest.model import ObjectRecord
from streamer.tables.parquet.fields import (
    ColumnField,
    classes_of,
    features_of,
    has_children,
    is_among,
    list_fields,
    select_fields,
)
from streamer.tables.parquet.footer import ColumnChunk
from streamer.tables.parquet.schema import WIDE_INTEGER, Element, SchemaNode, prune, tree
from streamer.tables.parquet.unify import DifferentError, check_same, unify


class ParquetNotes(msgspec.Struct, frozen=True, omit_defaults=True):
    """The notes of the facts of a dataset in Parquet (`Facts.notes`).

    Attributes:
        schema: the elements of the wanted part of the schema.
        paths: path of the node with the values of each field that is a column.
        meanings: `ColumnField.meanings` of all fields together.
        logicals: `SchemaNode.logical` of nodes that have one, with their places in `schema`.
        leading: number of columns, counted from the first, that the first file has; -1 if it has all.
    """

    schema: list[Element]
    paths: list[tuple[str, ...]]
    meanings: tuple[tuple[tuple[str, ...], str], ...] = ()
    logicals: tuple[tuple[int, str], ...] = ()
    leading: int = -1


def describe(
    root: SchemaNode,
    features: object,
    columns: Sequence[str],
    *,
    partitions: Sequence[FieldSpec],
    names: Iterable[str],
    leading: int,
) -> Facts:
    """Returns the facts of a dataset.

    Args:
        root: wanted part of the schema of all files.
        features: how Hugging Face's datasets describe the columns (see `features_of`).
        columns: names of the wanted fields, or of structs of them; empty for all.
        partitions: fields that the paths of the files have.
        names: names of all fields of the files.
        leading: number of columns that come first because the first file has them.

    Raises:
        ConfigError: there is no field with a wanted name.
        UnreadError: two columns, or a column and a partition, have one field name, or integers have 128 bits.
    """
    known = [*names, *(field.name for field in partitions)]
    unknown = [column for column in columns if not any(is_among(name, [column]) for name in known)]
    if unknown:
        raise ConfigError(
            f"columns={', '.join(unknown)}: no such field; it has {', '.join(known)}",
            field="columns",
        )
    wanted = select_fields(root, features, columns)
    if wide := next((node for node in root.walk() if node.logical == WIDE_INTEGER), None):
        raise UnreadError(f"a column {'.'.join(wide.path)!r} of integers of 128 bits, which are not read: cast them")
    parts = [field for field in partitions if is_among(field.name, columns)]
    _check_unique(wanted, parts)
    notes = ParquetNotes(
        schema=root.elements(),
        paths=[field.path for field in wanted],
        meanings=tuple(meaning for field in wanted for meaning in field.meanings),
        logicals=tuple(root.logicals().items()),
        leading=leading if leading < len(root.children) else -1,
    )
    # The notes get the form that they have in a manifest that is read from disk, because the two are compared.
    plain = msgspec.json.decode(msgspec.json.encode(notes))
    return Facts((*(field.spec for field in wanted), *parts), plain, classes_of(wanted))


def _check_unique(wanted: Sequence[ColumnField], partitions: Sequence[FieldSpec]) -> None:
    """Raises UnreadError if two fields have one name."""
    counts = Counter(field.name for field in wanted)
    if double := next((field for field in partitions if counts[field.name]), None):
        raise UnreadError(
            f"a column {double.name!r} and a partition {double.name!r} in its path ({double.name}=...), and a sample "
            "has one field of a name: name the other columns (columns=)"
        )
    if twice := next((name for name, count in counts.items() if count > 1), None):
        raise UnreadError(
            f"a column {twice!r} beside a struct with a part that is the field {twice!r}, too, and a sample has one "
            "field of a name: rename one of them, or name the other columns (columns=)"
        )


class Own(msgspec.Struct, frozen=True):
    """The wanted part of a schema: that of one file, or that of all files together.

    Attributes:
        root: root of the part.
        nodes: node with the values of each field that is a column; None if the file does not have the field.
        paths: nodes from the column down to each wanted primitive.
        widths: bytes of a value of each wanted primitive in a record (0 if values differ in length), and whether it is
            part of a nested value.
    """

    root: SchemaNode
    nodes: list[SchemaNode | None]
    paths: list[tuple[SchemaNode, ...]]
    widths: list[tuple[int, bool]]

    @classmethod
    def from_schema(cls, root: SchemaNode, paths: Sequence[tuple[str, ...]], fields: Sequence[FieldSpec]) -> Own:
        """Finds the nodes of fields in a schema, which may lack some of them.

        Args:
            root: root of the wanted part of the schema.
            paths: path of the node of each field.
            fields: the fields that are columns.
        """
        nodes = [values_at(root, path) for path in paths]
        to_primitives = root.find_paths()
        nested = [False] * len(to_primitives)
        for spec, node in zip(fields, nodes, strict=True):
            if node is not None and has_children(spec, node):
                nested[node.primitive : node.primitive + node.primitives] = [True] * node.primitives
        widths = [(path[-1].element.width, is_nested) for path, is_nested in zip(to_primitives, nested, strict=True)]
        return cls(root, nodes, to_primitives, widths)

    def check(self, columns: Sequence[ColumnChunk], rows: int) -> None:
        """Checks the wanted columns of a row group against its number of rows, and that no two have common bytes.

        Raises:
            DamagedError: the footer contradicts itself.
        """
        for path, column in zip(self.paths, columns, strict=True):
            is_flat = not any(node.is_repeated for node in path)
            if column.values != rows if is_flat else column.values < rows:
                name = ".".join(path[-1].path)
                raise DamagedError(f"column {name!r} has {column.values} values in a row group of {rows} rows")
        places = sorted((column.start, column.stop) for column in columns)
        if any(stop > start for (_, stop), (start, _) in pairwise(places)):
            raise DamagedError("two columns have bytes in common")


class WantedColumns(msgspec.Struct, frozen=True):
    """The facts of a dataset, decoded for index and recoder.

    Attributes:
        fields: fields of the samples that are columns.
        partitions: fields that are in the paths of files; in a sample they follow the columns.
        paths: path of the node of each field that is a column.
        all: the wanted part of the schema of all files together.
        meanings: `ColumnField.meanings` of all fields together, by path.
    """

    fields: Sequence[FieldSpec]
    partitions: Sequence[FieldSpec]
    paths: list[tuple[str, ...]]
    all: Own
    meanings: Mapping[tuple[str, ...], str]

    @classmethod
    def from_facts(cls, facts: Facts) -> WantedColumns:
        """Decodes the facts that `describe` has made."""
        notes = msgspec.convert(facts.notes, ParquetNotes)
        fields = facts.fields[: len(notes.paths)]
        partitions = facts.fields[len(notes.paths) :]
        whole = Own.from_schema(tree(notes.schema, dict(notes.logicals)), notes.paths, fields)
        return cls(fields=fields, partitions=partitions, paths=notes.paths, all=whole, meanings=dict(notes.meanings))

    def find_own(self, root: SchemaNode) -> Own:
        """Returns what a file has of the wanted columns; `all` itself if the file has all, with the same layout.

        Args:
            root: root of the file's whole schema.

        Raises:
            DifferentError: the file has a wanted column with another type.
        """
        if _is_equal(self.all.root, root):
            return self.all
        for path in self.paths:
            if (own := values_at(root, path)) is not None:
                check_same(self.all.root.at(path), own)
        found = [path for path in self.paths if values_at(root, path) is not None]
        # A block must have bytes. If the file has no wanted column, they are those of its first column.
        part = prune(root, found or [next(iter(root.children)).path])
        return Own.from_schema(part, self.paths, self.fields)

    def matches(self, root: SchemaNode, features: object, columns: Sequence[str]) -> bool:
        """Whether the file alone would have the same fields in the same order, so that its records would be the same.

        It is False, too, if one of its wanted columns is a list of nulls.

        Args:
            root: root of the file's whole schema.
            features: how Hugging Face's datasets describe its columns (see `features_of`).
            columns: names of the wanted fields; empty for all.
        """
        fields = select_fields(root, features, columns)
        meanings = {path: meaning for field in fields for path, meaning in field.meanings}
        if any(root.at(field.path).is_list_of_nulls for field in fields):
            # Older versions made arrays of such lists, so their chunks must have other keys.
            return False
        return [field.spec for field in fields] == [*self.fields] and meanings == self.meanings

    @property
    def layout(self) -> bytes:
        """Digest of all fields and their meanings, which decide how records are laid out."""
        return layout_of([*self.fields, *self.partitions], self.meanings)

    def decode_own(self, schema: Sequence[Element], logicals: Sequence[tuple[int, str]]) -> Own:
        """Returns the part of a file from elements and logicals of a `ParquetFileHint`; `all` if it has no schema."""
        return Own.from_schema(tree(schema, dict(logicals)), self.paths, self.fields) if schema else self.all


def layout_of(fields: Sequence[FieldSpec], meanings: Mapping[tuple[str, ...], str]) -> bytes:
    """Returns a digest (8 bytes) of fields in their order, and of the meanings of their nested parts."""
    return blake2b(msgspec.json.encode((fields, [*meanings.items()])), digest_size=8).digest()


def values_at(root: SchemaNode, path: Sequence[str]) -> SchemaNode | None:
    """Returns the node at a path, through structs only; None if there is none, or it has Arrow's type null."""
    node: SchemaNode | None = root
    for name in path:
        node = node.child(name) if node and node.items() is None and not node.is_map else None
    return None if node is None or node.has_no_values else node


def _is_equal(known: SchemaNode, root: SchemaNode) -> bool:
    """Whether a schema has all columns of another one, laid out in the same way."""
    for child in known.children:
        own = root.child(child.element.name)
        if own is None or own.logical != child.logical or bool(own.children) != bool(child.children):
            return False
        bare = msgspec.structs.replace(own.element, children=child.element.children)
        if bare != child.element or not _is_equal(child, own):
            return False
    return True


class SchemaUnion:
    """Unites the schemas of files that are added one after the other.

    Args:
        columns: Names of the wanted fields, or empty for all.
        remedy: Advice for the user if a column has two types, as an imperative clause.

    Attributes:
        first: The first file with a wanted column; as long as there is none, the first of all files. None before `add`.
    """

    def __init__(self, columns: Sequence[str], remedy: str) -> None:
        self.first: ObjectRecord | None = None
        self._columns = columns
        self._remedy = remedy
        self._root: SchemaNode | None = None
        self._leading = 0
        # If only partitions are wanted, blocks have the bytes of this column.
        self._other: SchemaNode | None = None
        self._features: dict[str, object] = {}
        # The first file that has a column, by the column's name, for messages.
        self._owners: dict[str, ObjectRecord] = {}
        self._names: dict[str, None] = {}

    def add(self, record: ObjectRecord, root: SchemaNode, metadata: str | bytes) -> str:
        """Adds the columns of a file.

        Args:
            record: The file.
            root: Root of the file's schema.
            metadata: JSON in which Hugging Face's datasets describe the columns; empty or "null" if there is none.

        Returns:
            A text that says why the columns do not fit to those of other files, or "" if they do.
        """
        features = features_of(metadata)
        fields = list_fields(root, features)
        wanted = prune(root, [field.path for field in fields if field.is_among(self._columns)])
        if not wanted.children:
            # The file has no wanted column, so that nothing can contradict.
            self.first = self.first or record
            if self._other is None:
                # A column of the file is kept, one of numbers if there is any.
                chosen = next(
                    (child for child in root.children if not child.is_nested and child.element.width), root.children[0]
                )
                self._other = prune(root, [chosen.path])
        elif self._root is None:
            self.first = record
            self._root = wanted
            self._leading = len(wanted.children)
        else:
            try:
                self._root = unify(self._root, wanted, self._leading)
            except DifferentError as error:
                first, own = error.types
                owner = self._owners[error.name.split(".")[0]].url
                return f"has a column {error.name!r} that is {own}, in {owner} it is {first}: {self._remedy}"
        self._names |= dict.fromkeys(field.name for field in fields)
        for child in wanted.children:
            self._owners.setdefault(child.element.name, record)
        if isinstance(features, dict):
            self._features = {**features, **self._features}
        return ""

    def facts(self, partitions: Sequence[FieldSpec]) -> Facts:
        """Returns the facts about the files that were added, at least one.

        Args:
            partitions: The fields that the paths of the files have.

        Raises:
            ConfigError: There is no field with a wanted name.
            ManifestError: Two fields have one name, or a column has integers of 128 bits.
        """
        assert self.first is not None, "a file was added"
        try:
            root = self._root or self._other or SchemaNode(Element("schema"), (), 0)
            return describe(
                root,
                self._features,
                self._columns,
                partitions=partitions,
                names=self._names,
                leading=self._leading,
            )
        except UnreadError as error:
            raise make_refusal(self.first, f"has {error}") from error
        except ConfigError as error:
            raise ConfigError(f"{self.first.url}: {error}", **error.details) from error
