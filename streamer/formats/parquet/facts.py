"""Finds the facts that the first file says of the whole dataset: its fields, and the wanted part of the schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from streamer.errors import ConfigError
from streamer.formats.base import Facts, FieldSpec
from streamer.formats.failures import DamagedError
from streamer.formats.parquet.footer import ColumnChunk, Footer
from streamer.formats.parquet.schema import Element, Node, classes_of, features_of, fields_of, has_nested, pruned, tree

_HUGGING_FACE = b"huggingface"


class Notes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Notes of the facts.

    Attributes:
        schema: the wanted part of the schema.
        paths: for each field, that of the node with its values.
        meanings: of all fields, see `Field.meanings`.
    """

    schema: list[Element]
    paths: list[tuple[str, ...]]
    meanings: tuple[tuple[tuple[str, ...], str], ...] = ()


def describe(footer: Footer, columns: Sequence[str]) -> Facts:
    """Returns the facts of a dataset whose first file has this footer.

    Args:
        footer: footer of the first file.
        columns: names of the wanted fields, or of structs of them; empty: all.

    Raises:
        ConfigError: there is no field of a name.
    """
    found = fields_of(footer.root, features_of(footer.metadata.get(_HUGGING_FACE, b"null")))
    wanted = [field for field in found if not columns or any(_names(column, field.name) for column in columns)]
    unknown = [column for column in columns if not any(_names(column, field.name) for field in found)]
    if unknown:
        raise ConfigError(
            f"columns={', '.join(unknown)}: no such field; it has {', '.join(field.name for field in found)}",
            field="columns",
        )
    schema = pruned(footer.root, [field.path for field in wanted]).elements()
    meanings = tuple(meaning for field in wanted for meaning in field.meanings)
    notes = Notes(schema, [field.path for field in wanted], meanings)
    return Facts(tuple(field.spec for field in wanted), msgspec.to_builtins(notes), classes_of(wanted))


def _names(column: str, field: str) -> bool:
    return field == column or field.startswith(f"{column}.")


class Wanted(msgspec.Struct, frozen=True):
    """The facts, unpacked.

    Attributes:
        fields: fields of the samples.
        root: the wanted part of the schema.
        nodes: for each field, the node that has its values.
        ways: to each wanted primitive, the nodes from the column down to it.
        widths: for each primitive, the bytes of a value (0: as long as it is), and whether it is part of a nested one.
        meanings: see `Field.meanings`.
    """

    fields: Sequence[FieldSpec]
    root: Node
    nodes: list[Node]
    ways: list[tuple[Node, ...]]
    widths: list[tuple[int, bool]]
    meanings: Mapping[tuple[str, ...], str]

    @classmethod
    def of(cls, facts: Facts) -> Wanted:
        """Unpacks what `describe` has made."""
        notes = msgspec.convert(facts.notes, Notes)
        root = tree(notes.schema)
        nodes, ways = [root.at(path) for path in notes.paths], root.ways()
        pairs = zip(facts.fields, nodes, strict=True)
        nested = [has_nested(spec, node) for spec, node in pairs for _ in range(node.primitives)]
        widths = [(way[-1].element.width, is_nested) for way, is_nested in zip(ways, nested, strict=True)]
        return cls(facts.fields, root, nodes, ways, widths, dict(notes.meanings))

    def check(self, columns: Sequence[ColumnChunk], rows: int) -> None:
        """Compares values and places of the wanted primitives with the rows of their group; raises DamagedError."""
        for way, column in zip(self.ways, columns, strict=True):
            is_flat = not any(node.is_repeated for node in way)
            if column.values != rows if is_flat else column.values < rows:
                name = ".".join(way[-1].path)
                raise DamagedError(f"column {name!r} has {column.values} values in a row group of {rows} rows")
        places = sorted((column.start, column.stop) for column in columns)
        if any(stop > start for (_, stop), (start, _) in pairwise(places)):
            raise DamagedError("two columns have bytes in common")


def mismatch(wanted: Wanted, root: Node) -> str:
    """Returns what is different in the schema of a file; "": nothing that matters."""
    for way in wanted.ways:
        found = root
        for node in way:
            name = ".".join(node.path)
            child = found.child(node.element.name)
            if child is None:
                return f"has no column {name!r}, which the first file of the dataset has ({node.element})"
            if (here := _comparable(child.element)) != (first := _comparable(node.element)):
                return f"has a column {name!r} that is {here}, in the first file of the dataset it is {first}"
            found = child
    return ""


def _comparable(element: Element) -> Element:
    return msgspec.structs.replace(element, children=int(element.children > 0))
