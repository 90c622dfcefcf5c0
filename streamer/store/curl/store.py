"""S3 and web servers by libcurl.

Of all clients libcurl spends the least CPU per request and byte (objects of 100 KB, no latency, two cores: 52 us
against 140 of obstore, with TLS 105 against 170; ranges of 8 MiB: 0.35 s/GB against 0.70, 2026-11-22), but all of it in
the thread of the event loop. With the whole engine around it that thread carries 1.04 GB/s, 0.82 with TLS (2026-11-24);
fetch processes have one each. obstore has its own threads and takes 30 us and 0.17 s/GB of that thread.

obstore does puts and uploads; unfinished uploads, which it does not
look for, are listed and removed here.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress

import pycurl

from streamer.errors import ClosedError, ConfigError, ObjectChangedError, ObjectNotFoundError, StoreError, StreamerError
from streamer.manifest.model import ObjectRecord
from streamer.store import failures, versions
from streamer.store.addresses.urls import shown
from streamer.store.base import PIECE_BYTES, Take, Upload
from streamer.store.credentials.boto_keys import Keys
from streamer.store.credentials.key_ring import Issued, KeyRing
from streamer.store.curl import listing
from streamer.store.curl.access import Access
from streamer.store.curl.handle import Handle, Whole
from streamer.store.curl.multi import Multi
from streamer.store.curl.names import Names
from streamer.store.curl.targets import Targets
from streamer.store.obstore_store import MakeClient, ObstoreStore, Page, in_time
from streamer.store.places import Places
from streamer.store.reached import Reached

_log = logging.getLogger(__name__)

MakeAccess = Callable[[Issued[Keys | None] | None], Access | None]
# Idle connections to all hosts; the window is smaller.
_IDLE_CONNECTIONS = 1024
# Answers of S3 to a request that belongs to another region (botocore's S3RegionRedirectorv2 has the same).
_ELSEWHERE = (301, 307, 400)


class CurlStore(ObstoreStore):
    """An ObstoreStore that reads, lists and asks by libcurl. Lives on one event loop.

    Args:
        make_access: finds addresses, headers and keys, given the result of the ring, if there is one; returns None if
            only obstore finds credentials, which then reads as well.
    """

    def __init__(
        self,
        root: str,
        make_client: MakeClient,
        make_access: MakeAccess,
        way: Reached,
        ring: KeyRing[Keys | None] | None,
        *,
        places: Places,
    ) -> None:
        super().__init__(root, make_client, way, ring, places=places)
        self._keys = ring
        self._make_access = make_access
        self._access: Access | None = None
        self._is_found = False
        self._finding = asyncio.Lock()
        self._multi: Multi | None = None
        self._opened_by = 0
        self._free: list[Handle] = []
        self._names: Names | None = None
        self._targets = Targets()
        self._has_warned = False

    def __repr__(self) -> str:
        return f"CurlStore({shown(self._root)!r}, {self._counters})"

    async def get(
        self,
        target: ObjectRecord,
        start: int,
        stop: int,
        take: Take,
        *,
        piece_bytes: int = PIECE_BYTES,
        fresh: bool = False,
    ) -> None:
        """See ObjectStore.get; pieces are of 16 KiB, libcurl's own choice."""
        keys = None if self._keys is None else await self._keys.keys()
        access = self._access if self._is_found else await self._find_access()
        if access is None or target.version.startswith(versions.VERSION):
            await super().get(target, start, stop, take, piece_bytes=piece_bytes)
            return
        multi = self._running()
        handle = self._free.pop() if self._free and not fresh else self._handle(access)
        self._counters.requests += 1
        handle.bind(target, (start, stop), take)
        kept = self._targets.of(target.url)
        address = kept or access.address(self._key(target.url) if self._is_plain else target.url)
        headers = () if kept else access.signed(address, keys or access.keys)
        try:
            await self._transfer(multi, handle, target, address, headers, fresh=fresh)
        except pycurl.error as error:
            failure = await self._broken(handle, target, error)
            raise failure from (None if handle.failure else failures.redacted(error))
        except ObjectChangedError as refusal:
            raise await self._explained(target, refusal) from None
        except StoreError as refusal:
            self._targets.drop(target.url)
            if not kept and not await self._is_elsewhere(refusal, access):
                raise self._way.explain(refusal) from None
            await self.get(target, start, stop, take, piece_bytes=piece_bytes, fresh=fresh)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if multi.closed and task is not None and not task.cancelling():
                raise ClosedError(f"{shown(target.url)}: its store was closed while it was read") from None
            raise
        finally:
            self._counters.received_bytes += handle.received
            handle.unbind()
            if access is self._access:
                self._free.append(handle)
            else:  # a refresh or the end came in between
                handle.easy.close()

    async def _transfer(
        self, multi: Multi, handle: Handle, target: ObjectRecord, address: str, headers: Sequence[str], *, fresh: bool
    ) -> None:
        """Makes one read, following its redirects; a web server's redirect is kept for the next read."""
        onward = address
        while onward:
            address = onward
            handle.prepare(address, headers, fresh=fresh)
            await multi.perform(handle.easy)
            if (onward := handle.finish()) and not onward.startswith(self._prefix):
                headers = ()  # the user's are for this host: libcurl would withhold only Authorization
        if not self._is_plain and not address.startswith(self._prefix):
            self._targets.keep(target.url, address)

    async def _broken(self, handle: Handle, target: ObjectRecord, error: pycurl.error) -> BaseException:
        self._targets.drop(target.url)
        failure = handle.failed(error)
        if isinstance(failure, ObjectChangedError):
            return await self._explained(target, failure)
        return self._way.explain(failure) if isinstance(failure, StreamerError) else failure

    def _handle(self, access: Access) -> Handle:
        """Makes a handle whose connection goes to the next address of the store's name."""
        return Handle(access, [] if self._names is None else self._names.lines())

    async def _pages(self, folder: str, after: str | None = None) -> AsyncGenerator[Page, None]:
        """Yields the pages of a listing; obstore's if only it finds credentials."""
        if await self._find_access() is None:
            async for page in super()._pages(folder, after):
                yield page
            return
        self._counters.lists += 1
        prefix = self._key(folder)
        token = ""
        tokens = set[str]()
        while True:
            asked = listing.query(prefix, after or "", token)
            answer = await in_time(self._whole(folder, asked), folder)
            listed = listing.page_of(self._root, answer.body)
            self._check_prefix(folder, prefix, listed.records)
            if not listed.is_empty:
                yield listed.records
            if not listed.token:
                return
            if listed.token in tokens:
                raise StoreError(
                    f"the listing of {folder} has no end: page {len(tokens) + 1} continues where an earlier one did; "
                    "the store does not list as S3 does: name the objects by a list of urls, or report it to the store",
                    url=folder,
                    pages=len(tokens) + 1,
                )
            token = listed.token
            tokens.add(token)

    def _check_prefix(self, folder: str, prefix: str, records: Page) -> None:
        """Raises StoreError if a page has an object that is not below the folder: it would be trained on unasked."""
        start = f"{self._root}/{prefix}"
        if other := next((record.url for record in records if not record.url.startswith(start)), None):
            raise StoreError(
                f"the listing of {folder} has {other}, which is not below it: the store, or a proxy before it, does "
                "not list by prefix; name the objects by a list of urls, or report it to the store",
                url=folder,
                found=other,
            )

    async def _lists(self, target: ObjectRecord) -> bool:
        """Whether a listing still has the version (see ObstoreStore); the object is the first below its own key."""
        if not self._is_plain or await self._find_access() is None:
            return False
        try:
            answer = await in_time(self._whole(target.url, listing.query(self._key(target.url), most=1)), target.url)
            return target in listing.page_of(self._root, answer.body).records
        except (StoreError, ConfigError):
            return False

    async def _head(self, url: str) -> ObjectRecord | None:
        if await self._find_access() is None:
            return await super()._head(url)
        self._counters.requests += 1
        try:
            whole = await in_time(self._whole(url), url)
        except ObjectNotFoundError:
            return None
        return whole.record(url) if self._is_plain else self._dated(whole.web_record(url))

    async def _described_by_byte(self, url: str) -> ObjectRecord:
        """See ObstoreStore; libcurl asks web servers, since it takes all forms of dates, and proxies of any kind."""
        if await self._find_access() is None:
            return await super()._described_by_byte(url)
        self._counters.requests += 1
        return self._dated((await in_time(self._whole(url, first_byte=True), url)).web_record(url))

    def _dated(self, record: ObjectRecord) -> ObjectRecord:
        """Returns a web server's object; warns once where nothing tells one version of it from another."""
        if record == versions.by_size(record) and not self._has_warned and not self._way.sizes_only:
            self._has_warned = True
            _log.warning(
                "%s tells neither an ETag nor the time of files (%s, for instance): a change of equal size is not seen",
                shown(self._root),
                shown(record.url),
            )
        return record

    async def unfinished(self, prefix: str) -> list[Upload]:
        """See PartsKeeper.unfinished; none of a web server."""
        if not self._is_plain or await self._find_access() is None:
            return []
        found = list[Upload]()
        after = ("", "")
        while True:
            asked = listing.uploads_query(self._key(prefix), after)
            page, following = listing.uploads_of(self._root, (await in_time(self._whole(prefix, asked), prefix)).body)
            found += page
            if not any(following) or following == after:
                return found
            after = following

    async def abort(self, upload: Upload) -> None:
        """See PartsKeeper.abort."""
        with suppress(ObjectNotFoundError):
            await in_time(self._whole(upload.url, listing.abort_query(upload), method="DELETE"), upload.url)

    async def _whole(
        self, url: str, query: str = "", *, method: str = "", of_bucket: bool = False, first_byte: bool = False
    ) -> Whole:
        """Requests a page of a list, a head of an object or bucket, or an upload's end, from the bucket's region.

        With `first_byte` it requests the first byte of an object, whose answer describes it as well.
        """
        keys = None if self._keys is None else await self._keys.keys()
        access = await self._find_access()
        assert access is not None, "looked for"
        method = method or ("GET" if query or first_byte else "HEAD")
        key = "" if of_bucket or (method == "GET" and not first_byte) else self._key(url)
        address = access.address(key if self._is_plain else url) + (f"?{query}" if query else "")
        whole = Whole(access, url, method, first_byte=first_byte)
        try:
            headers = access.signed(address, keys or access.keys, method)
            while address:
                whole.prepare(address, headers)
                await self._running().perform(whole.easy)
                address = whole.finish()
                if self._is_plain:
                    headers = access.signed(address, keys or access.keys, method)
                elif not address.startswith(self._prefix):
                    headers = ()  # see `_transfer`
        except pycurl.error as error:
            failure = whole.failed(error)
            raise (self._way.explain(failure) if isinstance(failure, StreamerError) else failure) from None
        except StoreError as refusal:
            if of_bucket or not await self._is_elsewhere(refusal, access):
                raise self._way.explain(refusal) from None
            return await self._whole(url, query, method=method, first_byte=first_byte)
        finally:
            whole.easy.close()
        return whole

    async def _is_elsewhere(self, refusal: StoreError, access: Access) -> bool:
        """Whether the bucket is in another region than the one asked, which is asked from now on."""
        if not self._is_plain or refusal.details.get("status") not in _ELSEWHERE:
            return False
        if access is not self._access:  # another request has found it meanwhile
            return True
        region = str(refusal.details.get("region") or "") or await self._asked_region()
        if access is not self._access:
            return True
        if not self._moves(region, access.region):
            return False
        self._forget()
        return True

    async def _locate(self) -> None:
        """See ObstoreStore; libcurl asks where it can, and reads there as well from now on."""
        access = await self._find_access()
        if access is None:
            await super()._locate()
        elif self._places.may_move(access.region) and self._moves(await self._asked_region(), access.region):
            self._forget()

    async def _asked_region(self) -> str:
        """The region that AWS names in its answer to a HEAD of the bucket, whatever the status."""
        if self._places.is_own:
            return ""
        try:
            head = await self._whole(self._root, of_bucket=True)
        except StoreError as refusal:
            return str(refusal.details.get("region") or "")
        return head.headers.get(b"x-amz-bucket-region", b"").decode("latin-1")

    async def _find_access(self) -> Access | None:
        """Finds the access once until the next refresh, in a thread, because it reads certificate files."""
        if self._keys is not None:
            await self._keys.keys()  # before the lock: each of those who wait gets its own error, and in time
        async with self._finding:
            if not self._is_found:
                issued = None if self._keys is None else self._keys.issued
                access = await asyncio.to_thread(self._make_access, issued)
                if access is not None:
                    self._names = Names(access.base or self._root)
                    await self._names.ready()
                self._access = access
                self._is_found = True
        return self._access

    def _running(self) -> Multi:
        if self._multi is None:
            self._multi = Multi(_IDLE_CONNECTIONS)
            self._opened_by = os.getpid()
        if self._opened_by != os.getpid():
            raise failures.after_fork(self._root, self._opened_by)
        return self._multi

    async def prepare(self) -> None:
        """See ObjectStore.prepare."""
        if await self._find_access() is None:
            await super().prepare()

    async def refresh(self) -> None:
        """See ObjectStore.refresh; requests in flight keep the old keys."""
        await super().refresh()
        self._forget()

    async def aclose(self) -> None:
        """Closes connections; idempotent. Requests in flight end with ClosedError.

        The child of a fork closes nothing: it would shut down its parent's connections.
        """
        await super().aclose()
        self._forget()
        if self._opened_by == os.getpid():
            multi, self._multi = self._multi, None
            if multi is not None:
                await multi.close()

    def _forget(self) -> None:
        self._access = None
        self._is_found = False
        while self._free:
            self._free.pop().easy.close()
