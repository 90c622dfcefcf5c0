"""Calls one filesystem of fsspec for `store/fsspec_store.py`: an asynchronous one on the event loop, others in threads.

Most filesystems that are not asynchronous have one connection, which two calls at a time would mix up. They are called
one after another.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamer.manifest.model import ObjectRecord
from streamer.store import failures, versions

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# Filesystems that may be called by several threads at once. Those of the web have a pool of connections (requests,
# httpx), smbprotocol and Arrow say that they are made for threads, memory has no connection. ftplib and paramiko's
# SFTPClient are not: replies of one thread's commands are read by another (2026-11-29).
_FOR_THREADS = frozenset(
    ("memory", "hf", "webhdfs", "webHDFS", "smb", "hdfs", "arrow_hdfs", "github", "dbfs", "webdav", "oss", "tos", "oci")
)


class FileCalls:
    """Calls a filesystem of fsspec: an asynchronous one on the event loop, others in threads.

    All methods raise whatever fsspec and its libraries raise. A call that is cancelled goes on in its thread.

    Args:
        filesystem: the filesystem.
        is_of_host: whether its paths lack the host that its urls name.

    Attributes:
        filesystem, is_of_host: see Args.
        is_async: whether it is asynchronous.
    """

    def __init__(self, filesystem: AbstractFileSystem, *, is_of_host: bool = False) -> None:
        self.filesystem = filesystem
        self.is_of_host = is_of_host
        self.is_async = bool(filesystem.async_impl)
        protocol = filesystem.protocol
        names = (protocol,) if isinstance(protocol, str) else tuple(protocol)
        self._is_for_threads = not _FOR_THREADS.isdisjoint(names)
        # Calls wait for their turn on the loop. In its thread a call waits for one that was cancelled, too.
        self._turn = asyncio.Lock()
        self._running = threading.Lock()
        self._is_s3fs = hasattr(filesystem, "_call_s3")
        # The library's own retries would hide 503s from `fetch/`, which repeats requests itself.
        if hasattr(filesystem, "retries"):
            filesystem.retries = 1

    async def _call(self, name: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401 - fsspec has no types
        """Calls the method `name` of the filesystem (`_name` of an asynchronous one), and returns its result."""
        if self.is_async:
            return await getattr(self.filesystem, f"_{name}")(*arguments, **options)
        return await self._run(getattr(self.filesystem, name), *arguments, **options)

    async def _run(self, call: Callable[..., Any], *arguments: object, **options: object) -> Any:  # noqa: ANN401 - as above
        """Runs a blocking call in a thread, alone if the filesystem is not made for threads; returns its result."""
        if self._is_for_threads:
            return await asyncio.to_thread(call, *arguments, **options)

        def call_in_turn() -> Any:  # noqa: ANN401 - as above
            with self._running:
                return call(*arguments, **options)

        async with self._turn:
            return await asyncio.to_thread(call_in_turn)

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

    async def put(self, url: str, path: Path) -> dict[str, object]:
        """Copies a local file to a url, where it appears as a whole; returns fsspec's info of it.

        On filesystems that are not asynchronous it is written under another name and renamed. The asynchronous ones are
        object stores, which never show half an object.

        Raises:
            StoreError: the file was not written in its length, or the store does not move it.
        """
        if not self.is_async:
            return dict(await self._run(put_file, self.filesystem, url, path))
        await self._call("put_file", str(path), url)
        return await self.describe(url)

    async def aclose(self) -> None:
        """Closes the session that s3fs, gcsfs, http or adlfs has opened, and adlfs's credential.

        It also drops finalizers that would keep the filesystem alive.
        """
        async with AsyncExitStack() as on_exit:
            for name in ("credential", "service_client", "_session", "_s3") if self.is_async else ():
                if (close := getattr(getattr(self.filesystem, name, None), "close", None)) is not None:
                    on_exit.push_async_callback(_close, close)
        # Finalizers of adlfs (2026.8) hold the filesystem until the process ends, and then call an event loop that has
        # ended ("Loop is not running"). The standard library has no public list of finalizers.
        registry: Mapping[weakref.finalize[..., object], object] = getattr(weakref.finalize, "_registry", {})
        for finalizer in list(registry):
            alive = finalizer.peek()
            if alive is not None and alive[0] is self.filesystem:
                finalizer.detach()


async def _close(close: Callable[[], object]) -> None:
    if inspect.isawaitable(closed := close()):
        await closed


def put_file(files: AbstractFileSystem, url: str, path: Path) -> Mapping[str, object]:
    """Writes a local file under another name, and moves it to its url; returns fsspec's info of it. Blocking.

    After an error what the url named before is there, and nothing of the new file, if the store allows that.

    Raises:
        StoreError: the file was not written in its length, or the store does not move it.
        Exception: whatever fsspec and its libraries raise.
    """
    name = files._strip_protocol(url)  # webhdfs takes the target of a move as it is
    temporary = f"{name}.{os.getpid()}.part"
    length = path.stat().st_size
    try:
        files.put_file(str(path), temporary)
        _describe(files, temporary, url, length)
        if not _move(files, temporary, name):
            _replace(files, temporary, name, url)
        found = _describe(files, name, url, length)
    except BaseException:
        with suppress(Exception):  # the store may refuse this, too, or there is no such object
            files.rm_file(temporary)
        raise
    return found


def _describe(files: AbstractFileSystem, name: str, url: str, length: int) -> Mapping[str, object]:
    """Returns fsspec's info of a name that was written; raises StoreError if it has not the length (bytes)."""
    found: Mapping[str, object] = files.info(name)
    if found.get("size") != length:
        raise failures.make_size_error(url, found.get("size"), length)
    return found


def _move(files: AbstractFileSystem, source: str, target: str) -> bool:
    """Moves an object; returns False if it does not, since another has that name (SMB, some servers of FTP, HDFS).

    Raises:
        Exception: it cannot be moved for another reason.
    """
    try:
        files.mv(source, target)
    except Exception:
        if not _is_there(files, target):
            raise
        return False
    # fsspec's webhdfs does not look at the answer, which is false if the object was not moved.
    return not _is_there(files, source)


def _replace(files: AbstractFileSystem, source: str, target: str, url: str) -> None:
    """Replaces the object `target` by `source`, where the filesystem moves nothing to a name that exists.

    For a moment nothing has the name. The former object is moved back if the new one cannot be moved.

    Raises:
        StoreError: the store does not move one of them.
        Exception: whatever fsspec and its libraries raise.
    """
    former = f"{source}.former"
    if not _move(files, target, former):
        raise failures.make_move_error(url)
    try:
        if not _move(files, source, target):
            raise failures.make_move_error(url)
    except BaseException:
        with suppress(Exception):  # the error of above says more
            files.mv(former, target)
        raise
    files.rm_file(former)


def _is_there(files: AbstractFileSystem, name: str) -> bool:
    """Whether there is something of this name. fsspec's `exists` would take each failure for "no"."""
    try:
        files.info(name)
    except OSError as error:  # that of SMB has the number, and not the type
        if isinstance(error, FileNotFoundError) or error.errno == errno.ENOENT:
            return False
        raise
    return True
