"""Columns of samples for conditions: of the annotations, kept beside the manifest, or read from the data."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from streamer.annotations.join import JoinRules, key_rows
from streamer.annotations.table import AnnotationTable
from streamer.batches.scan import KEY, ChunkScan, MissingFieldError, MissingPartError, field_value, scan_chunks
from streamer.decode.dispatch import SampleDecoder
from streamer.errors import ConfigError, DecodeError
from streamer.formats.base import Field
from streamer.formats.table.records import TableOpener, fixed_dtype
from streamer.loader.members.connections import EngineConnections
from streamer.loader.members.narrow import find_field, list_narrow_fields, narrow_manifest
from streamer.loader.members.single_reads import StreamedBytes
from streamer.manifest.column_files import ColumnFiles, column_of
from streamer.manifest.condition import ColumnValues
from streamer.manifest.model import SampleName
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest

if TYPE_CHECKING:
    from streamer.batches.samples.joins import OpenedJoin

logger = logging.getLogger(__name__)

_NAMED = 30
Find = Callable[[Sequence[str]], Sequence[ColumnValues | None]]


class Columns:
    """The columns of one manifest. Used by one thread.

    Args:
        manifest: of the samples.
        joined: the annotations of the samples.
        fallback_dir: Where files are written if the manifest's folder is read-only for this process, and for locks.
        connections: Connections to the engine, which reads what is not there yet.
        request: what the manifest was asked for with.
    """

    def __init__(
        self,
        manifest: Manifest,
        joined: JoinRules | None,
        fallback_dir: Path,
        connections: EngineConnections,
        request: GetManifest,
    ) -> None:
        self._manifest = manifest
        self._joined = joined
        self._connections = connections
        self._request = request
        self._fallback_dir = fallback_dir
        self._files = ColumnFiles(manifest, fallback_dir)

    def __repr__(self) -> str:
        return f"Columns({self._manifest!r}, {self._files!r})"

    def get(self, names: Sequence[str], joins: Sequence[tuple[OpenedJoin, Find]] = ()) -> list[ColumnValues]:
        """Columns that are at hand, or cheap to read.

        Args:
            names: Names of the columns.
            joins: the joins of the samples, and `find` of each right side.

        Raises:
            ConfigError: one is neither; names those that are, and how to have others.
        """
        found = dict(zip(names, self.find(names), strict=True))
        for join, find in joins:
            fields = {name: join.field_of(name) for name, column in found.items() if column is None}
            given = {name: field for name, field in fields.items() if field is not None}
            if given and join.recipe.how == "many":
                raise ConfigError(
                    f"where= names {next(iter(given))!r} of the join with {join.recipe.name}: with how='many' samples "
                    "have lists, on which there are no conditions",
                    field="where",
                )
            for name, column in zip(given, find(list(given.values())), strict=True):
                found[name] = None if column is None else column.join_to(join.table.row)
        for name, column in found.items():
            if column is None:
                raise self._unknown(name, [join for join, _ in joins])
        return [column for column in found.values() if column is not None]

    def find(self, names: Sequence[str]) -> list[ColumnValues | None]:
        """Returns the same of this dataset only, or None if a column is neither."""
        found = {name: self._of_annotations(name) or self._files.find(name) for name in names}
        missing = [name for name, column in found.items() if column is None and find_field(self._manifest, name)]
        narrow = list_narrow_fields(self._manifest) if missing else []
        cheap = [name for name in missing if find_field(self._manifest, name) in narrow]
        found |= zip(cheap, self.read(cheap), strict=True)
        return [found[name] for name in names]

    def _unknown(self, name: str, joins: Sequence[OpenedJoin]) -> ConfigError:
        rights = [(join.manifest, field, join.recipe.columns) for join in joins if (field := join.field_of(name))]
        sources = [(manifest, field) for manifest, field, _ in rights]
        # A join that names its columns has this one; otherwise it may be of either side.
        if all(columns is None for _, _, columns in rights):
            sources.insert(0, (self._manifest, name))
        # A format that reads columns has no others.
        commands = " or ".join(
            f"`streamer index {manifest.urls[0]} --columns {field}`"
            for manifest, field in sources
            if field == KEY or not list_narrow_fields(manifest)
        )
        names = dict.fromkeys([*self._known(), *(name for join in joins for name in self._joined_names(join))])
        known = ", ".join(list(names)[:_NAMED]) or "none"
        remedy = f"{commands} reads others from the samples, once" if commands else "Name one of these"
        return ConfigError(
            f"where= names the column {name!r}; columns of this dataset are: {known}. {remedy}", field="where"
        )

    def _joined_names(self, join: OpenedJoin) -> list[str]:
        """Names of the columns that samples get from a right side, as far as they are known."""
        if join.recipe.columns is not None:
            return [to for _, to in join.recipe.columns]
        known = [*ColumnFiles(join.manifest, self._fallback_dir).names, *list_narrow_fields(join.manifest)]
        return [name for name in known if name not in (KEY, join.recipe.key)]

    def read(self, names: Sequence[str]) -> list[ColumnValues]:
        """Reads columns of all samples, and keeps them; one process of a machine reads while the others wait.

        Raises:
            ConfigError: a sample has no such field, or its value is neither a number nor a text.
        """
        if not names:
            return []
        with self._files.lock():
            missing = [name for name in dict.fromkeys(names) if self._files.find(name) is None]
            if missing:
                self._check_kinds(missing)
                logger.info("reads the columns %s of %d samples", ", ".join(missing), self._manifest.samples)
                for name, values in zip(missing, self._values(missing), strict=True):
                    self._files.add(name, values)
        found = [self._files.find(name) for name in names]
        return [column for column in found if column is not None]

    def _values(self, names: Sequence[str]) -> list[list[object]]:
        """Reads the values of some columns, sample by sample, several chunks at the same time."""
        source = self._narrow(names)

        @contextmanager
        def open_bytes() -> Iterator[StreamedBytes]:
            with self._connections.for_requests() as connection:
                yield StreamedBytes(connection, source)

        scan = ChunkScan(source, open_bytes)
        decoder = SampleDecoder()

        def read_chunk(chunk: int) -> list[list[object]]:
            values = [list[object]() for _ in names]
            for ordinal, content in scan.read_samples(chunk):
                sample = scan.open_sample(ordinal, content)
                for column, wanted in zip(values, names, strict=True):
                    own_key = wanted == KEY and KEY not in sample.fields
                    column.append(sample.key if own_key else _value(sample.fields, wanted, decoder, ordinal))
            return values

        columns = [list[object]() for _ in names]
        for values in scan_chunks(range(source.chunks), read_chunk):
            for column, some in zip(columns, values, strict=True):
                column.extend(some)
        return columns

    def _narrow(self, names: Sequence[str]) -> Manifest:
        """The manifest of the columns alone, of a format that has columns."""
        fields = {find_field(self._manifest, name) for name in names}
        if KEY in names or "" in fields:
            return self._manifest
        with self._connections.for_requests() as client:
            return narrow_manifest(self._manifest, sorted(fields), client, self._request)

    def _check_kinds(self, names: Sequence[str]) -> None:
        """Refuses columns that have arrays by their kind, before they are read."""
        kinds = {field.name: field.kind for field in self._manifest.facts.fields}
        for name in names:
            dtype = fixed_dtype(kinds.get(name, ""))
            if dtype is not None and math.prod(dtype.shape) != 1:
                shape = " x ".join(map(str, dtype.shape))
                raise ConfigError(
                    f"column {name!r}: samples have arrays of {shape} numbers, which are neither a number nor a text",
                    field="where",
                )

    def _known(self) -> list[str]:
        """Names of the columns that need no index."""
        given = [] if self._joined is None else [field.name for field in self._table(self._joined).head.fields]
        return list(dict.fromkeys([*given, *self._files.names, *list_narrow_fields(self._manifest)]))

    def _table(self, joined: JoinRules) -> AnnotationTable:
        return AnnotationTable.open(joined.table)

    def _of_annotations(self, name: str) -> ColumnValues | None:
        """Returns a field of the annotations, by the keys of the samples, or None if there is no such field."""
        if self._joined is None:
            return None
        table = self._table(self._joined)
        names = [field.name for field in table.head.fields]
        if name not in names:
            return None
        rows = key_rows(self._manifest, self._joined)
        if rows is None:
            raise ConfigError(
                f"where= names {name!r} of the annotations, which are joined when samples are read: the keys are in "
                "the samples. Conditions on annotations are for datasets of files",
                field="where",
            )
        opener = TableOpener(table.head.fields)
        decoder = SampleDecoder()
        values: list[object] = []
        for row in rows.tolist():
            own = {} if row < 0 else {f.name: f for f in opener.open(memoryview(table.row(row)), SampleName())[1]}
            values.append(_value(own, name, decoder, row) if own else None)
        return column_of(name, values)


def _value(fields: Mapping[str, Field], wanted: str, decoder: SampleDecoder, ordinal: int) -> object:
    """Returns the value of a column in the fields of a sample, or None if it has none."""
    try:
        value = field_value(wanted, fields, decoder)
    except MissingPartError:
        return None
    except MissingFieldError as error:
        raise ConfigError(
            f"column {wanted!r}: sample {ordinal} has no such field; it has {', '.join(fields) or 'none'}",
            field="where",
        ) from error
    except DecodeError as error:
        raise ConfigError(f"column {wanted!r} of sample {ordinal}: {error.message}", field="where") from error
    if value is None or isinstance(value, str | bool | int | float | np.generic):
        return value
    raise ConfigError(
        f"column {wanted!r}: sample {ordinal} has a {type(value).__name__}, which is neither a number nor a text",
        field="where",
    )
