"""Reads, lists and writes S3, Google, Azure and web servers by obstore (Rust).

`store/__init__.py` opens these stores; `store/curl/store.py` builds on them. Reads use only obstore's `get_async` with
range and If-Match: `get_range` and `get_ranges` cannot pin a version, and `get_ranges` merges adjacent ranges into one
request (obstore 0.12, 2026-11).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from obstore import get_async, head_async, put_async
from obstore import list as list_pages

from streamer.base.concurrency import map_concurrently
from streamer.base.sorting import sort_names
from streamer.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    StoreTimeoutError,
    StreamerError,
)
from streamer.manifest.model import ObjectRecord
from streamer.store import failures, versions
from streamer.store.addresses import patterns, urls
from streamer.store.base import Get, StoreCounters, StoreStatistics, Take
from streamer.store.failures import translate_errors
from streamer.store.obstore_clients import make_client, map_error
from streamer.store.root import StoreRoot

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore as Client

_log = logging.getLogger(__name__)

Page = list[ObjectRecord]

# A body of up to this many pieces is read by one call, which takes 111 instead of 180 us for 100 KB (2026-11-20).
WHOLE_PIECES = 2
# Timeout of a small answer: of a page of a list, a HEAD, or a write from memory.
ANSWER_SECONDS = 30.0
# A large file is uploaded in parts of at least this size, that of the ranges that are read later.
PART_BYTES = 8 << 20
# An upload has at most this many parts; S3 accepts 10,000.
MOST_PARTS = 9_000
PARTS_AT_ONCE = 4
# Objects of a page of a list, as at S3.
PAGE_OBJECTS = 1000
# Objects of a page that must be asked for are asked for by this many requests at once.
HEADS_AT_ONCE = 16

T = TypeVar("T")


class ObstoreStore:
    """Reads, lists and writes one bucket, container or host by obstore. Lives on one event loop.

    obstore's client is made at the first request. If AWS says that a bucket is in another region, it is read there.

    Args:
        root: the root, which the store keeps.
    """

    def __init__(self, root: StoreRoot) -> None:
        self._root = root
        # The ring of the credentials. Without a ring the options have them, or obstore finds them by itself.
        self._ring = root.make_keyring()
        self._is_located = False
        self._locating = asyncio.Lock()
        self._client: Client | None = None
        self._uploads: Client | None = None
        self._process = 0
        self._counters = StoreCounters()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._root.label!r}, {self._counters})"

    async def get(self, asked: Get, take: Take) -> None:
        """Reads a range (see `ObjectStore.get`); obstore chooses the connection, so `fresh` has no effect."""
        received = 0
        target = asked.target
        self._counters.requests += 1
        # The code is not split into calls and context managers: these take 4.1 instead of 2.4 us (2026-11-20).
        try:
            options: GetOptions = {"range": (asked.start, asked.stop)}
            if tag := versions.if_match(target.version):
                options["if_match"] = tag
            elif target.version.startswith(versions.VERSION):
                options["version"] = target.version.removeprefix(versions.VERSION)
            result = await get_async(await self._ready(), self._root.key(target.url), options=options)
            _check(target, result.meta, result.range, (asked.start, asked.stop))
            if asked.stop - asked.start <= WHOLE_PIECES * asked.piece_bytes:
                received = self._counters.count_bytes(body := memoryview(await result.bytes_async()))
                take(body)
            else:
                async for piece in result.stream(min_chunk_size=asked.piece_bytes):
                    received += self._counters.count_bytes(body := memoryview(piece))
                    take(body)
        except ObjectChangedError as refusal:
            raise await self._explain_change(target, refusal) from None
        except StreamerError:
            raise
        except Exception as error:  # noqa: BLE001 - the edge: whatever obstore raises becomes ours
            failure = self._map_error(target.url, error, target)
            if isinstance(failure, ObjectChangedError):
                # A HEAD finds out which version the store has, for the message.
                failure = await self._explain_change(target, failure)
            raise failure from failures.redact(error)
        if received != asked.stop - asked.start:
            raise failures.short_read(target.url, asked.start, asked.stop, received)

    def _map_error(self, url: str, error: Exception, target: ObjectRecord | None) -> StreamerError:
        """Returns the error of streamer for one of obstore, whose message names credentials or address of this root."""
        return self._root.explain(map_error(url, error, target))

    async def _explain_change(self, target: ObjectRecord, refusal: ObjectChangedError) -> StoreError:
        """Returns the error for a read that was refused because the version is another one; asks for the object.

        If the object is missing it is an ObjectNotFoundError: Azurite 3.35 answers 412 then, other stores 404.
        """
        try:
            record = await self._require(target.url)
        except ObjectNotFoundError as gone:
            return gone
        except StoreError:
            return refusal
        if record.version == target.version or await self._listing_has(target):
            return versions.make_disagreement(target, refusal.details.get("actual"))
        if refusal.details.get("actual"):
            return refusal
        return versions.make_change_error(target, f"{record.version} ({record.size} bytes)")

    async def _listing_has(self, target: ObjectRecord) -> bool:
        """Whether a list still has the manifest's version, although HEADs and reads have another; False if unknown."""
        return False

    async def list(self, url: str) -> AsyncGenerator[Sequence[ObjectRecord], None]:
        """Lists objects (see `ObjectStore.list`); asks a web server, which cannot list, for each url of braces."""
        async for page in self._list_unpinned(url):
            yield self._pin(page)

    def _pin(self, page: Sequence[ObjectRecord]) -> Sequence[ObjectRecord]:
        """Returns the records of a page, pinned by size alone if the user asked for that (`pin="size"`)."""
        return [versions.pin_by_size(record) for record in page] if self._root.settings.sizes_only else page

    async def _list_unpinned(self, url: str) -> AsyncGenerator[Sequence[ObjectRecord], None]:
        """Yields pages as `list`, with the store's versions."""
        if self._root.is_web:
            for name in await asyncio.to_thread(patterns.expand, patterns.require_file_url(url)):
                yield [await self._head_web_object(name)]
            return
        pattern = await patterns.parse_pattern(url)
        may_be_object = pattern.single and self._root.key(url) and not url.endswith("/")
        if may_be_object and (record := await self._head(url)) is not None:
            yield [record]
            return
        found = False
        matched = dict[str, None]()
        try:
            async for page in self._pages(pattern.folder):
                found = True
                if kept := await pattern.filter_records(page):
                    if pattern.named:
                        matched.update((record.url, None) for record in kept)
                    yield kept
        except AccessDeniedError as refusal:
            if found or not pattern.may_be_asked_for_each(refusal):
                raise
            async for page in self._head_each(await asyncio.to_thread(sort_names, pattern.named)):
                yield page
            return
        if pattern.named:
            await asyncio.to_thread(pattern.require, matched)
        if may_be_object and not found:
            raise failures.error_of(url, failures.StoreAnswer(404))

    async def _head_each(self, every: Sequence[str]) -> AsyncGenerator[Page, None]:
        """Yields the records of objects, asked for one by one, because the bucket may be read but not listed."""
        _log.info(
            "%s may not be listed: %d objects that the braces name are asked for one by one",
            self._root.label,
            len(every),
        )

        async def require(url: str) -> ObjectRecord:
            try:
                return await self._require(url)
            except AccessDeniedError as error:
                text = "where it may not be listed, a store answers so for a missing object, too"
                raise type(error)(f"{error.message}; {text}", **error.details) from error

        for at in range(0, len(every), PAGE_OBJECTS):
            yield await map_concurrently(require, every[at : at + PAGE_OBJECTS], HEADS_AT_ONCE)

    async def list_after(self, folder: str, after: str) -> AsyncGenerator[Sequence[ObjectRecord], None]:
        """Yields pages of the objects behind a url (see `OrderedLister.list_after`); not for a web server."""
        async for page in self._pages(folder, self._root.key(after)):
            if kept := [record for record in page if not record.url.endswith("/")]:
                yield self._pin(kept)

    async def _head_web_object(self, url: str) -> ObjectRecord:
        """Returns the record of a web server's object; an error names the s3:// or gs:// url if it has one."""
        try:
            return await self._describe(url)
        except (AccessDeniedError, ObjectNotFoundError) as error:
            if (bucket := urls.find_bucket_url(urls.shown(url))) is None:
                raise
            raise type(error)(f"{error.message}; a prefix of this bucket is {bucket}", **error.details) from error

    async def _describe(self, url: str) -> ObjectRecord:
        """Returns the record of an object by a HEAD, or by a read of one byte if that is refused or has no length."""
        try:
            return await self._require(url)
        except StoreError as error:
            if error.details.get("status") not in (405, 501) and failures.NO_LENGTH not in error.message:
                raise
        return await self._describe_by_byte(url)

    async def _describe_by_byte(self, url: str) -> ObjectRecord:
        """Returns the record of an object by a read of its first byte."""
        self._counters.requests += 1
        with translate_errors(self._map_error, url):
            options: GetOptions = {"range": (0, 1)}
            result = await await_answer(get_async(await self._ready(), self._root.key(url), options=options), url)
            await await_answer(result.bytes_async(), url)
            return ObjectRecord(url, result.meta["size"], _version(result.meta))

    async def _require(self, url: str) -> ObjectRecord:
        """Returns the record of an object; ObjectNotFoundError if it does not exist."""
        record = await self._head(url)
        if record is None:
            raise failures.error_of(url, failures.StoreAnswer(404))
        return record

    async def _pages(self, folder: str, after: str | None = None) -> AsyncGenerator[Page, None]:
        """Yields pages of the objects below a folder, without folder markers.

        With `after`, a key, only the objects whose keys sort after it.
        """
        self._counters.lists += 1
        with translate_errors(self._map_error, folder):
            prefix = self._root.key(folder) or None
            pages = aiter(list_pages(await self._ready(), prefix, offset=after, chunk_size=PAGE_OBJECTS))
            while (page := await await_answer(anext(pages, None), folder)) is not None:
                records = [
                    ObjectRecord(f"{self._root.url}/{meta['path']}", meta["size"], _version(meta)) for meta in page
                ]
                yield await self._drop_markers(folder, records)

    async def _drop_markers(self, folder: str, page: Page) -> Page:
        """Returns a page without folder markers: empty objects whose keys end in "/", which "Create folder" makes.

        obstore removes the slash, so that a marker looks like any empty object. An empty object is a marker if it is
        the folder itself or has objects below it. For any other one the store is asked whether its key exists.
        """
        followers = zip(page, [*page[1:], None], strict=True)
        empty = [record for record, after in followers if record.size == 0 and not _is_folder(folder, record, after)]
        heads = await map_concurrently(lambda record: self._head(record.url), empty, HEADS_AT_ONCE)
        objects = {head.url for head in heads if head is not None}
        return [record for record in page if record.size or record.url in objects]

    async def _head(self, url: str) -> ObjectRecord | None:
        """Asks for one object by a HEAD, and returns its record; None if it does not exist."""
        self._counters.requests += 1
        try:
            with translate_errors(self._map_error, url):
                meta = await await_answer(head_async(await self._ready(), self._root.key(url)), url)
                return ObjectRecord(url, meta["size"], _version(meta))
        except ObjectNotFoundError:
            return None

    async def put(self, url: str, content: bytes) -> None:
        """Writes an object from memory (see `ObjectStore.put`)."""
        self._counters.requests += 1
        with translate_errors(self._map_error, url):
            putting = put_async(await self._ready(), self._root.key(url), content, use_multipart=False)
            await await_answer(putting, url)

    async def put_file(self, url: str, path: Path) -> ObjectRecord:
        """Writes a file as an object (see `ObjectStore.put_file`), in parts if it is large; repeats parts that fail."""
        self._counters.requests += 1
        with translate_errors(self._map_error, url):
            key = self._root.key(url)
            part_bytes = _part_bytes(path)
            await self._ready()
            if self._uploads is None:
                self._uploads = make_client(self._root, self._ring, uploads=True)
            await put_async(self._uploads, key, path, chunk_size=part_bytes, max_concurrency=PARTS_AT_ONCE)
        return self._pin([await self._require(url)])[0]

    def statistics(self) -> StoreStatistics:
        """Returns the counts since the store was opened."""
        return self._counters.freeze()

    async def prepare(self) -> None:
        """Finds credentials and region, and makes the client (see `ObjectStore.prepare`)."""
        await self._ready()

    async def refresh(self) -> None:
        """Forgets client and credentials (see `ObjectStore.refresh`); requests in flight keep the old client."""
        self._client = self._uploads = None
        if self._ring is not None:
            self._ring.refuse()

    async def aclose(self) -> None:
        """Drops the client, and its connections with it; idempotent."""
        self._client = self._uploads = None

    async def _ready(self) -> Client:
        """Waits for credentials, finds the region once, and returns the client. Raises StoreError and ConfigError."""
        if self._ring is not None:
            await self._ring.keys()
        if self._client is None:
            async with self._locating:
                if not self._is_located:
                    await self._locate()
                    self._is_located = True
        return self._connect()

    async def _locate(self) -> None:
        """Finds the bucket's region before the first request: obstore follows no answer of another region's host."""
        known = None if self._ring is None else self._ring.issued.region
        if await asyncio.to_thread(self._root.may_move, known):
            self._move_to(await asyncio.to_thread(self._root.ask_region, known), self._root.find_place(known).region)

    def _move_to(self, region: str, here: str) -> bool:
        """Uses the bucket in `region` from now on, and logs a warning; returns whether it does.

        Args:
            region: region that the store has named, or "".
            here: region that was asked.
        """
        if not region or region == here or not self._root.move(region):
            return False
        _log.warning(
            "%s is in the region %s, not in %s; client_kwargs={'region_name': %r} in storage_options says so at once",
            self._root.label,
            region,
            here,
            region,
        )
        self._client = self._uploads = None
        return True

    def _connect(self) -> Client:
        """Returns the client; makes it at the first call. Raises StoreError in the child of a fork."""
        if self._client is None:
            self._client = make_client(self._root, self._ring)
            self._process = os.getpid()
        if self._process != os.getpid():
            raise failures.after_fork(self._root.url, self._process)
        return self._client


def _is_folder(folder: str, record: ObjectRecord, after: ObjectRecord | None) -> bool:
    """Whether an empty object of a list is the folder itself, or has the list's next object (`after`) below it."""
    return record.url + "/" == folder or (after is not None and after.url.startswith(record.url + "/"))


async def await_answer(answer: Awaitable[T], url: str) -> T:
    """Awaits a small answer, at most `ANSWER_SECONDS`: the client's own timeout, an hour, is for bodies.

    Args:
        answer: what is awaited.
        url: url of the request.

    Raises:
        StoreTimeoutError: the answer took longer.
    """
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await answer
    except TimeoutError as error:
        if isinstance(error, StreamerError):
            raise
        text = f"{urls.shown(url)}: no answer in {ANSWER_SECONDS:.0f} s; check the endpoint and the network"
        raise StoreTimeoutError(text, url=urls.shown(url), status=None) from None


def _version(meta: ObjectMeta) -> str:
    return versions.choose_version(meta["e_tag"], meta["version"], meta["size"], meta["last_modified"])


def _part_bytes(path: Path) -> int:
    return max(PART_BYTES, -(-path.stat().st_size // MOST_PARTS))


def _check(target: ObjectRecord, meta: ObjectMeta, got: tuple[int, int], asked: tuple[int, int]) -> None:
    """Checks that an answer is the range that was asked for, of the pinned version: a server may ignore the headers.

    Args:
        target: the object and version that was asked for.
        meta: description of the object in the answer.
        got: range of the answer.
        asked: range that was asked for.

    Raises:
        ObjectChangedError: the object has another size or version.
        ShortReadError: it is another range.
    """
    if meta["size"] != target.size:
        raise versions.make_change_error(target, f"{_version(meta)} ({meta['size']} bytes)")
    if not target.version.startswith(versions.VERSION):
        versions.require(target, _version(meta))
    if cast("tuple[int, int]", tuple(got)) != asked:
        raise failures.wrong_range(target.url, *asked, f"bytes {got[0]}-{got[1] - 1}/{meta['size']}")
