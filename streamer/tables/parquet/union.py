"""Unites the schemas of files, one after the other: the fields that they have together, or why a file does not fit."""

from __future__ import annotations

from collections.abc import Sequence

from streamer.errors import ConfigError
from streamer.formats.base import Facts, FieldSpec
from streamer.formats.failures import UnreadError, refused
from streamer.manifest.model import ObjectRecord
from streamer.tables.parquet.facts import describe, is_wanted
from streamer.tables.parquet.schema import Element, Node, features_of, fields_of, pruned
from streamer.tables.parquet.unify import DifferentError, unify


class SchemaUnion:
    """The schema of the files so far.

    Args:
        columns: Names of the wanted fields; all are wanted if there are none.
        remedy: What the user can do about two types of one column.

    Attributes:
        first: The first file that counts; None if there is none yet.
    """

    def __init__(self, columns: Sequence[str], remedy: str) -> None:
        self.first: ObjectRecord | None = None
        self._columns = columns
        self._remedy = remedy
        self._root: Node | None = None
        self._leading = 0
        # A column for blocks of files of which only partitions are wanted.
        self._other: Node | None = None
        self._features: dict[str, object] = {}
        # The first file that has a column, for messages.
        self._owners: dict[str, ObjectRecord] = {}
        self._names: dict[str, None] = {}

    def add(self, record: ObjectRecord, root: Node, metadata: str | bytes) -> str:
        """Adds the columns of a file.

        Args:
            record: The file.
            root: Its schema.
            metadata: How Hugging Face's datasets describe it; empty if they do not.

        Returns:
            Why the columns do not fit to those of the other files, "" if they do.
        """
        features = features_of(metadata)
        fields = fields_of(root, features)
        wanted = pruned(root, [field.path for field in fields if is_wanted(field.name, self._columns)])
        if not wanted.children:
            # It has none of the columns, and none of its own that contradicts them.
            self.first = self.first or record
            self._other = self._other or _narrow_column(root)
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
        """Returns the facts about the files, whose paths have these partitions.

        Raises:
            ConfigError: There is no field of a wanted name.
            ManifestError: Two columns, or a column and a partition, are one field.
        """
        assert self.first is not None, "a file was added"
        try:
            root = self._root or self._other or Node(Element("schema"), (), 0)
            return describe(
                root,
                self._features,
                self._columns,
                partitions=partitions,
                names=self._names,
                leading=self._leading,
            )
        except UnreadError as error:
            raise refused(self.first, f"has {error}") from error
        except ConfigError as error:
            raise ConfigError(f"{self.first.url}: {error}", **error.details) from error


def _narrow_column(root: Node) -> Node:
    """Returns the part of a schema that has one column, of numbers if there is any."""
    chosen = next((child for child in root.children if not child.is_nested and child.element.width), root.children[0])
    return pruned(root, [chosen.path])
