"""The datasets that an engine serves: manifest, what its chunks cost, how its store is reached."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from streamer.config import FetchConfig
from streamer.engine.url_allowlist import UrlAllowlist
from streamer.errors import ManifestError, StreamerError
from streamer.fetch.ranges import plan_ranges
from streamer.formats import chunkfile
from streamer.manifest.model import Chunk
from streamer.manifest.table import Manifest

# Comes from clients, becomes part of a path.
_DIGEST = re.compile("[0-9a-zA-Z]{1,64}")


class Dataset:
    """One manifest in use.

    Attributes:
        file_bytes: int64 (chunks,): the length of each chunk's file; of recoded chunks as planned.
        mean_bytes: of a chunk's file.
        options: storage options of the last session that opened it.
        touched: it was used since the last `Datasets.drop_idle`.
    """

    def __init__(self, manifest: Manifest, options: Mapping[str, object]) -> None:
        self.manifest = manifest
        self.options = options
        self.touched = True
        self.file_bytes: npt.NDArray[np.int64] = (
            chunkfile.HEADER_BYTES + manifest.chunk_local_bytes + manifest.chunk_samples * chunkfile.CRC_BYTES
        )
        self.total_bytes = int(self.file_bytes.sum())
        self.mean_bytes = self.total_bytes / max(1, manifest.chunks)

    def __repr__(self) -> str:
        return f"Dataset({self.manifest.digest}, {self.manifest.chunks} chunks)"

    @cached_property
    def requests(self) -> int:
        """About how many requests a chunk takes: objects in the mean, or the ranges of the first one."""
        if self.manifest.whole_objects:
            return -(-self.manifest.samples // max(1, self.manifest.chunks))
        return len(plan_ranges(self.manifest.chunk(0).extents, FetchConfig().range_bytes))

    def key(self, chunk: int) -> bytes:
        """The name of a chunk in the cache.

        Raises:
            ManifestError: there is no such chunk.
        """
        if not 0 <= chunk < self.manifest.chunks:
            raise ManifestError(f"dataset {self.manifest.digest} has {self.manifest.chunks} chunks, no chunk {chunk}")
        return bytes(self.manifest.chunk_keys[chunk].tobytes())

    def chunk(self, chunk: int) -> Chunk:
        """A chunk with its extents.

        Raises:
            ManifestError: there is no such chunk.
        """
        self.key(chunk)
        return self.manifest.chunk(chunk)


class Datasets:
    """Opens manifests of the cache folder, each once; `drop_idle` closes unused ones.

    Args:
        root: the cache folder.
        allowlist: which of them are served, and with which storage options.
    """

    def __init__(self, root: Path, allowlist: UrlAllowlist) -> None:
        self._root = root
        self._allowlist = allowlist
        self._open: dict[str, Dataset] = {}
        self._expected: dict[str, Manifest] = {}

    def __len__(self) -> int:
        return len(self._open)

    def get(self, digest: str, options: Mapping[str, object]) -> Dataset:
        """The dataset of a manifest in the cache folder.

        Raises:
            ManifestError: no such manifest here, or it cannot be read.
            AccessDeniedError: it is of urls that are not served.
        """
        if not _DIGEST.fullmatch(digest):
            raise ManifestError(f"{digest[:40]!r} is not the digest of a manifest")
        known = self._open.get(digest)
        if known is None:
            folder = self._root / "manifests" / digest
            if not folder.is_dir():
                raise ManifestError(f"no manifest {digest} in {self._root}; ask for it by url or manifest= first")
            manifest = self._expected.pop(digest, None) or Manifest.open(folder)
            known = self._open[digest] = Dataset(manifest, self._allowlist.options(manifest.urls, options))
        elif options or self._allowlist.restricted:
            known.options = self._allowlist.options(known.manifest.urls, options)
        known.touched = True
        return known

    def expect(self, manifest: Manifest) -> None:
        """Keeps a manifest that a client has asked for until `drop_idle`, for the session that follows.

        Opening it again takes 0.5 ms; the first batch of 200 members waited 0.1 s for that (2026-11-23).
        """
        if manifest.digest not in self._open:
            self._expected[manifest.digest] = manifest

    def drop_idle(self, held: Container[str]) -> None:
        """Drops all except `held` that was not used since the last call; its memory is unmapped with its last user."""
        self._expected.clear()
        self._open = {digest: dataset for digest, dataset in self._open.items() if dataset.touched or digest in held}
        for dataset in self._open.values():
            dataset.touched = False

    def reload(self, allowlist: UrlAllowlist) -> None:
        """Applies other credentials to open datasets; one that is not served any more fails at its next fetch."""
        self._allowlist = allowlist
        for dataset in self._open.values() if allowlist.restricted else ():
            with suppress(StreamerError):
                dataset.options = allowlist.options(dataset.manifest.urls, {})

    def all(self) -> list[Dataset]:
        """Returns every dataset that is open."""
        return list(self._open.values())
