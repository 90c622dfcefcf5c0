"""Answers requests for manifests: finds them in the cache folder, copies them from a url, or builds them.

The engine has one `Manifests` (`engine/engine.py`), and clients ask it when they open a dataset.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import weakref
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from streamer.annotations.table import ANNOTATIONS
from streamer.base.concurrency import in_thread
from streamer.cache.memory_folder import REFUSALS
from streamer.engine.datasets import Datasets
from streamer.engine.manifests.index_resources import (
    IndexCost,
    IndexMemory,
    IndexReader,
    IndexTraffic,
    KeptChunks,
    Report,
    WarmTarget,
)
from streamer.engine.manifests.manifest_copy import OWNER_RULE, Ownership, copy_manifest, write_manifest
from streamer.engine.manifests.manifest_store import LocatedRequest, ManifestStore
from streamer.engine.manifests.table_logs import refuse_tables_around
from streamer.engine.url_allowlist import Fetchers
from streamer.errors import (
    ConfigError,
    ManifestCorruptError,
    ManifestError,
    ObjectNotFoundError,
    StoreError,
)
from streamer.fetch import Fetcher
from streamer.formats.registry import is_current
from streamer.manifest.beside import BESIDE, is_beside
from streamer.manifest.layout import ROOT_NAME
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.table import Manifest
from streamer.manifest.validation import KEYS_RULE, SECRETS_RULE
from streamer.recode.pool import RecoderPool
from streamer.store.addresses.urls import shown
from streamer.wire.messages import GetManifest

logger = logging.getLogger(__name__)

# How often another node's manifest is looked for: no store reports that an object appeared.
_LOOK_SECONDS = 2.0
# Is changed when other files of annotations are refused, so that those that were parsed before are parsed again.
_TABLE_RULES = "tables-2"
# Shares of the chunks that are removed before the second and the last try to write a manifest on a full disk.
_EVICTED_SHARES = (0.25, 1.0)
# Manifests at an endpoint that are remembered.
_MAX_PLACED = 1024
# Number of urls whose roots are resolved in one turn of the loop.
_FEW_URLS = 500
# Number of records that are freed in one step.
_DROPPED_AT_ONCE = 10_000


class Manifests:
    """Answers requests for manifests, equal ones together. The engine has one, on its loop.

    Args:
        root: folder of the manifests.
        fetchers: read what is to be indexed.
        target: takes the chunks that were read for an index.
        recoders: count the samples of objects that have to be decompressed.
        datasets: the engine's datasets, which are told what was found.

    Attributes:
        store: what the folder has.
        traffic: bytes and requests of all indexes.
        written: how often a manifest or a table was built, or copied into the folder.
    """

    def __init__(
        self, root: Path, fetchers: Fetchers, target: WarmTarget, recoders: RecoderPool, datasets: Datasets
    ) -> None:
        self.recoders = recoders
        self._root = root
        self._fetchers = fetchers
        self._target = target
        self._datasets = datasets
        self.store = ManifestStore(self._root)
        # Prevents that manifests are looked for and removed at the same time.
        self._removing = asyncio.Lock()
        self._asking = 0
        # There is a lock for each identity of requests, as long as a request holds or awaits it.
        self._locks: weakref.WeakValueDictionary[tuple[object, ...], asyncio.Lock] = weakref.WeakValueDictionary()
        self._found: dict[tuple[object, ...], tuple[float, str]] = {}
        # Manifests of the same objects at an endpoint, by the digest of the usual one and the endpoint.
        self._placed: dict[tuple[str, str], str] = {}
        self.traffic = IndexTraffic()
        # It is half of the memory, because what is parsed of metadata takes memory beside it.
        self._memory = IndexMemory(fetchers.memory.gate.limit // 2)
        self.written = 0

    async def manifest(self, request: GetManifest, report: Report) -> str:
        """Returns the digest of the manifest for a request, which is then in `manifests/<digest>`.

        Equal requests at the same time share the work.

        Args:
            request: the client's request.
            report: called with a text, the bytes that are done, and all bytes.

        Raises:
            ManifestError, ConfigError, StoreError: it cannot be found, copied or built.
            AccessDeniedError: its url is not served.
            OSError: the disk refuses to note the answer (`ManifestStore.remember`).
        """
        asked_at = time.monotonic()
        asked = await self._locate(request)
        async with self._removing:
            self._asking += 1
        try:
            # The storage options are a part of the identity: another client may not be allowed to read the same.
            identity = (*asked.identity, asked.message.options.key)
            lock = self._locks.setdefault(identity, asyncio.Lock())
            async with lock:
                found_at, digest = self._found.get(identity, (-1.0, ""))
                if found_at < asked_at:  # an answer that was found after this request came is fresh enough
                    digest = await self._place(await self._find_with_room(asked, report), asked)
                    # Answers are kept for requests that wait meanwhile.
                    self._found = {known: self._found[known] for known in self._locks if known in self._found}
                    self._found[identity] = (time.monotonic(), digest)
                self.store.use(digest)
                return digest
        finally:
            self._asking -= 1

    async def notes(self, request: GetManifest, digest: str) -> list[str]:
        """Returns notes about the objects that a manifest leaves out; [] if it was not built here for this request."""
        asked = await self._locate(request)
        digest = next((usual for (usual, _), placed in self._placed.items() if placed == digest), digest)
        return [
            note for source in (asked.file_source, asked.container_source) for note in self.store.notes(source, digest)
        ]

    async def remove_idle(self, used: Collection[str], max_bytes: int) -> list[str]:
        """Removes unused manifests in a thread; arguments, result and errors are those of `ManifestStore.remove_idle`.

        Does nothing while a request runs.
        """
        if self._asking:
            return []
        async with self._removing:
            return await in_thread(None, self.store.remove_idle, used, max_bytes, time.time())

    async def _locate(self, request: GetManifest) -> LocatedRequest:
        """Returns a request with the endpoint that its storage options name."""
        find_endpoint = partial(self._fetchers.allowlist.endpoint, request.urls, request.options.mapping)
        # Many urls are resolved in a thread, because each may have a root of its own, which takes 0.1 ms.
        is_long = len(request.urls) > _FEW_URLS
        endpoint = await in_thread(None, find_endpoint) if is_long else find_endpoint()
        return LocatedRequest.make(request, endpoint)

    async def _place(self, digest: str, asked: LocatedRequest) -> str:
        """Returns the digest of the same manifest at the request's endpoint, where its chunks have other keys.

        Writes that manifest if it is not in the folder.
        """
        endpoint = asked.endpoint
        if not endpoint and not asked.message.manifest:
            return digest
        placed = self._placed.get((digest, endpoint), "")
        if not placed or not (self._root / placed).is_dir():
            manifest = Manifest.open(self._root / digest)
            if manifest.content.endpoint == endpoint:
                return digest
            # Imported late: see `_build`.
            from streamer.indexing.publish import publish_at

            placed = (await in_thread(None, publish_at, manifest, self._root, endpoint)).name
            if len(self._placed) >= _MAX_PLACED:
                self._placed.clear()
            self._placed[digest, endpoint] = placed
            self.written += 1
        return placed

    async def _find_with_room(self, asked: LocatedRequest, report: Report) -> str:
        """Returns what `_find` returns; if the disk is full, removes chunks to make room, and tries again."""
        for share in _EVICTED_SHARES:
            try:
                return await self._find(asked, report, warm=share == _EVICTED_SHARES[0])
            except ManifestError as error:
                if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in REFUSALS:
                    raise
                logger.warning("%s; %.0f %% of the chunks are removed to make room for it", error, 100 * share)
            await self._target.make_room(share)
        self.store.remove_logs()
        return await self._find(asked, report, warm=False)

    async def _find(self, asked: LocatedRequest, report: Report, *, warm: bool) -> str:
        """Finds, copies or builds what is asked for; returns its digest. If `warm`, an index keeps chunks and notes."""
        fetchers = self._fetchers
        request = asked.message
        offered = request.options.mapping
        # It is done in a thread, because a client may name very many urls.
        options = await in_thread(None, fetchers.allowlist.options, request.urls, offered)
        if request.format == ANNOTATIONS:
            async with fetchers.use(options) as fetcher:
                return await self._annotations(asked, fetcher, report)
        if not request.manifest:
            async with fetchers.use(options) as fetcher:
                return await self._build(asked, fetcher, report, warm=warm)
        async with fetchers.use(fetchers.allowlist.options([request.manifest], offered)) as elsewhere:
            try:
                digest = await self._await_copy(request, elsewhere, report)
                is_refused = False
            except ManifestCorruptError as error:
                if error.details.get("rule") not in (KEYS_RULE, OWNER_RULE, SECRETS_RULE) or not request.build:
                    raise
                logger.warning(
                    "the manifest at %s is not used, the data are indexed: %s", shown(request.manifest), error
                )
                digest = None
                is_refused = True
            if digest is None:
                if not is_refused:  # before the data are read for it
                    fetchers.allowlist.check_writable(request.manifest)
                async with fetchers.use(options) as fetcher:
                    digest = await self._build(asked, fetcher, report, warm=warm)
                if not is_refused:
                    await write_manifest(Manifest.open(self._root / digest), request.manifest, elsewhere)
            self.store.remember(asked.identity, "-", digest)
            return digest

    async def _await_copy(self, request: GetManifest, elsewhere: Fetcher, report: Report) -> str | None:
        """Copies the manifest at a url, once another node has built it, and returns its digest.

        Returns None if there is none and it is to be built here. Raises ManifestError after `wait_seconds`.
        """
        deadline = time.monotonic() + request.wait_seconds
        while (digest := await self._take(request.manifest, elsewhere)) is None and not request.build:
            if time.monotonic() > deadline:
                raise ManifestError(
                    f"no manifest at {request.manifest} after {request.wait_seconds:.0f} s; node 0 builds it, or "
                    f"`streamer index {request.urls[0]} --out {request.manifest}`",
                    url=request.manifest,
                )
            report(f"waiting for the manifest at {request.manifest}", 0, 0)
            await asyncio.sleep(_LOOK_SECONDS)
        return digest

    # ------------------------------------------------------------ manifests at a url

    async def _take(self, url: str, fetcher: Fetcher) -> str | None:
        """Copies the manifest at a url into the folder, with its columns; returns its digest, None if there is none."""
        records: list[ObjectRecord] = []
        with suppress(ObjectNotFoundError):
            records = [record for page in await fetcher.list(url) for record in page]
        owned = Ownership(self._fetchers.allowlist, url)
        manifest = await copy_manifest(records, self._root, url, fetcher, check=owned.check)
        if manifest is None:
            return None
        self.written += 1
        if not owned.is_one:
            logger.info("the columns beside the manifest at %s are not used: its objects are elsewhere", shown(url))
            return manifest.digest
        # Imported late: see `_build`.
        from streamer.manifest.column_files import ColumnFiles, select_columns

        columns = await in_thread(None, select_columns, records)
        kept = ColumnFiles(manifest, self._root)
        for name in kept.list_absent(columns):
            whole = Extent(columns[name], 0, columns[name].size)
            async with self._memory.hold([whole]):
                await in_thread(None, kept.install, name, await fetcher.read(whole))
        return manifest.digest

    # ------------------------------------------------------------ built here

    async def _build(self, asked: LocatedRequest, fetcher: Fetcher, report: Report, *, warm: bool) -> str:
        """Lists the urls, and returns the manifest that was built from the same listing, or builds it."""
        request = asked.message
        lister = await self._list_urls(request, fetcher)
        listing = await in_thread(None, lister.digest, asked)
        if (known := self._find_answer(asked, listing)) is not None:
            return known
        # Imported late: an engine that finds its manifests starts 8 ms sooner.
        from streamer.formats import AUTO
        from streamer.formats.detect import bare_file, check_bare_file, chooser
        from streamer.indexing.build import MEMORY_BYTES, BuildOptions, build
        from streamer.indexing.index_log import IndexLogs
        from streamer.store.addresses.patterns import brace_order

        warmed = KeptChunks(self._target)
        notes = list[str]()
        try:
            choose = chooser(request.format, asked.format_options, extensions=request.extensions, on_note=notes.append)
        except ConfigError as error:
            where = "" if "where the engine runs" in error.message else "where the engine runs: "
            raise ConfigError(where + error.message, **error.details) from error
        await refuse_tables_around(asked, lister.records, fetcher, self._fetchers.allowlist)
        detected = request.format == AUTO and request.extensions is None
        cost = IndexCost(request.urls[0], request.limit_seconds, report, time.monotonic)
        earlier = await self._earlier(asked, lister, fetcher)
        manifest: Manifest | None = None
        try:
            manifest = await build(
                request.urls,
                self._root,
                lister=lister,
                reader=IndexReader(fetcher, self.recoders, self.traffic, self._memory),
                choose_format=choose,
                options=BuildOptions(
                    # The fetcher finds how many the link takes: at 200 KB/s each 28 s; with 16 it was 55 (2026-11-24).
                    concurrency=self._fetchers.most_requests,
                    memory_bytes=min(MEMORY_BYTES, self._fetchers.memory.gate.limit),
                    chunk_bytes=request.chunk_bytes or "auto",
                    on_estimate=cost.take_estimate,
                    on_progress=cost.take_progress,
                    # A chunk's key includes the endpoint only in the manifest that is made of this one.
                    on_chunk=warmed.keep if warm and not asked.endpoint else None,
                    logs=IndexLogs(self.store.log_folder(asked.container_source), writes=warm),
                    in_key_order=request.in_key_order,
                    known=earlier,
                    order_of=brace_order,
                    on_note=notes.append,
                    on_damage=notes.append if request.skip_damaged else None,
                    doubtful=bare_file if detected else lambda keys: None,
                    check_start=check_bare_file,
                ),
            )
        finally:
            warmed.hand_off(manifest)
        await in_thread(None, lister.drop)
        self.written += 1
        source = asked.file_source if manifest.whole_objects else asked.container_source
        self.store.remember(source, listing, manifest.digest, [f"{request.urls[0]}: {note}" for note in notes])
        return manifest.digest

    async def _list_urls(self, request: GetManifest, fetcher: Fetcher) -> _Recorder:
        """Lists the urls of a request, and checks that the objects are served with the same options."""
        lister = _Recorder(fetcher)
        for url in request.urls:
            await lister.record(url)
        allowlist = self._fetchers.allowlist
        options = await in_thread(None, allowlist.options, request.urls, request.options.mapping)
        await in_thread(None, allowlist.check_objects, (record.url for record in lister.records), options)
        return lister

    async def _annotations(self, asked: LocatedRequest, fetcher: Fetcher, report: Report) -> str:
        """Returns the digest of the table of a file of annotations as it is in the store now; builds it if missing."""
        request = asked.message
        lister = _Recorder(fetcher)
        await lister.record(request.urls[0])
        if (count := len(lister.records)) != 1:
            raise ConfigError(f"annotations={request.urls[0]!r}: {count} objects, not one file", field="annotations")
        listing = f"{lister.digest(asked)}-{_TABLE_RULES}"
        if (known := self.store.find_table(asked.container_source, listing)) is not None:
            return known
        # Imported late: see `_build`.
        from streamer.annotations.options import TableOptions
        from streamer.recode.annotations import build_table

        report(f"read the annotations {request.urls[0]}", 0, lister.records[0].size)
        options = msgspec.convert({"url": request.urls[0], **asked.format_options}, TableOptions)
        digest = await build_table(options, lister.records[0], self._root, fetcher, self.recoders)
        self.written += 1
        self.store.remember(asked.container_source, listing, digest)
        return self.store.map_table(digest)

    async def _earlier(self, asked: LocatedRequest, lister: _Recorder, fetcher: Fetcher) -> list[Manifest]:
        """Returns manifests whose rows an index may take over: the last one built here, or those beside the data."""
        newest = self.store.newest(asked.container_source)
        if newest is not None:
            return [newest]
        found: list[Manifest] = []
        for folder in lister.beside:
            try:
                if (digest := await self._take(folder, fetcher)) is not None:
                    found.append(Manifest.open(self._root / digest))
            except (ManifestError, StoreError) as error:
                logger.warning("the manifest at %s is not used, the data are indexed: %s", folder, error)
        return found

    def _find_answer(self, asked: LocatedRequest, listing: str) -> str | None:
        """Returns the digest of the manifest that was built from the same listing; None if it is to be built."""
        for source, whole_objects in ((asked.file_source, True), (asked.container_source, False)):
            found = self.store.find(source, listing)
            if found is None or found.whole_objects is not whole_objects:
                continue
            if is_current(found):
                self._datasets.expect(found)
                return found.digest
        return None


class _Recorder:
    """Lists urls once, and gives the same pages to the index.

    Attributes:
        records: the objects below the urls, without manifests beside the data.
        beside: urls of folders that have manifests beside the data.
    """

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._pages: dict[str, list[Sequence[ObjectRecord]]] = {}
        self.records: list[ObjectRecord] = []
        self.beside: list[str] = []

    async def record(self, url: str) -> None:
        """Lists one url and keeps its pages; does nothing if the url was listed before."""
        if url not in self._pages:
            self._pages[url] = await self._fetcher.list(url)
            # It is done in a thread: 10^6 objects take half a second.
            await in_thread(None, self._sort_pages, url)

    def _sort_pages(self, url: str) -> None:
        """Adds the objects of a listed url to `records`, and the folders of manifests beside them to `beside`."""
        listed = [record for page in self._pages[url] for record in page]
        self.records += [record for record in listed if not is_beside(record.url, url)]
        roots = [record.url for record in listed if record.url.endswith(f"/{BESIDE}{ROOT_NAME}")]
        self.beside += [root.removesuffix(ROOT_NAME) for root in roots if is_beside(root, url)]

    def drop(self) -> None:
        """Drops the records in steps, between which other threads go on: 10^6 of them take a tenth of a second."""
        while self.records:
            del self.records[-_DROPPED_AT_ONCE:]
        for pages in self._pages.values():
            while pages:
                pages.pop()

    async def list(self, url: str) -> AsyncIterator[Sequence[ObjectRecord]]:
        """Yields the recorded pages of a url, as a store would."""
        for page in self._pages[url]:
            yield page

    def digest(self, asked: LocatedRequest) -> str:
        """Returns the digest of all that a manifest depends on: the listing, the format, the sizes of chunks."""
        state = hashlib.blake2b(repr(asked.inputs).encode(), digest_size=16)
        for record in self.records:
            state.update(f"{record.url}\0{record.size}\0{record.version}\n".encode("utf-8", "surrogateescape"))
        return state.hexdigest()
