"""Opens the datasets that an engine serves (a manifest and the storage options to read it), and decides who may read.

Used by most modules of `engine/`, by `peers/`, by `service/long_requests.py` and by the simulation of `streamer plan`.

Storage options belong to the client that sends them: the same manifest with other options is another dataset, which
shares only what the manifest says.

The digest of a manifest is no secret, since it is in the statistics and in the cache folder. So it gives no right. In a
service whose clients send their own storage options, a client may read with options with which the manifest was found,
or which the store accepts for one of its objects.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from streamer.base.concurrency import in_thread
from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.table import arrange_keys, to_keys
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
from streamer.wire.messages import Part
from streamer.wire.store_options import StoreOptions

# Pairs of a manifest and options whose right is remembered, at 100 bytes each. The oldest one has to be proven again.
_MAX_RIGHTS = 50_000

# A digest comes from clients and becomes part of a path.
_DIGEST = re.compile("[0-9a-zA-Z]{1,64}")
# Number of roots that are found by columns of urls. The urls of further roots are looked at one by one.
_MAX_ROOTS = 16
# Pairs of a manifest and offered options whose choice of options is remembered.
_MAX_CHOSEN = 10_000
# Number of chunks whose keys are sorted in one turn of the loop, which takes 0.02 s.
_FEW_CHUNKS = 50_000
# Number of objects whose urls are looked at in one turn of the loop. Each may be of another root, which takes 0.1 ms.
_FEW_OBJECTS = 1000


def _name_pair(digest: str, key: str) -> bytes:
    """Returns 16 bytes that stand for a manifest and options, which are secret and may be long."""
    return blake2b(f"{digest} {key}".encode("utf-8", "surrogateescape"), digest_size=16).digest()


def find_roots(manifest: Manifest) -> list[str]:
    """Returns the url of one object in each bucket or server that a manifest names; raises ConfigError for no url."""
    if _names_one_root(manifest):
        return [manifest.object(0).url]
    urls = (manifest.object(number).url for number in _find_first_objects(manifest, least_bytes=0))
    return list({split(url).root: url for url in urls}.values()) or list(manifest.urls)


def _names_one_root(manifest: Manifest) -> bool:
    """Whether all urls begin with the same bucket or server."""
    return manifest.content.base.count("/") > 2


def _find_first_objects(manifest: Manifest, least_bytes: int) -> Iterator[int]:
    """Yields numbers of objects of at least so many bytes, among them one in each root that such objects have.

    Roots are found by columns, one after the other: 10^6 objects one by one kept the loop for 3 s (2026-11-28). Beyond
    `_MAX_ROOTS` roots, all other objects are yielded.
    """
    slashes = 3 - manifest.content.base.count("/")
    first = 0
    for tables in manifest.tables:
        keys = cast("BinaryColumn", tables["objects"]["key"])
        sizes = cast("npt.NDArray[np.int64]", tables["objects"]["size"])
        rows = np.flatnonzero(sizes >= least_bytes)
        for _ in range(_MAX_ROOTS):
            if not len(rows):
                break
            yield first + int(rows[0])
            root = b"".join(part + b"/" for part in keys[int(rows[0])].split(b"/")[:slashes])
            rows = rows[~_starts_with(keys, rows, root)]
        yield from (first + rows).tolist()
        first += len(keys)


def _starts_with(keys: BinaryColumn, rows: npt.NDArray[np.int64], start: bytes) -> npt.NDArray[np.bool_]:
    """Returns for each of these rows whether its key begins with the bytes `start`."""
    offsets = keys.offsets[rows].astype(np.int64)
    same = keys.offsets[rows + 1] - offsets >= len(start)
    for place, byte in enumerate(start):
        same &= keys.content[np.where(same, offsets + place, 0)] == byte
    return same


class Dataset:
    """One manifest in use, with one set of storage options.

    Args:
        manifest: the opened manifest.
        options: storage options with which its objects are read.
        name: unique name in the engine. "" means the digest of the manifest.

    Attributes:
        manifest, options, name: as given.
        file_bytes: length of each chunk's file, int64, (chunks,); of recoded chunks as planned.
        total_bytes: length of all these files together.
        mean_bytes: mean length of a chunk's file.
        touched: whether it was used since the last `Datasets.drop_idle`.
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
        """Number of requests that a chunk takes, about: its objects in the mean, or the ranges of the first chunk."""
        if self.manifest.whole_objects:
            return -(-self.manifest.samples // max(1, self.manifest.chunks))
        return len(plan_ranges(self.manifest.chunk(0).extents, FetchConfig().range_bytes))

    def key(self, chunk: int) -> bytes:
        """Returns the key of a chunk, its name in the cache, 16 bytes.

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
        """Checks that a chunk's key follows from its extents, before its bytes are kept or found under that key.

        Each chunk is checked once. A manifest is checked as a whole when it is installed, but an earlier version may
        have installed this one, or another program may have written to its folder. A check takes 15 us, and 1 us more
        for each object where objects are samples. Without the stamp that marks a checked manifest, the first batch of a
        warm start with a look-ahead of 826 chunks took 38 ms more (2026-11-29).

        The chunk must exist (`key` checks that).

        Raises:
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
    """Opens manifests of the cache folder, each once; `drop_idle` closes unused ones. The engine has one.

    Args:
        root: the cache folder.
        allowlist: decides which urls are served, and with which storage options.
    """

    def __init__(self, root: Path, allowlist: UrlAllowlist) -> None:
        self._root = root
        self._allowlist = allowlist
        # Datasets by digest and key of options.
        self._open: dict[str, dict[str, Dataset]] = {}
        self._expected: dict[str, Manifest] = {}
        # The service's own options by pair of a manifest and what a client offers; {} where the offered ones are used.
        self._chosen: dict[bytes, Mapping[str, object]] = {}
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._open)

    def get(self, digest: str, options: Mapping[str, object], *, key: str = "") -> Dataset:
        """Returns the dataset of a manifest in the cache folder, read with these options.

        Args:
            digest: digest of the manifest.
            options: storage options that the client sent.
            key: `options_key` of `options`, or "" if it is not known. For 4,096 parts it takes half of the time.

        Raises:
            ManifestError: there is no such manifest here, or it cannot be read.
            AccessDeniedError: its objects are not served, or are those of another endpoint than the options name.
            ConfigError: its objects would need different options of the service.
        """
        manifest = self._manifest(digest)
        key = key or options_key(options)
        if self._allowlist.decides or manifest.content.endpoint:
            options = self._choose_options(manifest, options, key)
            key = options_key(options) if self._allowlist.restricted else key
        self._expected.pop(digest, None)
        known = self._open.setdefault(digest, {})
        if key not in known:
            known[key] = Dataset(manifest, options, f"{digest}.{next(self._numbers)}")
        known[key].touched = True
        return known[key]

    def _manifest(self, digest: str) -> Manifest:
        """Returns an opened manifest of the cache folder; raises ManifestError if it is not there or unreadable."""
        if not _DIGEST.fullmatch(digest):
            raise ManifestError(f"{digest[:40]!r} is not the digest of a manifest")
        for dataset in self._open.get(digest, {}).values():
            return dataset.manifest
        folder = self._root / "manifests" / digest
        if not folder.is_dir():
            raise ManifestError(f"no manifest {digest} in {self._root}; ask for it by url or manifest= first")
        if digest not in self._expected:
            self._expected[digest] = Manifest.open(folder)
        return self._expected[digest]

    def count_chunks(self, digest: str) -> int:
        """Returns how many chunks a manifest has; 0 if it is not here."""
        try:
            return self._manifest(digest).chunks
        except ManifestError:
            return 0

    def gets_at_once(self, digest: str, offered: StoreOptions) -> bool:
        """Whether `get` takes little time: it takes long if it has to look at the urls of very many objects."""
        if not self._allowlist.decides or _name_pair(digest, offered.key) in self._chosen:
            return True
        try:
            manifest = self._manifest(digest)
        except ManifestError:
            # `get` says so at once.
            return True
        return _names_one_root(manifest) or manifest.objects <= _FEW_OBJECTS

    async def choose_options(self, digest: str, offered: StoreOptions) -> None:
        """Chooses in a thread, and remembers, the options that `get` would choose on the loop; raises as `get`."""
        manifest = self._manifest(digest)
        await in_thread(None, partial(self._choose_options, manifest, offered.mapping, key=offered.key))

    def _choose_options(self, manifest: Manifest, offered: Mapping[str, object], key: str) -> Mapping[str, object]:
        """Returns the options with which a manifest's objects are read; remembers them.

        The urls of the objects decide. The urls that the manifest lists as its own do not, since its writer may put any
        url there: they are not in its digest.

        Raises:
            AccessDeniedError: an object is not served, or the manifest was listed at another endpoint.
            ConfigError: the objects have different options.
        """
        pair = _name_pair(manifest.digest, key)
        allowlist = self._allowlist
        if (known := self._chosen.get(pair)) is not None:
            return known if allowlist.restricted else offered
        urls = find_roots(manifest)
        options = allowlist.options(urls, offered)
        if manifest.content.endpoint != allowlist.endpoint(urls, options):
            raise AccessDeniedError(
                f"dataset {manifest.digest} was listed at another endpoint than the one that these storage options "
                "lead to; ask for it by its url with these options"
            )
        # A thread may be here while the service reads its configuration again.
        if allowlist is self._allowlist:
            if len(self._chosen) >= _MAX_CHOSEN:
                self._chosen.clear()
            self._chosen[pair] = options if allowlist.restricted else {}
        return options

    def expect(self, manifest: Manifest) -> None:
        """Keeps a manifest that a client has asked for until `drop_idle`, for the session that follows.

        Opening it again takes 0.5 ms; the first batch of 200 members waited 0.1 s for that (2026-11-23).
        """
        if manifest.digest not in self._open:
            self._expected[manifest.digest] = manifest

    def drop_idle(self, held: Container[str]) -> None:
        """Drops the datasets that were not used since the last call; memory is unmapped when the last user drops it.

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
        """Applies another configuration to open datasets; one that is not served any more fails at its next fetch."""
        self._allowlist = allowlist
        self._chosen.clear()
        if not allowlist.restricted:
            return
        for digest, known in self._open.items():
            for dataset in known.values():
                with suppress(StreamerError):
                    dataset.options = self._choose_options(dataset.manifest, {}, options_key({}))
            self._open[digest] = {options_key(dataset.options): dataset for dataset in known.values()}

    def all(self) -> list[Dataset]:
        """Returns every dataset that is open."""
        return [dataset for known in self._open.values() for dataset in known.values()]

    def manifests(self) -> list[Manifest]:
        """Returns every manifest that is open, once."""
        return [dataset.manifest for known in self._open.values() for dataset in itertools.islice(known.values(), 1)]


class Rights:
    """Remembers which storage options may read which manifest. The engine has one, on its loop.

    Args:
        datasets: the engine's datasets.
        fetchers: readers of the stores, which are asked.
    """

    def __init__(self, datasets: Datasets, fetchers: Fetchers) -> None:
        self._datasets = datasets
        self._fetchers = fetchers
        self._known: dict[bytes, None] = {}

    def __repr__(self) -> str:
        return f"Rights({len(self._known)} known)"

    def grant(self, digest: str, options: StoreOptions) -> None:
        """Records that a manifest was found with these options, which may read it therefore."""
        if self._fetchers.allowlist.refuse_local:
            if len(self._known) >= _MAX_RIGHTS:
                del self._known[next(iter(self._known))]
            self._known[_name_pair(digest, options.key)] = None

    def has(self, digest: str, options: StoreOptions) -> bool:
        """Whether these options are known to be good for a manifest, and `Datasets.get` takes little time.

        Options are always good in an engine of one user, and in a service that has options of its own.
        """
        is_good = not self._fetchers.allowlist.refuse_local or _name_pair(digest, options.key) in self._known
        return is_good and self._datasets.gets_at_once(digest, options)

    async def prove(self, digest: str, options: StoreOptions) -> None:
        """Checks that these options may read a manifest; reads a byte of an object in each root unless that is known.

        A restarted engine knows nothing of it.

        Raises:
            AccessDeniedError: the store refuses, or an object is not served.
            StreamerError: the manifest is not here, or the store cannot be asked.
        """
        if not self._datasets.gets_at_once(digest, options):
            await self._datasets.choose_options(digest, options)
        if self.has(digest, options):
            return
        dataset = self._datasets.get(digest, options.mapping)
        for record in await in_thread(None, _find_examples, dataset.manifest):
            self._fetchers.allowlist.check_objects([record.url], dataset.options)
            # If the object has changed, the store has answered. Readers get that error, or bytes from the cache.
            async with self._fetchers.use(dataset.options) as fetcher:
                with suppress(ObjectChangedError):
                    await fetcher.read(Extent(record, 0, 1))
        self.grant(digest, options)


class Preparation:
    """Does in threads, before a session opens over very many chunks, what would take the loop too long in one turn.

    Args:
        datasets: the engine's datasets.
        rights: the rights to read them.
        policy: learns the chunks of large datasets.
    """

    def __init__(self, datasets: Datasets, rights: Rights, policy: CachePolicy) -> None:
        self._datasets = datasets
        self._rights = rights
        self._policy = policy

    def is_done(self, part: Part) -> bool:
        """Whether the right to read a part is known, and a session over it opens in little time."""
        if not self._rights.has(part.dataset, part.options):
            return False
        return self._policy.knows(part.dataset) or self._datasets.count_chunks(part.dataset) <= _FEW_CHUNKS

    async def prepare(self, part: Part) -> None:
        """Proves the right to read a part, and makes the chunks of a large one known to the policy.

        Raises:
            StreamerError: `Rights.prove` or `Datasets.get` raises it.
        """
        await self._rights.prove(part.dataset, part.options)
        if not self.is_done(part):
            dataset = self._datasets.get(part.dataset, part.options.mapping)
            keys = to_keys(dataset.manifest.chunk_keys)
            arranged = await in_thread(None, arrange_keys, keys)
            self._policy.add_datasets([(part.dataset, dataset.file_bytes, keys)], arranged)
            # The session opens in another turn of the loop.
            await asyncio.sleep(0)


def _find_examples(manifest: Manifest) -> list[ObjectRecord]:
    """Returns for each bucket or server an object in it that has bytes."""
    found: dict[str, ObjectRecord] = {}
    for number in _find_first_objects(manifest, least_bytes=1):
        record = manifest.object(number)
        if _names_one_root(manifest):
            return [record]
        found.setdefault(split(record.url).root, record)
    return list(found.values())
