"""Finds the table of a dataset's annotations, and compares its keys with those of the samples."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.client.engine_client import EngineClient
from streamer.errors import ConfigError, ManifestError
from streamer.loader.rank.annotations import Annotations
from streamer.loader.rank.dataset_options import absolute
from streamer.loader.rank.selections import Choice
from streamer.loader.samples.joined import JoinRules, no_row
from streamer.manifest.annotations import ANNOTATIONS, AnnotationTable
from streamer.manifest.columns import BinaryColumn
from streamer.manifest.selection import Where
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest, IndexProgress

logger = logging.getLogger(__name__)


def annotations_of(manifest: Manifest, given: Annotations | None, urls: Sequence[str]) -> Annotations | None:
    """The annotations that the user names, else those that were found among the files."""
    metadata = manifest.content.options.get("metadata") if manifest.format == "folder" else None
    if given is not None or metadata is None:
        return given
    if len(urls) > 1:
        logger.warning("%s is not joined to the files of %d urls; annotations= does that", metadata, len(urls))
        return None
    return Annotations(f"{manifest.content.base}{metadata}")


def find_table(
    client: EngineClient, annotations: Annotations, progress: Callable[[IndexProgress], None] | None = None
) -> Path:
    """The folder of the table, which the engine finds or makes.

    Raises:
        ManifestError, StoreError, ConfigError: as the engine reports.
    """
    options = {"key": annotations.key, "fields": None if annotations.fields is None else list(annotations.fields)}
    request = GetManifest(0, [absolute(annotations.url)], ANNOTATIONS, format_options=msgspec.json.encode(options))
    return client.manifest(request, progress)


def both_digests(manifest: str, table: str | None) -> str:
    """One text for both; that of the manifest alone where nothing is joined."""
    return manifest if table is None else f"{manifest}+{table}"


def kept(manifest: Manifest, rules: JoinRules | None) -> tuple[Choice, ...]:
    """The selection of the samples that have annotations, if the others are left out; compares the keys in any case.

    Looks every key up, 3 us each. Those of containers are not known before they are read.

    Raises:
        ManifestError: a sample without a row, a row of two samples, or no row of any sample.
        ConfigError: samples cannot be dropped where their keys are not known.
    """
    if rules is None:
        return ()
    if not manifest.whole_objects or rules.on is not None:
        if rules.missing == "drop":
            raise ConfigError(
                "missing='drop' is for datasets of files: the keys of other samples are known when they are read; "
                "missing='empty' and a transform can leave them out of the loss",
                field="missing",
            )
        return ()
    table = AnnotationTable.open(rules.table)
    rows = np.fromiter(map(table.find, _keys(manifest)), np.int64, manifest.samples)
    found = rows >= 0
    if not found.any() or (rules.missing == "error" and not found.all()):
        first = manifest.name(int(np.argmin(found))).object_key
        count = f"{int((~found).sum()):,} of {manifest.samples:,} samples have none: " if len(found) > 1 else ""
        raise ManifestError(f"{count}{no_row(table, first)}", key=first, samples=int((~found).sum()))
    _refuse_shared(manifest, table, rows)
    if spare := len(table) - int(found.sum()):
        row = int(np.setdiff1d(np.arange(len(table)), rows)[0])
        logger.info("%d of %d rows of %s are of no sample, as %r", spare, len(table), table.head.url, table.key(row))
    return ((found, Where()),) if rules.missing == "drop" else ()


def _keys(manifest: Manifest) -> Iterator[str]:
    for tables in manifest.tables:
        column = tables["objects"]["key"]
        assert isinstance(column, BinaryColumn)
        for row in range(len(column)):
            yield column[row].decode("utf-8", "surrogateescape")


def _refuse_shared(manifest: Manifest, table: AnnotationTable, rows: npt.NDArray[np.int64]) -> None:
    """Stops at a row that two samples have."""
    order = np.argsort(rows, kind="stable")
    shared = np.flatnonzero((np.diff(rows[order]) == 0) & (rows[order][1:] >= 0))
    if len(shared):
        pair = [manifest.name(int(order[shared[0] + step])).object_key for step in (0, 1)]
        raise ManifestError(
            f"{pair[0]!r} and {pair[1]!r} would both have the row {table.key(int(rows[order[shared[0]]]))!r} of "
            f"{table.head.url}; write its keys as paths below the dataset's url",
            key=pair[0],
            samples=len(shared) + 1,
        )
