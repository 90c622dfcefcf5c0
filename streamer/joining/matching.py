"""Which samples of a dataset have a row of its annotations."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from streamer.errors import ManifestError
from streamer.joining.annotations import Annotations
from streamer.joining.joiner import JoinRules, no_row
from streamer.manifest.annotations import AnnotationTable
from streamer.manifest.columns import BinaryColumn
from streamer.manifest.table import Manifest

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


def matched(manifest: Manifest, rules: JoinRules) -> npt.NDArray[np.bool_] | None:
    """Whether each sample has a row; looks every key up, 3 us each.

    Returns:
        bool, shape (samples,); None: keys are known when samples are read, as those of containers are.

    Raises:
        ManifestError: a sample without a row that must have one, a row of two samples, or no row of any sample.
    """
    if not manifest.whole_objects or rules.on is not None:
        return None
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
    return found


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
