"""The protocol of the stores: one ranged GET, pinned to a version."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from streamer.manifest.model import ObjectRecord

# Receives a piece of a body; must not keep a view of it after the call.
Take = Callable[[bytes | memoryview], None]

# CPU s/GB of 8 MiB ranges, 16 in flight, obstore (loopback, 2026-11-20): pieces of 64 KiB 0.41-0.47, 256 KiB 0.33,
# 1 MiB 0.39, 8 MiB 0.85, the whole body as bytes 0.34-0.99.
PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counts of a store since it was opened."""

    requests: int
    lists: int
    received_bytes: int


class StoreCounters(msgspec.Struct):
    """Mutable counterpart of StoreStatistics; one owner, one loop."""

    requests: int = 0
    lists: int = 0
    received_bytes: int = 0

    def count_received(self, piece: bytes | memoryview) -> int:
        """Counts a piece; returns its length."""
        self.received_bytes += len(piece)
        return len(piece)

    def freeze(self) -> StoreStatistics:
        """Returns the counts now."""
        return StoreStatistics(self.requests, self.lists, self.received_bytes)


class Get(msgspec.Struct, frozen=True):
    """Asks for a range of an object in its version.

    Attributes:
        target: the object and its version.
        start: first byte.
        stop: end in bytes, exclusive.
        piece_bytes: approximate size of a piece, if the client leaves the choice. Small pieces show sooner that a slow
            body makes progress, and cost more.
        fresh: whether to use a new connection, if the client leaves the choice, because the last one did not serve.
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
    """Reads one kind of url. Lives on the event loop that created it; must be created after the process starts.

    Every read is pinned: a store that finds another version raises ObjectChangedError, and one that cannot find out
    compares size and Last-Modified. Nothing here retries.
    """

    async def get(self, asked: Get, take: Take) -> None:
        """Passes the bytes of a range to `take` in order, in pieces as they arrive.

        A task that is cancelled here abandons the request (a hedge that lost, a body that stalled), and so does a
        `take` that raises; nothing is taken afterwards.

        Args:
            asked: the range.
            take: called on the loop with each piece.

        Raises:
            ObjectNotFoundError, ObjectChangedError: permanent.
            AccessDeniedError: permanent, unless other credentials are found after a `refresh`.
            ThrottledError, ShortReadError, StoreTimeoutError, StoreError: worth another try.
        """
        ...

    def list(self, url: str) -> AsyncGenerator[Sequence[ObjectRecord], None]:
        """Yields pages of the objects below `url` (a prefix, an object, or a glob), with size and version.

        Raises:
            ObjectNotFoundError: the bucket or folder does not exist.
            AccessDeniedError: the store refuses.
        """
        ...

    async def put(self, url: str, content: bytes) -> None:
        """Writes a small object (manifest parts) in one step."""
        ...

    async def put_file(self, url: str, path: Path) -> ObjectRecord:
        """Writes a local file as an object, which appears as a whole or not at all.

        Args:
            url: url of the object, of which an existing one is replaced.
            path: path of the file, which the local store may move away.

        Returns:
            The object as a listing shows it.
        """
        ...

    def statistics(self) -> StoreStatistics:
        """Counts since the store was opened."""
        ...

    async def prepare(self) -> None:
        """Prepares everything but the network that the first request needs: address, credentials, a client.

        Raises:
            ConfigError, StoreError: the errors of that request, which will try again.
        """
        ...

    async def refresh(self) -> None:
        """Forgets client and credentials that have expired; the next request makes new ones."""
        ...

    async def aclose(self) -> None:
        """Closes connections; idempotent."""
        ...


@runtime_checkable
class OrderedLister(Protocol):
    """A store that lists keys in order, and can begin behind any of them."""

    def list_after(self, folder: str, after: str) -> AsyncGenerator[Sequence[ObjectRecord], None]:
        """Yields pages of the objects below a folder whose urls sort after this one.

        Raises:
            ObjectNotFoundError, AccessDeniedError: as `ObjectStore.list`.
        """
        ...


class Upload(msgspec.Struct, frozen=True):
    """An upload in parts that was begun and not finished: the store keeps its parts, and no listing has them.

    Attributes:
        url: url of the object that it would become.
        id: the store's id of it.
    """

    url: str
    id: str


@runtime_checkable
class PartsKeeper(Protocol):
    """A store that keeps the parts of unfinished uploads until they are removed."""

    async def list_unfinished(self, prefix: str) -> Sequence[Upload]:
        """Returns the uploads to urls with this prefix.

        Raises:
            AccessDeniedError, StoreError: the store refuses to tell.
        """
        ...

    async def abort(self, upload: Upload) -> None:
        """Removes the parts of an upload; one that is finished, or removed already, is left as it is.

        Raises:
            AccessDeniedError, StoreError: the store refuses.
        """
        ...
