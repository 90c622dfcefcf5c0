"""Defines the protocol of all stores: reads of ranges pinned to a version, listings, and writes.

The stores of this folder implement it (`store/__init__.py` opens them), and `fetch/` sends requests through it, as
`tools/` does to test and measure a store. `shards/` removes unfinished uploads through `PartsKeeper`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from streamer.manifest.model import ObjectRecord

# Receives a piece of a body. It must not keep a view of the piece after the call.
Take = Callable[[bytes | memoryview], None]

# The size of pieces that takes the least CPU: in s/GB 0.41-0.47 with 64 KiB, 0.33 with 256 KiB, 0.39 with 1 MiB, 0.85
# with 8 MiB, 0.34-0.99 with the whole body as bytes (ranges of 8 MiB, 16 in flight, obstore, loopback, 2026-11-20).
PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Holds the counts of a store since it was opened.

    Attributes:
        requests: calls for objects, that is reads, writes and heads. Redirects and repeats inside a call do not count,
            nor do heads through fsspec.
        lists: listings.
        received_bytes: bytes of bodies of reads.
    """

    requests: int
    lists: int
    received_bytes: int


class StoreCounters(msgspec.Struct):
    """Counts what one store does, on its event loop: the changing form of `StoreStatistics`, with the same fields."""

    requests: int = 0
    lists: int = 0
    received_bytes: int = 0

    def count_bytes(self, piece: bytes | memoryview) -> int:
        """Adds the bytes of a piece to `received_bytes`; returns their number."""
        self.received_bytes += len(piece)
        return len(piece)

    def freeze(self) -> StoreStatistics:
        """Returns the counts now."""
        return StoreStatistics(self.requests, self.lists, self.received_bytes)


class Get(msgspec.Struct, frozen=True):
    """Describes a read of a range of an object in its version.

    Attributes:
        target: the object and its version.
        start: offset of the first byte.
        stop: offset behind the last byte.
        piece_bytes: approximate size of the pieces that are passed on, where the store's client lets it be chosen.
            Small pieces show sooner that a slow body makes progress, and take more CPU.
        fresh: whether to use a new connection, because the last one did not serve. Some clients cannot.
    """

    target: ObjectRecord
    start: int
    stop: int
    piece_bytes: int = PIECE_BYTES
    fresh: bool = False

    @property
    def length(self) -> int:
        """Number of bytes."""
        return self.stop - self.start


@runtime_checkable
class ObjectStore(Protocol):
    """Reads, lists and writes the objects of one bucket, container, host or file system.

    It belongs to one event loop and one process: a store made before a fork is not used after it. Every read is pinned:
    if the object has another version now, it raises ObjectChangedError. A store without versions compares size and time
    of the last change. `fetch/` repeats failed calls. A store itself repeats only what it asks elsewhere, after a
    redirect or for a bucket of another region, and parts of an upload. So one call may be several HTTP requests.
    """

    async def get(self, asked: Get, take: Take) -> None:
        """Passes the bytes of a range to `take` in order, in pieces as they arrive.

        The request ends if the task is cancelled or `take` raises; `take` is not called after that.

        Args:
            asked: the range.
            take: called with each piece, on the event loop.

        Raises:
            ObjectNotFoundError, ObjectChangedError: another try does not help.
            AccessDeniedError: another try helps only if `refresh` finds other credentials.
            ConfigError: url, options or environment make no usable request.
            ThrottledError, ShortReadError, StoreTimeoutError, StoreError: another try may help.
            ClosedError: the store was closed meanwhile.
        """
        ...

    def list(self, url: str) -> AsyncGenerator[Sequence[ObjectRecord], None]:
        """Yields pages of the objects that a url names, with size and version.

        Args:
            url: a folder (all below it), an object, or a pattern with globs and braces.

        Raises:
            ObjectNotFoundError: the bucket, the object or the folder does not exist, or an object that braces name.
                Some stores yield nothing for a folder without objects.
            AccessDeniedError: the store refuses.
            ConfigError: this store cannot list such a url, or as `get`.
            StoreError: the store failed; another try may help.
        """
        ...

    async def put(self, url: str, content: bytes) -> None:
        """Writes an object from memory; one that exists is replaced. Raises the errors of `get`."""
        ...

    async def put_file(self, url: str, path: Path) -> ObjectRecord:
        """Writes a local file as an object, which appears as a whole or not at all.

        Args:
            url: url of the object. One that exists is replaced.
            path: path of the file. The store of local files moves it away if it can.

        Returns:
            The object with size and version, as a listing shows it.

        Raises:
            StoreError, ConfigError: as `get`.
            OSError: some stores pass it on if the file cannot be read.
        """
        ...

    def statistics(self) -> StoreStatistics:
        """Returns the counts since the store was opened."""
        ...

    async def prepare(self) -> None:
        """Prepares what the first request needs: address, region, credentials, a client. Some stores do nothing here.

        A call is not necessary: the first request does the same.

        Raises:
            ConfigError, StoreError: as the first request, which tries again.
        """
        ...

    async def refresh(self) -> None:
        """Forgets client and credentials, which the store has refused; the next request makes new ones."""
        ...

    async def aclose(self) -> None:
        """Closes connections, which may end requests in flight with ClosedError; idempotent."""
        ...


@runtime_checkable
class OrderedLister(Protocol):
    """Is implemented by stores that list keys in order, and can begin behind any of them."""

    def list_after(self, folder: str, after: str) -> AsyncGenerator[Sequence[ObjectRecord], None]:
        """Yields pages of the objects below a folder whose urls sort after the url `after`.

        Raises:
            ObjectNotFoundError, AccessDeniedError, ConfigError, StoreError: as `ObjectStore.list`.
        """
        ...


class Upload(msgspec.Struct, frozen=True):
    """Names an upload in parts that was begun and not finished: the store keeps its parts, and no listing shows them.

    Attributes:
        url: url of the object that it would have become.
        id: the store's id of the upload.
    """

    url: str
    id: str


@runtime_checkable
class PartsKeeper(Protocol):
    """Is implemented by stores that keep the parts of unfinished uploads until they are removed."""

    async def list_partial_uploads(self, prefix: str) -> Sequence[Upload]:
        """Returns the unfinished uploads to urls with this prefix; an empty list if the store has no such uploads.

        Raises:
            AccessDeniedError, StoreError: the store refuses to tell.
            ConfigError: the answer is no such list.
        """
        ...

    async def abort(self, upload: Upload) -> None:
        """Removes the parts of an upload; does nothing if the upload is finished or its parts are removed already.

        Raises:
            AccessDeniedError, StoreError: the store refuses.
        """
        ...
