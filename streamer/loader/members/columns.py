"""Finds and reads columns of samples for conditions, and manifests of some fields, so that the others are not read.

`member.py` uses it for `select(where=)` and for the keys of joins, and `streamer index --columns` reads columns by it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.annotations.join import JoinRules, key_rows
from streamer.annotations.table import AnnotationTable
from streamer.batches.scan import KEY, ChunkScan, MissingFieldError, MissingPartError, field_value, scan_chunks
from streamer.client.engine_client import EngineClient
from streamer.decode.dispatch import SampleDecoder
from streamer.errors import AccessDeniedError, ConfigError, DecodeError, ManifestError, printable
from streamer.formats.base import Field
from streamer.formats.registry import restore_format
from streamer.formats.table.records import TableOpener, find_dtype
from streamer.loader.members.connections import EngineConnections
from streamer.loader.members.single_reads import stream_bytes
from streamer.manifest.column_files import ColumnFiles, column_of
from streamer.manifest.columns import BinaryColumn, encode_text
from streamer.manifest.condition import ColumnValues
from streamer.manifest.model import SampleName
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest

if TYPE_CHECKING:
    from streamer.batches.samples.joins import OpenedJoin

logger = logging.getLogger(__name__)


def find_field(manifest: Manifest, column: str) -> str:
    """Returns the field that is a column, or of which the column is a part ("meta" of "meta.width"), or ""."""
    names = {field.name for field in manifest.facts.fields}
    while column and column not in names:
        column = column.rpartition(".")[0]
    return column


def list_narrow_fields(manifest: Manifest) -> list[str]:
    """Returns the names of the fields that the format can read without the bytes of the others."""
    if not manifest.facts.fields:
        return []
    found = restore_format(manifest)
    names = [field.name for field in manifest.facts.fields]
    return [name for name in names if found.narrow(manifest.facts, [name]) is not None]


def narrow_manifest(
    manifest: Manifest, fields: Collection[str], client: EngineClient, request: GetManifest
) -> Manifest:
    """Returns a manifest of some fields, with the same samples in the same order. The engine finds or builds it.

    Args:
        manifest: Manifest of the whole dataset.
        fields: Names of the wanted fields.
        client: Connection to the engine.
        request: Request with which the whole manifest was asked for.

    Returns:
        The manifest of the fields. It is `manifest` itself if there are no fields or these are all, if the format
        cannot read them alone, or, with a warning, if they alone are no dataset or one of other objects.

    Raises:
        StreamerError: the engine's error, unless it is of making the manifest or of access.
    """
    if not fields or len(manifest.facts.fields) <= len(fields):
        return manifest
    narrow = restore_format(manifest).narrow(manifest.facts, fields)
    if narrow is None:
        return manifest
    names = printable(", ".join(fields))
    options = msgspec.json.encode(narrow.options)
    asked = msgspec.structs.replace(
        request, format=narrow.name, format_options=options, manifest="", build=True, chunk_bytes=0
    )
    try:
        found = Manifest.open(client.manifest(asked))
    except (ManifestError, AccessDeniedError) as error:
        # An array of which no chunk was written is no dataset, and credentials may read objects and not list them.
        reason = error.message
        logger.warning("%s: read with all other fields, because alone they cannot be: %s", names, reason)
        return manifest
    # All objects must be those of the whole manifest: they may have changed since that was made.
    if found.samples != manifest.samples or not np.isin(_hash_objects(found), _hash_objects(manifest)).all():
        logger.warning("%s: read with all other fields, because the objects have changed", names)
        return manifest
    return found


def _hash_objects(manifest: Manifest) -> npt.NDArray[np.int64]:
    """Returns a hash of url and version of each object: int64, (objects,)."""
    hashes = np.empty(manifest.objects, np.int64)
    base = encode_text(manifest.content.base)
    number = 0
    for tables in manifest.tables:
        keys = tables["objects"]["key"]
        versions = tables["objects"]["version"]
        assert isinstance(keys, BinaryColumn)
        assert isinstance(versions, BinaryColumn)
        for row in range(len(keys)):
            hashes[number] = hash((base + keys[row], versions[row]))
            number += 1
    return hashes


# Number of columns that a message names.
_NAMED = 30
# Returns columns of the right side of a join by their names, None for each that is not there.
Find = Callable[[Sequence[str]], Sequence[ColumnValues | None]]


class SampleColumns:
    """Finds and reads the columns of one manifest, one value per sample. Used by one thread.

    Args:
        manifest: Manifest of the samples.
        joined: Rules by which the samples have annotations, or None if they have none.
        fallback_dir: Where files are written if the manifest's folder is read-only for this process, and for locks.
        connections: Connections to the engine, by which samples are read whose columns are not kept.
        request: Request with which the manifest was asked for.
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
        return f"SampleColumns({self._manifest!r}, {self._files!r})"

    def get(self, names: Sequence[str], joins: Sequence[tuple[OpenedJoin, Find]] = ()) -> list[ColumnValues]:
        """Returns columns that are found by `find`, here or on the right side of a join.

        Args:
            names: Names of the columns.
            joins: Joins of the samples, each with `find` of its right side.

        Raises:
            ConfigError: a column is not found, or is of a join by which samples have lists. The message names the
                columns that there are, and how to have others.
            ConfigError, StreamerError: see `find`.
        """
        found = dict(zip(names, self.find(names), strict=True))
        for join, find in joins:
            fields = {name: join.field_of(name) for name, column in found.items() if column is None}
            given = {name: field for name, field in fields.items() if field is not None}
            if given and join.recipe.validate == "many_to_many":
                raise ConfigError(
                    f"where= names {next(iter(given))!r} of the join with {join.recipe.name}: with "
                    "validate='many_to_many' samples have lists, on which there are no conditions",
                    field="where",
                )
            for name, column in zip(given, find(list(given.values())), strict=True):
                found[name] = None if column is None else column.join_to(join.table.row)
        for name, column in found.items():
            if column is None:
                raise self._make_unknown_error(name, [join for join, _ in joins])
        return [column for column in found.values() if column is not None]

    def find(self, names: Sequence[str]) -> list[ColumnValues | None]:
        """Returns columns of this dataset without its joins, None for each that is not found.

        It looks among fields of the annotations, columns that were kept, and fields that the format can read without
        the others. The last are read and kept.

        Raises:
            ConfigError: see `read`; or a field of annotations whose keys are in the samples.
            StreamerError: see `read`.
        """
        found = {name: self._read_annotations(name) or self._files.find(name) for name in names}
        missing = [name for name, column in found.items() if column is None and find_field(self._manifest, name)]
        narrow = list_narrow_fields(self._manifest) if missing else []
        cheap = [name for name in missing if find_field(self._manifest, name) in narrow]
        found |= zip(cheap, self.read(cheap), strict=True)
        return [found[name] for name in names]

    def _make_unknown_error(self, name: str, joins: Sequence[OpenedJoin]) -> ConfigError:
        """Returns the error of a column that is not found; it names the known columns, and how to have others."""
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
        # The names that need no index: of this dataset, then of what samples get from right sides.
        names = [] if self._joined is None else [field.name for field in self._table(self._joined).head.fields]
        names += [*self._files.names, *list_narrow_fields(self._manifest)]
        for join in joins:
            if join.recipe.columns is not None:
                names += [to for _, to in join.recipe.columns]
                continue
            theirs = [*ColumnFiles(join.manifest, self._fallback_dir).names, *list_narrow_fields(join.manifest)]
            names += [name for name in theirs if name not in (KEY, join.recipe.key)]
        known = ", ".join(list(dict.fromkeys(names))[:_NAMED]) or "none"
        remedy = f"{commands} reads others from the samples, once" if commands else "Name one of these"
        return ConfigError(
            f"where= names the column {name!r}; columns of this dataset are: {known}. {remedy}", field="where"
        )

    def read(self, names: Sequence[str]) -> list[ColumnValues]:
        """Returns columns of all samples. Those that are not kept yet are read from the samples, and kept.

        One process of a machine reads while the others wait.

        Raises:
            ConfigError: a sample has no such field, or its value is neither a number nor a text.
            StreamerError: the samples cannot be read, or the columns cannot be written.
            OSError: the lock file cannot be written.
        """
        if not names:
            return []
        with self._files.lock():
            missing = [name for name in dict.fromkeys(names) if self._files.find(name) is None]
            if missing:
                self._check_kinds(missing)
                logger.info("reads the columns %s of %d samples", ", ".join(missing), self._manifest.samples)
                for name, values in zip(missing, self._read_values(missing), strict=True):
                    self._files.add(name, values)
        found = [self._files.find(name) for name in names]
        return [column for column in found if column is not None]

    def _read_values(self, names: Sequence[str]) -> list[list[object]]:
        """Returns the values of each column, in the order of the samples; reads several chunks at the same time."""
        source = self._manifest
        fields = {find_field(self._manifest, name) for name in names}
        if KEY not in names and "" not in fields:
            # A format that has columns reads these alone.
            with self._connections.for_requests() as client:
                source = narrow_manifest(self._manifest, sorted(fields), client, self._request)

        scan = ChunkScan(source, partial(stream_bytes, self._connections, source))
        decoder = SampleDecoder()

        def read_chunk(chunk: int) -> list[list[object]]:
            values = [list[object]() for _ in names]
            for ordinal, content in scan.read_samples(chunk):
                sample = scan.open_sample(ordinal, content)
                for column, wanted in zip(values, names, strict=True):
                    own_key = wanted == KEY and KEY not in sample.fields
                    column.append(sample.key if own_key else _read_value(sample.fields, wanted, decoder, ordinal))
            return values

        columns = [list[object]() for _ in names]
        for values in scan_chunks(range(source.chunks), read_chunk):
            for column, some in zip(columns, values, strict=True):
                column.extend(some)
        return columns

    def _check_kinds(self, names: Sequence[str]) -> None:
        """Raises ConfigError for a column whose kind says that its values are arrays, before it is read."""
        kinds = {field.name: field.kind for field in self._manifest.facts.fields}
        for name in names:
            dtype = find_dtype(kinds.get(name, ""))
            if dtype is not None and math.prod(dtype.shape) != 1:
                shape = " x ".join(map(str, dtype.shape))
                raise ConfigError(
                    f"column {name!r}: samples have arrays of {shape} numbers, which are neither a number nor a text",
                    field="where",
                )

    def _table(self, joined: JoinRules) -> AnnotationTable:
        return AnnotationTable.open(joined.table)

    def _read_annotations(self, name: str) -> ColumnValues | None:
        """Returns a field of the annotations, one value per sample, or None if there is no such field.

        Raises:
            ConfigError: the keys are known only when samples are read.
        """
        if self._joined is None:
            return None
        table = self._table(self._joined)
        names = [field.name for field in table.head.fields]
        if name not in names:
            return None
        found = key_rows(self._manifest, self._joined)
        if found is None:
            raise ConfigError(
                f"where= names {name!r} of the annotations, which are joined when samples are read: the keys are in "
                "the samples. Conditions on annotations are for datasets of files",
                field="where",
            )
        opener = TableOpener(table.head.fields)
        decoder = SampleDecoder()
        values: list[object] = []
        for row in found.tolist():
            own = {} if row < 0 else {f.name: f for f in opener.open(memoryview(table.row(row)), SampleName())[1]}
            values.append(_read_value(own, name, decoder, row) if own else None)
        return column_of(name, values)


def _read_value(fields: Mapping[str, Field], wanted: str, decoder: SampleDecoder, ordinal: int) -> object:
    """Returns the value of a column in the fields of a sample, or None if it is null or lacks that part.

    Raises:
        ConfigError: there is no such field, or its value cannot be decoded, or is neither a number nor a text.
    """
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
