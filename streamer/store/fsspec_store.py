"""Reads, lists and writes any url that fsspec knows, through fsspec.

`store/__init__.py` opens it for urls that no other store reads, and for options or a client that need fsspec. Tests
compare other stores with it. `store/hub_store.py` builds on it. It calls the filesystem by `store/fsspec_calls.py`.
fsspec's caches are never used, as they can return zeros, truncated or stale bytes (2026.9.0). Nor is its own parallel
read, which waits in batches.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from streamer.base.concurrency import map_concurrently
from streamer.base.sorting import sort_names
from streamer.errors import AccessDeniedError, ConfigError, ObjectChangedError, ObjectNotFoundError, StreamerError
from streamer.manifest.model import ObjectRecord
from streamer.store import failures, versions
from streamer.store.addresses import patterns, urls
from streamer.store.base import Get, StoreCounters, StoreStatistics, Take
from streamer.store.credentials.web_login import encode_login
from streamer.store.failures import translate_errors
from streamer.store.fsspec_calls import FileCalls
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

    The filesystem is made at the first use, and not shared with other stores. It is made anew after an error that may
    be one of its connection, as those of fsspec do not connect again.

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
        self._connecting = asyncio.Lock()
        self._retired: list[FileCalls] = []
        self._counters = StoreCounters()
        self._has_warned = False

    def __repr__(self) -> str:
        return f"FsspecStore({urls.shown(self._root)!r}, {self._protocol!r}, {self._counters})"

    async def get(self, asked: Get, take: Take) -> None:
        """Reads a range (see `ObjectStore.get`), and passes it on as one piece."""
        self._counters.requests += 1
        async with self._use_files(asked.target.url, asked.target) as files:
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
            async with self._use_files(url) as files:
                is_of_host = files.is_of_host
                found = await files.find(url if pattern.single else pattern.folder)
        except AccessDeniedError as refusal:
            if not pattern.may_be_asked_for_each(refusal):
                raise
            found = await self._describe_each(await asyncio.to_thread(sort_names, pattern.named))
        # The records are made in a thread, as 10^6 take seconds.
        records = await asyncio.to_thread(
            lambda: [self._record(name, found[name], is_of_host=is_of_host) for name in sort_names(found)]
        )
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
            async with self._use_files(url) as files:
                return await files.describe(url)

        return dict(zip(every, await map_concurrently(describe, every, HEADS_AT_ONCE), strict=True))

    async def put(self, url: str, content: bytes) -> None:
        """Writes an object from memory (see `ObjectStore.put`)."""
        self._counters.requests += 1
        async with self._use_files(url) as files:
            await files.pipe(url, content)

    async def put_file(self, url: str, path: Path) -> ObjectRecord:
        """Writes a file as an object (see `ObjectStore.put_file`)."""
        self._counters.requests += 1
        async with self._use_files(url) as files:
            return self._record(url, await files.put(url, path), is_of_host=files.is_of_host)

    def statistics(self) -> StoreStatistics:
        """Returns the counts since the store was opened."""
        return self._counters.freeze()

    async def prepare(self) -> None:
        """Does nothing: fsspec's imports may block the event loop for a second, so the first request makes them."""

    async def refresh(self) -> None:
        """Forgets the filesystem (see `ObjectStore.refresh`); it stays open for requests in flight, until `aclose`."""
        async with self._connecting:
            if self._files is not None:
                self._retired.append(self._files)
            self._files = None

    async def aclose(self) -> None:
        """Closes the sessions of the asynchronous filesystems that were made; idempotent.

        Connections of other filesystems stay open until Python collects them.
        """
        await self.refresh()
        async with AsyncExitStack() as on_exit:
            while self._retired:
                on_exit.push_async_callback(self._retired.pop().aclose)

    @asynccontextmanager
    async def _use_files(self, url: str, target: ObjectRecord | None = None) -> AsyncIterator[FileCalls]:
        """Yields the filesystem, and maps the errors of the block, and of a connection that is made first.

        Args:
            url: url of the request, for errors.
            target: the object and version that is read, or None.
        """
        files: FileCalls | None = None
        try:
            with translate_errors(map_error, url, target):
                files = await self._connect()
                yield files
        except (AccessDeniedError, ObjectNotFoundError, ObjectChangedError, ConfigError):
            raise  # the server has answered
        except StreamerError:
            if files is self._files and files is not None and not files.is_async:
                self._files = None
            raise

    async def _connect(self) -> FileCalls:
        """Returns the filesystem; makes it at the first call.

        That of a filesystem that is not asynchronous may connect (sftp, ftp, smb), so a thread makes it.

        Raises:
            ConfigError: as `_find_kind` and `_make_filesystem`.
            Exception: whatever the library raises that connects.
        """
        async with self._connecting:
            if self._files is None:
                kind = _find_kind(self._protocol)
                make = partial(
                    _make_filesystem, kind, self._protocol, self._options, root=self._root, login=self._login
                )
                filesystem = make() if kind.async_impl else await asyncio.to_thread(make)
                self._files = FileCalls(filesystem, is_of_host="host" in kind._get_kwargs_from_urls(self._root))
            return self._files

    def _record(self, name: str, entry: Mapping[str, object], *, is_of_host: bool) -> ObjectRecord:
        """Returns the record for a name and an info of fsspec; warns, once, if only the size pins the object.

        Args:
            name: a url, or fsspec's name of a file.
            entry: the info.
            is_of_host: whether names lack the host that urls have.
        """
        url = name
        if "://" not in name:  # names of sftp, ftp, smb and webhdfs are paths on the host in the url
            base = self._root if is_of_host else f"{self._protocol}:/"
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


def _find_kind(protocol: str) -> type[AbstractFileSystem]:
    """Returns fsspec's class for a protocol. Raises ConfigError: there is none, or it lacks a library."""
    import fsspec

    try:
        return cast("type[AbstractFileSystem]", fsspec.get_filesystem_class(protocol))
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


def _make_filesystem(
    kind: type[AbstractFileSystem], protocol: str, options: Mapping[str, object], *, root: str, login: str
) -> AbstractFileSystem:
    """Returns a new filesystem of fsspec, without its caches. It may connect, and block.

    Args:
        kind: its class.
        protocol: fsspec's name of it.
        options: its arguments, which take precedence over what the url says.
        root: root of the urls.
        login: login of the urls, or "".

    Raises:
        ConfigError: it does not take the options.
    """
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
