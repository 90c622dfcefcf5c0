"""Opens stores in a task, with its options."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from streamer.errors import Discreet
from streamer.fetch import Fetcher
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.protocols import Examine, Examined
from streamer.recode.in_process import examine_here
from streamer.recode.work import Recoders
from streamer.store import ObjectStore, open_store
from streamer.store.addresses.urls import Address


class StoreOpener(Discreet, msgspec.Struct, frozen=True):
    """Opens stores with these options; can be sent to other processes."""

    options: Mapping[str, object]

    def __call__(self, url: str | Address) -> ObjectStore:
        """Opens the store of a url."""
        return open_store(url, self.options)


class FetchedLists(msgspec.Struct, frozen=True):
    """Lists through a fetcher, with its retries and time limits."""

    fetcher: Fetcher

    async def list(self, url: str) -> AsyncIterator[Sequence[ObjectRecord]]:
        """Lists as `ObjectStore.list` does."""
        for page in await self.fetcher.list(url):
            yield page


class TaskReader:
    """Reads for an index, and decompresses here what can only be counted by decompressing it."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._recoders = Recoders()
        self._one_object = asyncio.Lock()

    async def read(self, extent: Extent) -> bytes:
        """Returns exactly the bytes of `extent`."""
        return await self._fetcher.read(extent)

    async def examine(self, asked: Examine) -> Examined:
        """Recodes an object, which is read as a whole: one at a time."""
        async with self._one_object:
            content = await self.read(Extent(asked.object, 0, asked.object.size))
            return await asyncio.to_thread(examine_here, self._recoders, asked, content)
