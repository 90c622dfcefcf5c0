"""Samples with their fields as they are stored, for what writes them again: a pack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from streamer.formats.base import Field


class StoredFields:
    """A rule under which a sample has each field as it is stored, with its kind."""

    def __call__(self, name: str, content: bytes, kind: str = "") -> Field:
        """Returns the field with bytes of its own."""
        return Field(name, memoryview(content), kind)


class StoredSample(NamedTuple):
    """One sample of a source.

    Attributes:
        ordinal: Number of the sample in the manifest of its source.
        where: Name of the sample in errors.
        key: Key of the sample, or None if it has none.
        fields: Name and value of each field: a `Field` with the name that it is stored under, a list of them where
            several rows are joined, or a plain value.
        annotations: Fields from a file beside the data, which `fields=` of a pack does not choose among.
        is_file: Whether the key is the path of a file.
        is_left_out: Whether the sample is not written.
    """

    ordinal: int
    where: str
    key: str | None
    fields: Sequence[tuple[str, object]]
    annotations: Sequence[Field] = ()
    is_file: bool = False
    is_left_out: bool = False

    @classmethod
    def from_mapping(cls, ordinal: int, where: str, key: str | None, made: Mapping[str, object]) -> StoredSample:
        """Makes one of what a transform has returned, which may have a key of its own."""
        return cls(ordinal=ordinal, where=where, key=key, fields=list(made.items()))
