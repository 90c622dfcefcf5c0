"""The columns that the Arrow files of a dataset have together, as its facts describe them."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence

import msgspec

from streamer.formats.base import Facts, FieldSpec
from streamer.tables.arrow_ipc.schema import Schema, read_schema
from streamer.tables.parquet.facts import Wanted, layout_of, values_at
from streamer.tables.parquet.schema import Node
from streamer.tables.parquet.unify import DifferentError, check_same


class Columns(msgspec.Struct, frozen=True):
    """The columns of a dataset.

    Attributes:
        fields: Fields of the samples that are columns.
        partitions: Fields that the paths have, which follow them.
        paths: For each field of a column, the path of its node.
        message: The message of the first file's schema.
        first: That schema.
        united: What the files have together; None if all have the columns of the first one.
        meanings: See `Field.meanings`.
    """

    fields: Sequence[FieldSpec]
    partitions: Sequence[FieldSpec]
    paths: list[tuple[str, ...]]
    message: memoryview
    first: Schema
    united: Node | None
    meanings: Mapping[tuple[str, ...], str]

    @classmethod
    def of(cls, facts: Facts) -> Columns:
        """Decodes the facts of a dataset."""
        message = memoryview(b64decode(facts.notes["schema"]))
        first = read_schema(message)
        if "united" in facts.notes:
            wanted = Wanted.of(Facts(facts.fields, facts.notes["united"]))
            return cls(wanted.fields, wanted.partitions, wanted.paths, message, first, wanted.all.root, wanted.meanings)
        count = len(first.fields)
        meanings = {path: meaning for field in first.fields for path, meaning in field.meanings}
        paths = [field.path for field in first.fields]
        return cls(facts.fields[:count], facts.fields[count:], paths, message, first, None, meanings)

    @property
    def first_layout(self) -> tuple[list[str], list[str]]:
        """Types and layouts of the first file, which blocks of other files must say."""
        return self.first.types, self.first.layouts

    @property
    def layout(self) -> bytes:
        """A digest of what decides how records are laid out, for blocks of files that do not say it themselves."""
        return layout_of([*self.fields, *self.partitions], self.meanings)

    def is_described_by(self, schema: Schema) -> bool:
        """Whether a file alone would have the same fields in the same order, so that its records are the same."""
        meanings = {path: meaning for field in schema.fields for path, meaning in field.meanings}
        specs = [field.spec for field in schema.fields]
        return not self.partitions and self.united is None and specs == [*self.fields] and meanings == self.meanings

    def check(self, schema: Schema) -> None:
        """Compares the columns of a file with these; raises DifferentError for one of another type."""
        known = self.united or self.first.root
        if schema.types == self.first.types:
            return
        for child in schema.root.children:
            if (other := known.child(child.element.name)) is None:
                raise DifferentError(child.element.name, ("missing", "there"))
            check_same(other, child)

    def nodes(self, schema: Schema) -> list[tuple[Node | None, Node]]:
        """Returns for each field its node in a file, None if the file has none, and the node as all files have it."""
        known = self.united or self.first.root
        if self.united is None:
            return [(schema.root.at(path), schema.root.at(path)) for path in self.paths]
        return [(values_at(schema.root, path), known.at(path)) for path in self.paths]
