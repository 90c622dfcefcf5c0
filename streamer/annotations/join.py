"""Joins annotations to samples by key: finds which samples have a row, and the fields of a sample's row.

`loader/` makes the rules and selects by them, `batches/samples/` joins each sample, `shards/` does both for packs, and
`streamer show` for the samples that it shows.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.annotations.options import NO_KEY, Annotations, Missing
from streamer.annotations.table import AnnotationTable
from streamer.decode.dispatch import NULL, SampleDecoder
from streamer.decode.rule import DecodeRule
from streamer.errors import ConfigError, DecodeError, ManifestError
from streamer.formats.base import Field, FieldSpec
from streamer.formats.names import extension
from streamer.formats.registry import restore_format
from streamer.formats.table.records import TableOpener, find_dtype
from streamer.manifest.columns import BinaryColumn
from streamer.manifest.model import SampleName
from streamer.manifest.table import Manifest

_NO_BYTES = memoryview(b"")
_NO_NAME = SampleName()
logger = logging.getLogger(__name__)


class JoinRules(msgspec.Struct, frozen=True):
    """Says how samples are joined to a table; it travels to workers.

    Attributes:
        table: folder of the table.
        missing: what happens to a sample without a row.
        on: the field of the sample that has its name, or None for "__key__".
        base: url of the folder below which the keys of samples are, if each sample is a file, else "".
        part_mark: text in a key behind the name of the file, or "" if keys have none; see `Format.part_mark`.
    """

    table: Path
    missing: Missing = "error"
    on: str | None = None
    base: str = ""
    part_mark: str = ""

    @classmethod
    def make(cls, table: Path, given: Annotations, manifest: Manifest) -> JoinRules:
        """Makes the rules of annotations of a dataset.

        Args:
            table: folder of the table.
            given: options of the user.
            manifest: manifest of the dataset.
        """
        base = manifest.content.base if manifest.whole_objects else ""
        return cls(
            table=table,
            missing=given.missing,
            on=given.sample_field,
            base=base,
            part_mark=restore_format(manifest).part_mark,
        )

    @property
    def digest(self) -> str:
        """Identity of the table."""
        return self.table.name

    def describe(self) -> dict[str, object]:
        """Describes what samples get, as JSON values, for the identity of shards and selections."""
        # The first release called "none" "empty"; what it has identified stays valid.
        return {"annotations": [self.digest, "empty" if self.missing == "none" else self.missing, self.on]}


def table_digest(rules: JoinRules | None) -> str | None:
    """Returns the identity of the joined table, or None if nothing is joined."""
    return None if rules is None else rules.digest


class Joiner:
    """Finds the annotations of samples and decodes them. Used by one thread.

    Args:
        rules: how samples are joined.
        decode: the dataset's rule. If it is a mapping, it holds for annotations, too, else these are decoded by "auto".

    Raises:
        ManifestError: the table is missing.
        ManifestCorruptError: the table is malformed.
        ConfigError: `decode` is invalid for the annotations.
    """

    def __init__(self, rules: JoinRules, decode: DecodeRule) -> None:
        self.table = AnnotationTable.open(rules.table)
        self._rules = rules
        self._opener = TableOpener(self.table.head.fields)
        self._decode = SampleDecoder(decode if isinstance(decode, Mapping) else "auto")
        self._names = frozenset(field.name for field in self.table.head.fields)
        self._empty = [_empty(field) for field in self.table.head.fields]
        # Chosen once, because all rows have the same fields: to choose takes as long as to decode.
        specs = [Field(spec.name, _NO_BYTES, spec.kind) for spec in self.table.head.fields]
        self._readers = [(field.name, self._decode.reader(field)) for field in specs]
        self._kinds_known = all(field.kind for field in specs)

    def __repr__(self) -> str:
        return f"Joiner({self.table!r})"

    def values(self, key: str, fields: Sequence[Field]) -> dict[str, object]:
        """Returns the decoded annotations of a sample, by name; a sample that needs no row gets empty values.

        Args:
            key: "__key__" of the sample.
            fields: the sample's own fields, undecoded.

        Raises:
            DecodeError: the sample has no row and must have one, it lacks the field with its key, or a value cannot be
                decoded.
        """
        if (record := self._record(key, fields)) is None:
            return self._decode(key, self._empty)
        values, nulls = self._opener.values(record)
        if self._kinds_known and not nulls:
            try:
                return {name: read(value) for (name, read), value in zip(self._readers, values, strict=True)}
            except Exception:  # noqa: BLE001 - raised again below, with the name of the field
                pass
        return self._decode(key, self._opener.open(record, _NO_NAME)[1])

    def fields(self, key: str, fields: Sequence[Field]) -> Sequence[Field] | None:
        """Returns the annotations of a sample, undecoded, or None if it has no row and `missing` is "drop".

        Args:
            key: "__key__" of the sample.
            fields: the sample's own fields, undecoded.

        Raises:
            DecodeError: the sample has no row and must have one, lacks the field with its key, or has a field of the
                name of a column.
        """
        if self._rules.missing == "drop" and self._find(self._name(key, fields)) < 0:
            return None
        record = self._record(key, fields)
        found = self._empty if record is None else self._opener.open(record, _NO_NAME)[1]
        self.check_apart({field.name for field in fields})
        return found

    def check_apart(self, names: Collection[str]) -> None:
        """Raises DecodeError if one of a sample's field names is that of a column, which would replace the field."""
        if not self._names.isdisjoint(names):
            raise DecodeError(describe_conflict(self.table, min(self._names.intersection(names))))

    def _find(self, name: str) -> int:
        return self.table.find(name, self._rules.base)

    def _record(self, key: str, fields: Sequence[Field]) -> memoryview | None:
        """Returns the record of a sample's row, or None if it has no row and needs none; else raises DecodeError."""
        name = self._name(key, fields)
        if (row := self._find(name)) >= 0:
            return memoryview(self.table.row(row))
        if self._rules.missing != "none":
            raise DecodeError(no_row(self.table, name), sample=key)
        return None

    def _name(self, key: str, fields: Sequence[Field]) -> str:
        """Returns the name by which a sample is looked up; raises DecodeError if it lacks the field with that name."""
        if self._rules.on is None:
            file, mark, _ = key.rpartition(self._rules.part_mark) if self._rules.part_mark else (key, "", "")
            return file if mark else key
        found = [field for field in fields if field.name == self._rules.on]
        if not found:
            raise DecodeError(
                f"no field {self._rules.on!r}, by which annotations are joined (sample_field=); it has "
                f"{', '.join(field.name for field in fields)}"
            )
        value = self._decode("", found)[found[0].name]
        return value.decode() if isinstance(value, bytes) else str(value)


def describe_conflict(table: AnnotationTable, name: str) -> str:
    """Returns the message for a column that would replace a field of samples."""
    return (
        f"annotations {table.head.url} have a column {name!r}, and so are samples' own fields called; rename the "
        "column, or choose others: Annotations(url, fields=[...])"
    )


def no_row(table: AnnotationTable, key: str) -> str:
    """Returns the message for a sample without annotations."""
    shown = ", ".join(repr(table.key(row)) for row in range(min(2, len(table))))
    prefix = table.head.prefix or table.head.folder
    begin = f" and all begin with '{prefix}/'" if prefix else ""
    return (
        f"no annotations for {key!r} among the {len(table):,} rows of {table.head.url}, whose keys are like {shown}"
        f"{begin}; "
        "missing='none' gives such samples empty ones, missing='drop' leaves them out (files only), key= and "
        "sample_field= name other columns and fields"
    )


def _empty(field: FieldSpec) -> Field:
    """Returns the undecoded field of a sample without annotations: an array of no items, or a value that is None."""
    array = "[" in field.kind and find_dtype(field.kind) is None
    return Field(field.name, _NO_BYTES, field.kind if array else NULL)


def annotations_of(manifest: Manifest, given: Annotations | None, urls: Sequence[str]) -> Annotations | None:
    """Returns the annotations that the user names, else those of a metadata file beside the samples, or None.

    Where several urls are read, the metadata file is not joined, and a warning says so.

    Args:
        manifest: manifest of the dataset.
        given: annotations that the user names, or None.
        urls: urls of the dataset.

    Raises:
        ConfigError: the metadata file cannot be named as annotations.
    """
    if given is not None or not manifest.whole_objects:
        return given
    if not (metadata := restore_format(manifest).metadata_file):
        return None
    if len(urls) > 1:
        logger.warning("%s is not joined to the files of %d urls; annotations= does that", metadata, len(urls))
        return None
    return Annotations(f"{manifest.content.base}{metadata}")


def pass_over(error: ConfigError, named: Annotations | None, found: Annotations) -> None:
    """Logs that a metadata file among the samples is not joined, because it has no column with their names.

    Args:
        error: the error of making its table.
        named: annotations that the user names, or None.
        found: annotations of the metadata file.

    Raises:
        ConfigError: `error`, if the user names the annotations, or if it says something else.
    """
    if named is not None or NO_KEY not in error.message:
        raise error
    logger.warning(
        "%s, beside the files, is not joined to them, because it has no column 'file_name'; "
        "annotations=Annotations(url, key=...) says which column has their names",
        found.url,
    )


def find_matches(manifest: Manifest, rules: JoinRules) -> npt.NDArray[np.bool_] | None:
    """Returns whether each sample has a row: bool, shape (samples,). Looks every key up, 3 us each.

    Returns None if the keys are known only when samples are read, as those of containers are. Logs how many samples are
    left out, and how many rows are of no sample.

    Raises:
        ManifestError: the table cannot be opened, a sample without a row must have one, a row is of two samples, or no
            row is of any sample.
        ConfigError: a column has the name of a field of the samples.
    """
    table = AnnotationTable.open(rules.table)
    # Names of fields are refused as far as they are known without reading a sample.
    taken = {"__key__", *(field.name for field in manifest.facts.fields)}
    if manifest.whole_objects:
        taken |= set(map(extension, _keys(manifest)))
        taken |= {"label"} if manifest.classes else set()
    if doubled := taken.intersection(field.name for field in table.head.fields):
        raise ConfigError(describe_conflict(table, min(doubled)), field="annotations")
    if (rows := key_rows(manifest, rules)) is None:
        return None
    found = rows >= 0
    if not found.any() or (rules.missing == "error" and not found.all()):
        first = manifest.name(int(np.argmin(found))).object_key
        count = f"{int((~found).sum()):,} of {manifest.samples:,} samples have none: " if len(found) > 1 else ""
        raise ManifestError(f"{count}{no_row(table, first)}", key=first, samples=int((~found).sum()))
    _refuse_double_row(manifest, table, rows)
    if (lost := int((~found).sum())) and rules.missing == "drop":
        first = manifest.name(int(np.argmin(found))).object_key
        logger.log(
            logging.WARNING if 2 * lost > len(found) else logging.INFO,
            "%d of %d samples have no row in %s and are left out, as %r",
            *(lost, len(found), table.head.url, first),
        )
    if spare := len(table) - int(found.sum()):
        row = int(np.setdiff1d(np.arange(len(table)), rows)[0])
        logger.info("%d of %d rows of %s are of no sample, as %r", spare, len(table), table.head.url, table.key(row))
    return found


def key_rows(manifest: Manifest, rules: JoinRules) -> npt.NDArray[np.int64] | None:
    """Returns the number of each sample's row, or -1 if it has none: int64, shape (samples,).

    Returns None if the keys are known only when samples are read; see `find_matches`.
    """
    if not manifest.whole_objects or rules.on is not None:
        return None
    table = AnnotationTable.open(rules.table)
    return np.fromiter((table.find(key, rules.base) for key in _keys(manifest)), np.int64, manifest.samples)


def _keys(manifest: Manifest) -> Iterator[str]:
    for tables in manifest.tables:
        column = tables["objects"]["key"]
        assert isinstance(column, BinaryColumn)
        for row in range(len(column)):
            yield column[row].decode("utf-8", "surrogateescape")


def _refuse_double_row(manifest: Manifest, table: AnnotationTable, rows: npt.NDArray[np.int64]) -> None:
    """Raises ManifestError if two samples have the same row; `rows` is the row of each sample, or -1."""
    order = np.argsort(rows, kind="stable")
    shared = np.flatnonzero((np.diff(rows[order]) == 0) & (rows[order][1:] >= 0))
    if len(shared):
        pair = [manifest.name(int(order[shared[0] + step])).object_key for step in (0, 1)]
        raise ManifestError(
            f"{pair[0]!a} and {pair[1]!a} would both have the row {table.key(int(rows[order[shared[0]]]))!r} of "
            f"{table.head.url}; write its keys as paths below the dataset's url",
            key=pair[0],
            samples=len(shared) + 1,
        )
