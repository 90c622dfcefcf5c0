"""Reads, lists and writes any url that fsspec knows, through fsspec.

`store/__init__.py` opens it for urls that no other store reads, and tests compare other stores with it.
`store/hub_store.py` builds on it. Asynchronous filesystems run on the event loop of the caller, others in threads.
fsspec's caches are never used, as they can return zeros, truncated or stale bytes (2026.9.0). Nor is its own parallel
read, which waits in batches.
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import logging
import os
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from streamer.base.concurrency import map_concurrently
from streamer.base.sorting import sort_names
from streamer.errors import AccessDeniedError, ConfigError, ObjectNotFoundError
from streamer.manifest.model import ObjectRecord
from streamer.store import failures, versions
from streamer.store.addresses import patterns, urls
from streamer.store.base import Get, StoreCounters, StoreStatistics, Take
from streamer.store.credentials.web_login import encode_login
from streamer.store.failures import translate_errors
from streamer.store.fsspec_errors import map_error

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_log = logging.getLogger(__name__)

PAGE_OBJECTS = 1000
# If the store refuses to list, objects that braces name are asked for by this many requests at once.
HEADS_AT_ONCE = 16
_SCHEMES = ("s3", "gs", "az", "abfs", "https", "file")
# The schemes that users mean by those of other programs, for messages.
_MEANT = {
    **dict.fromkeys(("minio", "r2", "aws", "ceph", "wasabi"), "s3"),
    **dict.fromkeys(("gc", "google", "gcp", "googlestorage"), "gs"),
    **dict.fromkeys(("azure", "wasb", "wasbs", "blob"), "az"),
}
# The usual endpoints of stores that speak S3, by their schemes.
_SPEAK_S3 = {
    "cos": "https://cos.<region>.myqcloud.com",
    "cosn": "https://cos.<region>.myqcloud.com",
    "obs": "https://obs.<region>.myhuaweicloud.com",
    "bos": "https://s3.<region>.bcebos.com",
    "b2": "https://s3.<region>.backblazeb2.com",
    "tos": "https://tos-s3-<region>.volces.com",
}
# botocore's own pool of 10 connections would limit the window, and its retries would hide 503s from `fetch/`.
_S3_CONFIG: Mapping[str, object] = {"max_pool_connections": 256, "retries": {"total_max_attempts": 1}}


class FsspecStore:
    """Reads, lists and writes through one filesystem of fsspec. Lives on one event loop.

    The filesystem is made at the first use, and not shared with other stores.

    Args:
        root: root of the urls, without a login.
        protocol: fsspec's name of the filesystem.
        options: its arguments: the user's storage options.
        login: login of the urls, "user:password", or "" if they had none.
    """

    def __init__(self, root: str, protocol: str, options: Mapping[str, object], login: str = "") -> None:
        self._root = root
        self._protocol = protocol
        self._options = dict(options)
        self._login = login
        self._files: FileCalls | None = None
        self._retired: list[FileCalls] = []
        self._counters = StoreCounters()
        self._has_warned = False

    def __repr__(self) -> str:
        return f"FsspecStore({urls.shown(self._root)!r}, {self._protocol!r}, {self._counters})"

    async def get(self, asked: Get, take: Take) -> None:
        """Reads a range (see `ObjectStore.get`), and passes it on as one piece."""
        files = self._connect()
        self._counters.requests += 1
        with translate_errors(map_error, asked.target.url, asked.target):
            content = await files.read(asked.target, asked.start, asked.stop)
        piece = memoryview(content)
        self._counters.count_bytes(piece)
        take(piece[: asked.length])
        if piece.nbytes != asked.length:
            raise failures.short_read(asked.target.url, asked.start, asked.stop, piece.nbytes)

    async def list(self, url: str) -> AsyncGenerator[Sequence[ObjectRecord], None]:
        """Lists objects (see `ObjectStore.list`), sorted by url, in pages of `PAGE_OBJECTS`."""
        pattern = await patterns.parse_pattern(url)
        self._counters.lists += 1
        try:
            with translate_errors(map_error, url):
                found = await self._connect().find(url if pattern.single else pattern.folder)
        except AccessDeniedError as refusal:
            if not pattern.may_be_asked_for_each(refusal):
                raise
            found = await self._describe_each(await asyncio.to_thread(sort_names, pattern.named))
        # The records are made in a thread, as 10^6 take seconds.
        records = await asyncio.to_thread(lambda: [self._record(name, found[name]) for name in sort_names(found)])
        if not records and pattern.single:
            raise ObjectNotFoundError(
                f"{urls.shown(url)}: nothing there; check the bucket and the prefix", url=urls.shown(url)
            )
        kept = await pattern.filter_records(records)
        if pattern.named:
            await asyncio.to_thread(pattern.require, [record.url for record in kept])
        for first in range(0, len(kept), PAGE_OBJECTS):
            yield kept[first : first + PAGE_OBJECTS]

    async def _describe_each(self, every: Sequence[str]) -> dict[str, dict[str, object]]:
        """Returns fsspec's info of each url, asked for one by one, `HEADS_AT_ONCE` at a time."""

        async def describe(url: str) -> dict[str, object]:
            with translate_errors(map_error, url):
                return await self._connect().describe(url)

        return dict(zip(every, await map_concurrently(describe, every, HEADS_AT_ONCE), strict=True))

    async def put(self, url: str, content: bytes) -> None:
        """Writes an object from memory (see `ObjectStore.put`)."""
        self._counters.requests += 1
        with translate_errors(map_error, url):
            await self._connect().pipe(url, content)

    async def put_file(self, url: str, path: Path) -> ObjectRecord:
        """Writes a file as an object (see `ObjectStore.put_file`)."""
        self._counters.requests += 1
        with translate_errors(map_error, url):
            await self._connect().put(url, path)
            return self._record(url, await self._connect().describe(url))

    def statistics(self) -> StoreStatistics:
        """Returns the counts since the store was opened."""
        return self._counters.freeze()

    async def prepare(self) -> None:
        """Does nothing: fsspec's imports may block the event loop for a second, so the first request makes them."""

    async def refresh(self) -> None:
        """Forgets the filesystem (see `ObjectStore.refresh`); it stays open for requests in flight, until `aclose`."""
        if self._files is not None:
            self._retired.append(self._files)
        self._files = None

    async def aclose(self) -> None:
        """Closes the connections of all filesystems that were made; idempotent."""
        await self.refresh()
        while self._retired:
            await self._retired.pop().aclose()

    def _connect(self) -> FileCalls:
        """Returns the filesystem; makes it at the first call. Raises ConfigError as `_filesystem`."""
        if self._files is None:
            filesystem = _filesystem(self._protocol, self._options, self._root, self._login)
            is_of_host = "host" in type(filesystem)._get_kwargs_from_urls(self._root)
            self._files = FileCalls(filesystem, is_of_host=is_of_host)
        return self._files

    def _record(self, name: str, entry: Mapping[str, object]) -> ObjectRecord:
        """Returns the record for a name and an info of fsspec; warns, once, if only the size pins the object."""
        url = name
        if "://" not in name:  # names of sftp, ftp, smb and webhdfs are paths on the host in the url
            base = self._root if self._connect().is_of_host else f"{self._protocol}:/"
            url = f"{base}/{name.lstrip('/')}"
        size = entry.get("size")
        record = ObjectRecord(url, size if isinstance(size, int) else 0, versions.read_version(entry))
        if record == versions.pin_by_size(record) and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s tells neither version nor time of files (%s, for instance): a change of equal size is not seen",
                urls.shown(self._root),
                urls.shown(url),
            )
        return record


def _filesystem(protocol: str, options: Mapping[str, object], root: str, login: str = "") -> AbstractFileSystem:
    """Returns a new filesystem of fsspec, without its caches.

    Args:
        protocol: fsspec's name of the filesystem.
        options: its arguments, which take precedence over what the url says.
        root: root of the urls.
        login: login of the urls, or "".

    Raises:
        ConfigError: fsspec has no such filesystem, lacks a library for it, or does not take the options.
    """
    import fsspec

    try:
        kind = fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        if (endpoint := _SPEAK_S3.get(protocol)) is not None:
            raise ConfigError(
                f"no filesystem for {protocol}://; this store speaks S3: write s3://bucket/... with "
                f"endpoint_url={endpoint!r}, key and secret in storage_options",
                field="url",
            ) from error
        near = _MEANT.get(protocol) or next(iter(difflib.get_close_matches(protocol, _SCHEMES, 1, 0.5)), None)
        advice = "" if near is None else f"; did you mean {near}://?"
        raise ConfigError(f"no filesystem for {protocol}:// ({error}){advice}", field="url") from error
    extra: dict[str, object] = {"asynchronous": True} if kind.async_impl else {}
    if protocol in ("s3", "s3a"):
        extra["config_kwargs"] = {
            **_S3_CONFIG,
            **(given if isinstance(given := options.get("config_kwargs"), Mapping) else {}),
        }
        options = {name: value for name, value in options.items() if name != "config_kwargs"}
    if protocol in urls.HTTP_SCHEMES:
        headers = cast("Mapping[str, str]", options.get("headers") or {})
        logs_in = "auth" in options or any(name.lower() == "authorization" for name in headers)
        if login and not logs_in:
            options = {**options, "headers": {**headers, "Authorization": encode_login(login)}}
        options = _withhold_headers(options)
    elif login:
        root = root.replace("://", f"://{login}@", 1)
    if protocol != "memory":  # its files belong to the class; its instances hold nothing
        extra |= {"skip_instance_cache": True, "use_listings_cache": False}
    try:
        return kind(**{**kind._get_kwargs_from_urls(root), **extra, **options})
    except TypeError as error:  # its text has names, not values
        raise ConfigError(
            f"{protocol}://: {kind.__name__} of fsspec does not take the storage options {sorted(options)} ({error})",
            field="storage_options",
        ) from error


def _withhold_headers(options: Mapping[str, object]) -> Mapping[str, object]:
    """Returns options of fsspec's HTTP client with which a redirect to another origin gets no header of the user.

    aiohttp itself withholds only Authorization. Its tracers can remove headers of the request that follows a redirect.
    """
    from aiohttp import ClientSession, TraceConfig, TraceRequestRedirectParams
    from yarl import URL

    client = cast("Mapping[str, object]", options.get("client_kwargs") or {})
    headers = dict(cast("Mapping[str, str]", options.get("headers") or {}))
    cookies = {**_mapping(client.get("cookies")), **_mapping(options.get("cookies"))}
    if cookies:  # they become a header, because aiohttp sends cookies without a host to all hosts
        headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
    own = {name.lower() for name in (*headers, *_mapping(client.get("headers")))}

    async def withhold(_session: ClientSession, _context: object, step: TraceRequestRedirectParams) -> None:
        to = step.response.headers.get("Location") or step.response.headers.get("URI") or ""
        if step.url.join(URL(to, encoded=True)).origin() != step.url.origin():
            for name in [name for name in step.headers if name.lower() in own]:
                step.headers.popall(name, None)

    trace = TraceConfig()
    trace.on_request_redirect.append(withhold)
    given = cast("Sequence[TraceConfig]", client.get("trace_configs") or ())
    clean = {name: value for name, value in client.items() if name != "cookies"}
    kept = {name: value for name, value in options.items() if name not in ("cookies", "headers")}
    return {**kept, "headers": headers, "client_kwargs": {**clean, "trace_configs": [*given, trace]}}


def _mapping(value: object) -> Mapping[str, str]:
    return cast("Mapping[str, str]", value) if isinstance(value, Mapping) else {}


class FileCalls:
    """Calls a filesystem of fsspec: an asynchronous one on the event loop, others in threads.

    All methods raise whatever fsspec and its libraries raise.

    Args:
        filesystem: the filesystem.
        is_of_host: whether its paths lack the host that its urls name.

    Attributes:
        filesystem, is_of_host: see Args.
    """

    def __init__(self, filesystem: AbstractFileSystem, *, is_of_host: bool = False) -> None:
        self.filesystem = filesystem
        self.is_of_host = is_of_host
        self._is_async = bool(filesystem.async_impl)
        self._is_s3fs = hasattr(filesystem, "_call_s3")
        # The library's own retries would hide 503s from `fetch/`, which repeats requests itself.
        if hasattr(filesystem, "retries"):
            filesystem.retries = 1

    async def _call(self, name: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401 - fsspec has no types
        """Calls the method `name` of the filesystem (`_name` of an asynchronous one), and returns its result."""
        if self._is_async:
            return await getattr(self.filesystem, f"_{name}")(*arguments, **options)
        return await asyncio.to_thread(getattr(self.filesystem, name), *arguments, **options)

    async def read(self, target: ObjectRecord, start: int, stop: int) -> bytes:
        """Reads the bytes `[start, stop)` of an object in the version of the manifest.

        Most filesystems cannot pin a version, so the version is compared after the read. An object does not return to
        an older version: if it has the manifest's version after the read, it had it before.

        Raises:
            ObjectChangedError: the object has another version.
        """
        if self._is_s3fs:
            return await self._read_s3(target, start, stop)
        content = await self._call("cat_file", target.url, start=start, end=stop)
        entry = await self.describe(target.url)
        if entry.get("size") != target.size:
            raise versions.make_change_error(target, f"{versions.read_version(entry)} ({entry.get('size')} bytes)")
        versions.require(target, versions.read_version(entry))
        return bytes(content)

    async def _read_s3(self, target: ObjectRecord, start: int, stop: int) -> bytes:
        """Reads as `read`, by s3fs's client: one get_object with If-Match, without a HEAD and another copy."""
        bucket, key, _ = self.filesystem.split_path(target.url)
        pin = {"IfMatch": tag} if (tag := versions.if_match(target.version)) else {}
        answer = await self.filesystem._call_s3(
            "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}", **pin
        )
        async with answer["Body"] as body:
            versions.require(target, versions.read_version(answer))
            return bytes(await body.read())

    async def describe(self, url: str) -> dict[str, object]:
        """Returns fsspec's info of a url, never from a cache."""
        return dict(await self._call("info", url))

    async def find(self, url: str) -> dict[str, dict[str, object]]:
        """Returns fsspec's info of all files below a url, by their names."""
        found = await self._call("find", url, detail=True)
        if isinstance(found, Mapping):
            return dict(found)
        # If a url is one object, adlfs 2026.8 returns only its name, whatever `detail` is.
        return {name: await self.describe(name) for name in found}

    async def pipe(self, url: str, content: bytes) -> None:
        """Writes an object from memory."""
        await self._call("pipe_file", url, content)

    async def put(self, url: str, path: Path) -> None:
        """Copies a local file to a url, where it appears as a whole.

        On filesystems that are not asynchronous it is written under another name and renamed. The asynchronous ones are
        object stores, which never show half an object.
        """
        if self._is_async:
            await self._call("put_file", str(path), url)
            return
        temporary = f"{url}.{os.getpid()}.part"
        try:
            await self._call("put_file", str(path), temporary)
            await self._call("mv", temporary, url)
        except Exception:
            with suppress(Exception):  # the store may refuse this, too, or there is no such object
                await self._call("rm_file", temporary)
            raise

    async def aclose(self) -> None:
        """Closes the session that s3fs, gcsfs, http or adlfs has opened, and adlfs's credential.

        It also drops finalizers that would keep the filesystem alive.
        """
        for name in ("_s3", "_session", "service_client", "credential"):
            close = getattr(getattr(self.filesystem, name, None), "close", None)
            if close is not None and self._is_async and inspect.isawaitable(closed := close()):
                await closed
        # Finalizers of adlfs (2026.8) hold the filesystem until the process ends, and then call an event loop that has
        # ended ("Loop is not running"). The standard library has no public list of finalizers.
        registry: Mapping[weakref.finalize[..., object], object] = getattr(weakref.finalize, "_registry", {})
        for finalizer in list(registry):
            alive = finalizer.peek()
            if alive is not None and alive[0] is self.filesystem:
                finalizer.detach()
