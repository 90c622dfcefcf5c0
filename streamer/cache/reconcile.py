"""Compares the catalog and the chunk files that an earlier engine left in the cache folder.

`ChunkCache` calls it at its start, in a thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.cache.catalog import Catalog
from streamer.cache.catalog_row import CatalogRow
from streamer.cache.folder import CacheFolder, list_chunk_files, read_header
from streamer.cache.policy.table import Keys, to_keys
from streamer.errors import IntegrityError

logger = logging.getLogger(__name__)

# (dataset id, keys (M,), lengths of the files (M,))
DatasetFiles = tuple[str, Keys, NDArray[np.int64]]


class Contents(msgspec.Struct):
    """The chunks that were found at the start.

    Attributes:
        rows: row of each chunk by key; its dataset is "" if the catalog did not have the chunk.
        used: time of each dataset's last use, seconds since 1970, by digest.
        added: rows that the catalog does not have yet.
        removed: keys of dropped files, and of rows of the catalog without a file.
        dropped: number of torn, truncated, foreign or unreadable files. They were unlinked if the disk allowed it.
    """

    rows: dict[bytes, CatalogRow]
    used: dict[str, float]
    added: dict[bytes, CatalogRow] = msgspec.field(default_factory=dict)
    removed: set[bytes] = msgspec.field(default_factory=set)
    dropped: int = 0

    @property
    def forgotten(self) -> set[str]:
        """Digests of the datasets without chunks, of which the catalog has only the last use."""
        return set(self.used) - {row.dataset for row in self.rows.values()}

    def group_by_dataset(self) -> Iterator[DatasetFiles]:
        """Yields the chunks of each dataset, the least recently used dataset first."""
        groups: dict[str, list[bytes]] = {}
        for key, row in self.rows.items():
            groups.setdefault(row.dataset, []).append(key)
        for dataset in sorted(groups, key=lambda name: self.used.get(name, 0.0)):
            keys = groups[dataset]
            lengths = np.array([self.rows[key].file_bytes for key in keys], np.int64)
            yield dataset, to_keys(keys), lengths


def reconcile(folder: CacheFolder, catalog: Catalog) -> Contents:
    """Opens the catalog and compares it with the files, which are right where the two differ.

    If a file has no row, or another length than its row says, its header decides. A file whose header is wrong or
    cannot be read is unlinked. The catalog is not written here but by the caller, later: 100,000 rows take half as long
    to write as 100,000 headers take to read, and the start does not wait for it.

    Raises:
        OSError: the folder cannot be listed.
    """
    listed = catalog.open()
    found = Contents({}, listed.used)
    for key, length in list_chunk_files(folder):
        row = listed.chunks.pop(key, None)
        if row is None or row.file_bytes != length:
            try:
                read_header(folder, key, length)
            except (IntegrityError, OSError) as error:
                logger.warning("dropped a chunk file that is not whole: %s", error)
                try:
                    os.unlink(folder.chunk_path(key))
                except OSError as refused:  # a disk that has turned read-only, or that fails
                    logger.warning("it cannot be removed, and takes its bytes of the disk: %s", refused)
                found.dropped += 1
                found.removed.add(key)
                continue
            row = CatalogRow(length, "" if row is None else row.dataset)
            found.added[key] = row
        found.rows[key] = row
    found.removed.update(listed.chunks)
    return found
