"""The datasets that an engine serves: manifest, cost of its chunks, way to its store, and who may read them.

Storage options belong to who sends them: the same manifest with other options is another dataset, which shares only
what the manifest says.

The digest of a manifest is no secret: it is in the statistics and in the cache folder. So it gives no right: in a
service whose clients send their own storage options, a client reads with options with which the manifest was asked for,
or which the store accepts for one of its objects.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from streamer.config import FetchConfig
from streamer.engine.url_allowlist import Fetchers, UrlAllowlist
from streamer.errors import (
    AccessDeniedError,
    ManifestError,
    ObjectChangedError,
    StreamerError,
)
from streamer.fetch.fetcher_set import options_key
from streamer.fetch.ranges import plan_ranges
from streamer.formats import chunkfile
from streamer.manifest.columns import BinaryColumn
from streamer.manifest.model import Chunk, Extent, ObjectRecord
from streamer.manifest.table import Manifest
from streamer.manifest.validation import check_key, has_key_stamp, stamp_keys
from streamer.store.addresses.urls import split
from streamer.wire.store_options import StoreOptions

# Pairs of a manifest and options: 300 bytes each. The oldest is proven again.
_MAX_RIGHTS = 50_000

# A digest comes from clients and becomes part of a path.
_DIGEST = re.compile("[0-9a-zA-Z]{1,64}")
# Roots that are taken out by columns; the urls of further ones are looked at one by one.
_MAX_ROOTS = 16
_MAX_URLS_KEPT = 1000


def find_roots(manifest: Manifest) -> list[str]:
    """Returns the url of an object of each bucket or server that a manifest names; all objects are in one, mostly."""
    if manifest.content.base.count("/") > 2:
        return [manifest.object(0).url]
    urls = (manifest.object(number).url for number in _find_first_objects(manifest))
    return list({split(url).root: url for url in urls}.values()) or list(manifest.urls)


def _find_first_objects(manifest: Manifest) -> Iterator[int]:
    """Yields objects so that each root is that of one of them.

    Roots are taken out by columns, one after the other: 10^6 objects one by one kept the loop for 3 s (2026-11-28).
    """
    slashes = 3 - manifest.content.base.count("/")
    first = 0
    for tables in manifest.tables:
        keys = cast("BinaryColumn", tables["objects"]["key"])
        rows = np.arange(len(keys))
        for _ in range(_MAX_ROOTS):
            if not len(rows):
                break
            yield first + int(rows[0])
            root = b"".join(part + b"/" for part in keys[int(rows[0])].split(b"/")[:slashes])
            rows = rows[~_starts_with(keys, rows, root)]
        yield from (first + rows).tolist()
        first += len(keys)


def _starts_with(keys: BinaryColumn, rows: npt.NDArray[np.int64], start: bytes) -> npt.NDArray[np.bool_]:
    """Whether each of these keys begins with these bytes."""
    offsets = keys.offsets[rows].astype(np.int64)
    same = keys.offsets[rows + 1] - offsets >= len(start)
    for place, byte in enumerate(start):
        same &= keys.content[np.where(same, offsets + place, 0)] == byte
    return same


class Dataset:
    """One manifest in use, with one set of storage options.

    Attributes:
        name: unique in the engine: datasets of one manifest differ in their options.
        file_bytes: int64 (chunks,): the length of each chunk's file; of recoded chunks as planned.
        mean_bytes: mean length of a chunk's file.
        options: storage options with which its objects are read.
        touched: it was used since the last `Datasets.drop_idle`.
    """

    def __init__(self, manifest: Manifest, options: Mapping[str, object], name: str = "") -> None:
        self.manifest = manifest
        self.options = options
        self.name = name or manifest.digest
        self.touched = True
        # Whether the key of each chunk was checked; None if all were.
        self._checked = None if has_key_stamp(manifest.path) else bytearray(manifest.chunks)
        self._unchecked = manifest.chunks
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
        """Returns the name of a chunk in the cache.

        Raises:
            ManifestError: there is no such chunk.
        """
        if not 0 <= chunk < self.manifest.chunks:
            raise ManifestError(f"dataset {self.manifest.digest} has {self.manifest.chunks} chunks, no chunk {chunk}")
        return bytes(self.manifest.chunk_keys[chunk].tobytes())

    def chunk(self, chunk: int) -> Chunk:
        """Returns a chunk with its extents.

        Raises:
            ManifestError: there is no such chunk.
        """
        self.key(chunk)
        return self.manifest.chunk(chunk)

    def check_key(self, chunk: int) -> None:
        """Checks once that a chunk's key is its own, before its bytes are kept or found under that name.

        A manifest that is installed was checked as a whole, but an earlier version may have installed this one, or
        another program has written to its folder. It takes 15 us, and 1 us more for each object where objects are
        samples: 38 ms of the first batch of a warm start with a look-ahead of 826 chunks (2026-11-29).

        Raises:
            ManifestError: there is no such chunk.
            ManifestCorruptError: its key is that of another chunk.
        """
        if self._checked is None or self._checked[chunk]:
            return
        check_key(self.manifest, chunk)
        self._checked[chunk] = 1
        self._unchecked -= 1
        # The keys of blocks of several objects are not among those that are checked here.
        if self._unchecked == 0 and not self.manifest.recoded:
            self._checked = None
            stamp_keys(self.manifest.path)


class Datasets:
    """Opens manifests of the cache folder, each once; `drop_idle` closes unused ones.

    Args:
        root: the cache folder.
        allowlist: which of them are served, and with which storage options.
    """

    def __init__(self, root: Path, allowlist: UrlAllowlist) -> None:
        self._root = root
        self._allowlist = allowlist
        # Datasets by digest and key of options.
        self._open: dict[str, dict[str, Dataset]] = {}
        self._expected: dict[str, Manifest] = {}
        # Urls of an object of each root, by digest.
        self._urls: dict[str, list[str]] = {}
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._open)

    def get(self, digest: str, options: Mapping[str, object], *, key: str = "") -> Dataset:
        """Returns the dataset of a manifest in the cache folder, read with these options.

        Args:
            digest: that of the manifest.
            options: what the client sent.
            key: the `options_key` of `options` if it is known; of 4,096 parts it takes half of the time.

        Raises:
            ManifestError: no such manifest here, or it cannot be read.
            AccessDeniedError: its objects are not served, or are those of another endpoint than the options name.
        """
        manifest = self._manifest(digest)
        used = self._options(manifest, options)
        known = self._open.setdefault(digest, {})
        if not key or used is not options:
            key = options_key(used)
        if key not in known:
            known[key] = Dataset(manifest, used, f"{digest}.{next(self._numbers)}")
        known[key].touched = True
        return known[key]

    def _manifest(self, digest: str) -> Manifest:
        if not _DIGEST.fullmatch(digest):
            raise ManifestError(f"{digest[:40]!r} is not the digest of a manifest")
        for dataset in self._open.get(digest, {}).values():
            return dataset.manifest
        folder = self._root / "manifests" / digest
        if not folder.is_dir():
            raise ManifestError(f"no manifest {digest} in {self._root}; ask for it by url or manifest= first")
        return self._expected.pop(digest, None) or Manifest.open(folder)

    def _options(self, manifest: Manifest, offered: Mapping[str, object]) -> Mapping[str, object]:
        """Returns the options for a manifest's objects.

        Its urls are not asked: they are not in its digest, and the writer of a manifest may put any url there.
        """
        urls = self._urls_of(manifest) if self._allowlist.decides else []
        options = self._allowlist.options(urls, offered) if urls else offered
        if manifest.content.endpoint != self._allowlist.endpoint(urls, options):
            raise AccessDeniedError(
                f"dataset {manifest.digest} was listed at another endpoint than the one that these storage options "
                "lead to; ask for it by its url with these options"
            )
        return options

    def _urls_of(self, manifest: Manifest) -> list[str]:
        """Returns what `find_roots` does, which is called once while a dataset is open."""
        if manifest.digest not in self._urls:
            if len(self._urls) >= _MAX_URLS_KEPT:
                self._urls.clear()
            self._urls[manifest.digest] = find_roots(manifest)
        return self._urls[manifest.digest]

    def expect(self, manifest: Manifest) -> None:
        """Keeps a manifest that a client has asked for until `drop_idle`, for the session that follows.

        Opening it again takes 0.5 ms; the first batch of 200 members waited 0.1 s for that (2026-11-23).
        """
        if manifest.digest not in self._open:
            self._expected[manifest.digest] = manifest

    def drop_idle(self, held: Container[str]) -> None:
        """Drops all that was not used since the last call; its memory is unmapped with its last user.

        Args:
            held: names of datasets that stay.
        """
        self._expected.clear()
        for digest, known in list(self._open.items()):
            for key, dataset in list(known.items()):
                if not dataset.touched and dataset.name not in held:
                    del known[key]
                dataset.touched = False
            if not known:
                del self._open[digest]

    def reload(self, allowlist: UrlAllowlist) -> None:
        """Applies other credentials to open datasets; one that is not served any more fails at its next fetch."""
        self._allowlist = allowlist
        if not allowlist.restricted:
            return
        for digest, known in self._open.items():
            for dataset in known.values():
                with suppress(StreamerError):
                    dataset.options = self._options(dataset.manifest, {})
            self._open[digest] = {options_key(dataset.options): dataset for dataset in known.values()}

    def all(self) -> list[Dataset]:
        """Returns every dataset that is open."""
        return [dataset for known in self._open.values() for dataset in known.values()]

    def manifests(self) -> list[Manifest]:
        """Returns every manifest that is open, once."""
        return [dataset.manifest for known in self._open.values() for dataset in itertools.islice(known.values(), 1)]


class Rights:
    """Remembers which options were shown to be good for which manifest. Owned by the engine, on its loop."""

    def __init__(self, datasets: Datasets, fetchers: Fetchers) -> None:
        self._datasets = datasets
        self._fetchers = fetchers
        self._known: dict[tuple[str, str], None] = {}

    def __repr__(self) -> str:
        return f"Rights({len(self._known)} known)"

    def grant(self, digest: str, options: StoreOptions) -> None:
        """Records that a manifest was found with these options."""
        if self._fetchers.allowlist.refuse_local:
            if len(self._known) >= _MAX_RIGHTS:
                del self._known[next(iter(self._known))]
            self._known[digest, options.key] = None

    def has(self, digest: str, options: StoreOptions) -> bool:
        """Whether these options are known to be good; always where the service has its own, or one user."""
        return not self._fetchers.allowlist.refuse_local or (digest, options.key) in self._known

    async def prove(self, digest: str, options: StoreOptions) -> None:
        """Reads a byte of the objects unless the options are known to be good; a restarted engine knows none.

        Raises:
            AccessDeniedError: the store refuses.
            StreamerError: the manifest is not here, or the store cannot be asked.
        """
        if self.has(digest, options):
            return
        dataset = self._datasets.get(digest, options.mapping)
        for record in _find_examples(dataset.manifest):
            self._fetchers.allowlist.check_objects([record.url], dataset.options)
            # If the object has changed, the store has answered: readers get this error, or the bytes of the cache.
            async with self._fetchers.use(dataset.options) as fetcher:
                with suppress(ObjectChangedError):
                    await fetcher.read(Extent(record, 0, 1))
        self.grant(digest, options)


def _find_examples(manifest: Manifest) -> list[ObjectRecord]:
    """Returns an object that has bytes of each bucket or server, or of the first one if all are in one folder."""
    found: dict[str, ObjectRecord] = {}
    one = manifest.content.base.count("/") > 2
    for number in range(manifest.objects):
        record = manifest.object(number)
        if record.size:
            found.setdefault("" if one else split(record.url).root, record)
            if one:
                break
    return list(found.values())
