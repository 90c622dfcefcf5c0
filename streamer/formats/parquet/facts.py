"""What the first file says of the whole dataset: its fields, and the wanted part of the schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from streamer.errors import ConfigError
from streamer.formats.base import Facts, FieldSpec
from streamer.formats.parquet.footer import Footer, RowGroup
from streamer.formats.parquet.schema import (
    WIDTHS,
    Element,
    Node,
    classes_of,
    elements_of,
    fields_of,
    node_at,
    primitives_of,
    pruned,
    tree,
)
from streamer.formats.parquet.thrift import ThriftError

_HUGGING_FACE = b"huggingface"


class Notes(msgspec.Struct, frozen=True):
    """The notes of the facts.

    Attributes:
        schema: the wanted part.
        paths: of each field, the path of the node that has its values.
    """

    schema: list[Element]
    paths: list[tuple[str, ...]]


def describe(footer: Footer, columns: Sequence[str]) -> Facts:
    """The facts of a dataset whose first file has this footer.

    Args:
        footer: of the first file.
        columns: the names of the wanted fields, or of structs of them; empty: all.

    Raises:
        ConfigError: there is no field of a name.
        ThriftError: the schema is no tree.
    """
    found = fields_of(footer.root, _features(footer))
    wanted = [field for field in found if not columns or any(_names(column, field.name) for column in columns)]
    unknown = [column for column in columns if not any(_names(column, field.name) for field in found)]
    if unknown:
        raise ConfigError(
            f"columns={', '.join(unknown)}: no such field; it has {', '.join(field.name for field in found)}",
            field="columns",
        )
    schema = elements_of(pruned(footer.root, [field.path for field in wanted]))
    notes = Notes(schema, [field.path for field in wanted])
    return Facts(tuple(field.spec for field in wanted), msgspec.to_builtins(notes), classes_of(wanted))


def _names(column: str, field: str) -> bool:
    return field == column or field.startswith(f"{column}.")


def _features(footer: Footer) -> object:
    """How Hugging Face's datasets describe the columns."""
    try:
        return json.loads(footer.metadata.get(_HUGGING_FACE, b"null"))["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


class Wanted(msgspec.Struct, frozen=True):
    """The facts, unpacked.

    Attributes:
        fields: of the samples.
        root: the wanted part of the schema.
        nodes: of each field, the node that has its values.
        ways: to each wanted primitive, the nodes from the column down to it.
        widths: of each primitive, the bytes of a value (0: as long as it is), and whether it becomes part of JSON.
    """

    fields: Sequence[FieldSpec]
    root: Node
    nodes: list[Node]
    ways: list[tuple[Node, ...]]
    widths: list[tuple[int, bool]]

    @classmethod
    def of(cls, facts: Facts) -> Wanted:
        """Unpacks what `describe` has made."""
        notes = msgspec.convert(facts.notes, Notes)
        root = tree(notes.schema)
        nodes, ways = [node_at(root, path) for path in notes.paths], primitives_of(root)
        pairs = zip(facts.fields, nodes, strict=True)
        in_json = [spec.kind == "json" and node.is_nested for spec, node in pairs for _ in range(node.primitives)]
        widths = [(_width(way[-1].element), nested) for way, nested in zip(ways, in_json, strict=True)]
        return cls(facts.fields, root, nodes, ways, widths)

    def primitives_in(self, root: Node) -> list[int]:
        """The numbers of the wanted primitives in the schema of a file that has them all (see `mismatch`)."""
        return [node_at(root, way[-1].path).primitive for way in self.ways]

    def check(self, group: RowGroup, primitives: Sequence[int]) -> None:
        """Compares a row group's numbers of rows and values.

        Raises:
            ThriftError: they contradict each other, or two columns are at the same place.
        """
        for way, primitive in zip(self.ways, primitives, strict=True):
            values = group.columns[primitive].values
            is_flat = not any(node.is_repeated for node in way)
            if values != group.rows if is_flat else values < group.rows:
                name = ".".join(way[-1].path)
                raise ThriftError(f"column {name!r} has {values} values in a row group of {group.rows} rows")
        places = sorted((group.columns[primitive].start, group.columns[primitive].stop) for primitive in primitives)
        if any(stop > start for (_, stop), (start, _) in pairwise(places)):
            raise ThriftError("two columns have bytes in common")


def mismatch(wanted: Wanted, root: Node) -> str:
    """What is different in the schema of a file; "": nothing that matters."""
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


def _width(element: Element) -> int:
    if element.meaning == "decimal":
        return 8
    return element.length or WIDTHS.get(element.type, 0)
