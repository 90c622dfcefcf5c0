"""Reads and lists S3 and web servers by libcurl, and writes to them. `store/__init__.py` opens these stores on Linux.

Of all clients libcurl takes the least CPU: 52 us for an object of 100 KB (obstore 140), with TLS 105 (170), 0.35 s/GB
in ranges of 8 MiB (0.70; no latency, two cores, 2026-11-22). But it takes all of it in the thread of the event loop, of
which obstore takes 30 us and 0.17 s/GB. In a whole engine that thread reads 1.04 GB/s, with TLS 0.82 (2026-11-24). Each
fetch process has such a thread.

obstore writes to buckets, but does not look for unfinished uploads: they are listed and removed here. libcurl writes to
web servers, because obstore sends the user's headers on to any server that it is redirected to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import pycurl
from msgspec.structs import replace

from streamer.errors import ClosedError, ConfigError, ObjectChangedError, ObjectNotFoundError, StoreError, StreamerError
from streamer.manifest.model import ObjectRecord
from streamer.store import failures, guard, versions
from streamer.store.addresses.hosts import host_of
from streamer.store.addresses.urls import shown
from streamer.store.base import Get, Take, Upload
from streamer.store.curl import listing
from streamer.store.curl.access import Access, make_access
from streamer.store.curl.addresses import Names, Targets
from streamer.store.curl.handle import Handle, Whole
from streamer.store.curl.multi import Multi
from streamer.store.curl.uploads import upload
from streamer.store.obstore_store import ObstoreStore, Page, await_answer
from streamer.store.root import StoreRoot

_log = logging.getLogger(__name__)

# This many idle connections are kept, to all hosts; the window of an endpoint is smaller.
_IDLE_CONNECTIONS = 1024
# A list may have this many empty pages in a row: S3 has some if very many objects were deleted and their versions stay.
_MAX_EMPTY_PAGES = 100_000
# Statuses with which S3 answers a request for a bucket in another region (as in botocore's S3RegionRedirectorv2).
_ELSEWHERE = (301, 307, 400)


class CurlStore(ObstoreStore):
    """Works as an ObstoreStore, but reads, lists and asks by libcurl. Lives on one event loop.

    obstore reads if only it finds the credentials, or if an object is pinned by a version id.
    """

    def __init__(self, root: StoreRoot) -> None:
        super().__init__(root)
        self._access: Access | None = None
        self._is_found = False
        self._finding = asyncio.Lock()
        self._multi: Multi | None = None
        self._opened_by = 0
        self._free: list[Handle] = []
        self._names: Names | None = None
        self._targets = Targets()
        self._has_warned = False

    async def get(self, asked: Get, take: Take) -> None:
        """Reads a range (see `ObjectStore.get`), in pieces of 16 KiB, libcurl's own choice."""
        keys = None if self._ring is None else await self._ring.keys()
        access = self._access if self._is_found else await self._find_access()
        target = asked.target
        if access is None or target.version.startswith(versions.VERSION):
            await super().get(asked, take)
            return
        multi = self._open_multi()
        if self._free and not asked.fresh:
            handle = self._free.pop()
        else:
            # The connection of a new handle goes to the next address of the store's name.
            handle = Handle(access, [] if self._names is None else self._names.lines())
        self._counters.requests += 1
        handle.bind(asked, take)
        kept = self._targets.find_target(target.url)
        address = kept or access.address(target.url if self._root.is_web else self._root.key(target.url))
        headers = () if kept else access.sign(address, keys or access.keys)
        try:
            await self._transfer(multi, handle, asked, address, headers)
        except pycurl.error as error:
            failure = await self._explain_broken(handle, target, error)
            raise failure from (None if handle.failure else failures.redact(error))
        except ObjectChangedError as refusal:
            raise await self._explain_change(target, refusal) from None
        except StoreError as refusal:
            self._targets.drop(target.url)
            if not kept and not await self._is_elsewhere(refusal, access):
                raise self._root.explain(refusal) from None
            await self.get(asked, take)
        except ClosedError as closed:
            raise failures.explain_close(target.url) from closed
        finally:
            self._counters.received_bytes += handle.received
            handle.unbind()
            if access is self._access:
                self._free.append(handle)
            else:  # a refresh or the end came in between
                handle.easy.close()

    async def _transfer(self, multi: Multi, handle: Handle, asked: Get, address: str, headers: Sequence[str]) -> None:
        """Makes one read, and follows its redirects; keeps where a web server redirects to, for the next read."""
        onward = address
        while onward:
            address = onward
            handle.prepare(address, headers, fresh=asked.fresh)
            await multi.perform(handle.easy)
            if (onward := handle.finish()) and not onward.startswith(self._root.prefix):
                headers = ()  # the user's headers are for this host only: libcurl would withhold only Authorization
        if self._root.is_web and not address.startswith(self._root.prefix):
            self._targets.keep(asked.target.url, address)

    async def _explain_broken(self, handle: Handle, target: ObjectRecord, error: pycurl.error) -> BaseException:
        """Returns the error of a read that libcurl ended; forgets where the url was redirected to."""
        self._targets.drop(target.url)
        failure = handle.explain_failure(error)
        if isinstance(failure, ObjectChangedError):
            return await self._explain_change(target, failure)
        return self._root.explain(failure) if isinstance(failure, StreamerError) else failure

    async def _pages(self, folder: str, after: str | None = None) -> AsyncGenerator[Page, None]:
        """Yields pages as `ObstoreStore._pages`; raises StoreError for a list without an end."""
        if await self._find_access() is None:
            async for page in super()._pages(folder, after):
                yield page
            return
        self._counters.lists += 1
        prefix = self._root.key(folder)
        token = ""
        tokens = set[str]()
        empty_pages = 0
        while True:
            asked = listing.build_query(prefix, after or "", token)
            answer = await await_answer(self._whole(folder, asked), folder)
            listed = listing.parse_page(self._root.url, answer.body)
            self._check_prefix(folder, prefix, listed.records)
            empty_pages = empty_pages + 1 if listed.is_empty else 0
            if not listed.is_empty:
                yield listed.records
            if not listed.token:
                return
            if listed.token in tokens or empty_pages > _MAX_EMPTY_PAGES:
                raise failures.make_endless_error(folder, len(tokens) + 1, 0 if listed.token in tokens else empty_pages)
            token = listed.token
            tokens.add(token)

    def _check_prefix(self, folder: str, prefix: str, records: Page) -> None:
        """Raises StoreError if a page has an object that is not below the folder."""
        start = f"{self._root.url}/{prefix}"
        if other := next((record.url for record in records if not record.url.startswith(start)), None):
            raise StoreError(
                f"the listing of {folder} has {other}, which is not below it: the store, or a proxy before it, does "
                "not list by prefix; name the objects by a list of urls, or report it to the store",
                url=folder,
                found=other,
            )

    async def _listing_has(self, target: ObjectRecord) -> bool:
        """Whether a listing has this version of the object, which is the first below its own key; False if unknown."""
        if self._root.is_web or await self._find_access() is None:
            return False
        try:
            answer = await await_answer(
                self._whole(target.url, listing.build_query(self._root.key(target.url), max_keys=1)), target.url
            )
            return target in listing.parse_page(self._root.url, answer.body).records
        except (StoreError, ConfigError):
            return False

    async def _head(self, url: str) -> ObjectRecord | None:
        """Asks for one object (see `ObstoreStore._head`); None if it does not exist."""
        if await self._find_access() is None:
            return await super()._head(url)
        self._counters.requests += 1
        try:
            whole = await await_answer(self._whole(url), url)
        except ObjectNotFoundError:
            return None
        return self._warn_without_version(whole.web_record(url)) if self._root.is_web else whole.record(url)

    async def _describe_by_byte(self, url: str) -> ObjectRecord:
        """Describes an object by a read of one byte. libcurl takes dates in all forms, and any kind of proxy."""
        if await self._find_access() is None:
            return await super()._describe_by_byte(url)
        self._counters.requests += 1
        return self._warn_without_version((await await_answer(self._whole(url, first_byte=True), url)).web_record(url))

    def _warn_without_version(self, record: ObjectRecord) -> ObjectRecord:
        """Returns the record of a web server's object; warns, once, if only its size pins it."""
        if record == versions.pin_by_size(record) and not self._has_warned and not self._root.settings.sizes_only:
            self._has_warned = True
            _log.warning(
                "%s tells neither an ETag nor the time of files (%s, for instance): a change of equal size is not seen",
                self._root.label,
                shown(record.url),
            )
        return record

    async def put(self, url: str, content: bytes) -> None:
        """Writes an object from memory (see `ObjectStore.put`)."""
        if not self._root.is_web:
            await super().put(url, content)
            return
        await await_answer(upload(url, self._root.prefix, BytesIO(content), self._whole), url)

    async def put_file(self, url: str, path: Path) -> ObjectRecord:
        """Writes a file as an object (see `ObjectStore.put_file`)."""
        if not self._root.is_web:
            return await super().put_file(url, path)
        with path.open("rb") as file:
            await upload(url, self._root.prefix, file, self._whole)
        return self._pin([await self._require(url)])[0]

    async def list_partial_uploads(self, prefix: str) -> list[Upload]:
        """Returns unfinished uploads (see `PartsKeeper`); none of a web server, or if only obstore finds the keys."""
        if self._root.is_web or await self._find_access() is None:
            return []
        found = list[Upload]()
        after = ("", "")
        while True:
            asked = listing.uploads_query(self._root.key(prefix), after)
            page, following = listing.parse_uploads(
                self._root.url, (await await_answer(self._whole(prefix, asked), prefix)).body
            )
            found += page
            if not any(following) or following == after:
                return found
            after = following

    async def abort(self, upload: Upload) -> None:
        """Removes the parts of an unfinished upload (see `PartsKeeper.abort`)."""
        with suppress(ObjectNotFoundError):
            await await_answer(self._whole(upload.url, listing.abort_query(upload), method="DELETE"), upload.url)

    async def _whole(
        self,
        url: str,
        query: str = "",
        *,
        method: str = "",
        of_bucket: bool = False,
        first_byte: bool = False,
        content: BinaryIO | None = None,
    ) -> Whole:
        """Makes a request whose answer is kept; asks once more if the bucket is in another region.

        Args:
            url: url of the object, bucket or folder.
            query: query of a list or of an upload, without "?", or "".
            method: HTTP method. "" means GET with a query or `first_byte`, else HEAD.
            of_bucket: whether the bucket is asked for, not an object.
            first_byte: whether the first byte of the object is asked for, whose answer describes it as a HEAD does.
            content: content that is sent to a web server, or None.

        Returns:
            The request with its answer. Its handle is closed.
        """
        keys = None if self._ring is None else await self._ring.keys()
        access = await self._find_access()
        assert access is not None, "looked for"
        method = method or ("GET" if query or first_byte else "HEAD")
        name = url
        if not self._root.is_web:
            name = "" if of_bucket or (method == "GET" and not first_byte) else self._root.key(url)
        address = access.address(name) + (f"?{query}" if query else "")
        self._counters.requests += content is not None
        whole = Whole(access, url, method, first_byte=first_byte, content=content)
        try:
            headers = access.sign(address, keys or access.keys, method)
            while address:
                whole.prepare(address, headers)
                await self._open_multi().perform(whole.easy)
                address = whole.finish()
                if not self._root.is_web:
                    headers = access.sign(address, keys or access.keys, method)
                elif not address.startswith(self._root.prefix):
                    headers = ()  # see `_transfer`
        except ClosedError as closed:
            raise failures.explain_close(url) from closed
        except pycurl.error as error:
            failure = whole.explain_failure(error)
            raise (self._root.explain(failure) if isinstance(failure, StreamerError) else failure) from None
        except StoreError as refusal:
            if of_bucket or not await self._is_elsewhere(refusal, access):
                raise self._root.explain(refusal) from None
            return await self._whole(url, query, method=method, first_byte=first_byte)
        finally:
            whole.easy.close()
        return whole

    async def _is_elsewhere(self, refusal: StoreError, access: Access) -> bool:
        """Whether a refusal means that the bucket is in another region, which is asked from now on."""
        if self._root.is_web or refusal.details.get("status") not in _ELSEWHERE:
            return False
        if access is not self._access:  # another request has found it meanwhile
            return True
        region = str(refusal.details.get("region") or "") or await self._ask_region()
        if access is not self._access:
            return True
        if not self._move_to(region, access.region):
            return False
        self._forget()
        return True

    async def _locate(self) -> None:
        """Finds the region as `ObstoreStore._locate`, by libcurl where that can ask."""
        access = await self._find_access()
        if access is None:
            await super()._locate()
        elif self._root.may_move(access.region) and self._move_to(await self._ask_region(), access.region):
            self._forget()

    async def _ask_region(self) -> str:
        """Returns the region that AWS names in its answer to a HEAD for the bucket, or "" if it names none."""
        if self._root.has_own_endpoint:
            return ""
        try:
            head = await self._whole(self._root.url, of_bucket=True)
        except StoreError as refusal:
            return str(refusal.details.get("region") or "")
        return head.headers.get(b"x-amz-bucket-region", b"").decode("latin-1")

    async def _find_access(self) -> Access | None:
        """Returns the settings of requests, or None if only obstore finds the credentials.

        They are made once until the next `refresh`, in a thread, because files of certificates are read.
        """
        if self._ring is not None:
            await self._ring.keys()  # before the lock, so that each request that waits gets an error in time
        async with self._finding:
            if not self._is_found:
                access = await asyncio.to_thread(self._make_access)
                if access is not None:
                    self._names = Names(access.base or self._root.url)
                    await self._names.ready()
                self._access = access
                self._is_found = True
        return self._access

    def _make_access(self) -> Access | None:
        return make_access(self._root, None if self._ring is None else self._ring.issued)

    def _open_multi(self) -> Multi:
        """Returns what runs the transfers; raises StoreError in the child of a fork."""
        if self._multi is None:
            self._multi = Multi(_IDLE_CONNECTIONS)
            self._opened_by = os.getpid()
        if self._opened_by != os.getpid():
            raise failures.after_fork(self._root.url, self._opened_by)
        return self._multi

    async def prepare(self) -> None:
        """Finds settings and credentials before the first request (see `ObjectStore.prepare`)."""
        if await self._find_access() is None:
            await super().prepare()

    async def refresh(self) -> None:
        """Forgets the credentials (see `ObjectStore.refresh`); requests in flight keep the old ones."""
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


class GuardedStore(CurlStore):
    """Works as a CurlStore that never connects to this machine, for urls that clients of a service choose.

    A name is refused if it resolves to an address of this machine. libcurl checks each connection, including those of
    redirects. obstore cannot check, and follows redirects: it reads nothing here, and writes after `_check_address`.

    Args:
        root: the root.
        place: url whose host is checked before a write, a list or a HEAD.
    """

    def __init__(self, root: StoreRoot, place: str) -> None:
        super().__init__(root)
        self._place = place

    def _make_access(self) -> Access | None:
        access = super()._make_access()
        if access is None:
            raise guard.refusal(self._root.url, "only obstore finds its credentials, and follows redirects anywhere")
        return replace(access, refuse_local=True)

    async def get(self, asked: Get, take: Take) -> None:
        """Reads a range as `CurlStore.get`; refuses an object that is pinned by a version id."""
        if asked.target.version.startswith(versions.VERSION):
            await self._check_address()
            what = "only obstore reads versions of objects, and follows redirects anywhere"
            raise guard.refusal(asked.target.url, what)
        await super().get(asked, take)

    async def put(self, url: str, content: bytes) -> None:
        """Checks the address, and writes as `CurlStore.put`."""
        await self._check_address()
        await super().put(url, content)

    async def put_file(self, url: str, path: Path) -> ObjectRecord:
        """Checks the address, and writes as `CurlStore.put_file`."""
        await self._check_address()
        return await super().put_file(url, path)

    async def _pages(self, folder: str, after: str | None = None) -> AsyncGenerator[Page, None]:
        await self._check_address()
        async for page in super()._pages(folder, after):
            yield page

    async def _head(self, url: str) -> ObjectRecord | None:
        await self._check_address()
        return await super()._head(url)

    async def _check_address(self) -> None:
        """Raises AccessDeniedError if the name resolves to this machine. A name that does not resolve fails later."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host_of(self._place), None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return
        for *_, where in found:
            if guard.is_own(str(where[0])):
                raise guard.refusal(self._root.url, f"its address is {where[0]}")
