"""Reads chunks, ranges and listings from any store, and writes objects, bounded in requests and bytes: the fetcher.

The engine gets fetchers from `fetch/fetcher_set.py`; `indexing/`, `recode/` and `shards/` are given one or make one of
their own. `peers/` hold what they receive in `Fetched`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path
from types import TracebackType

from streamer.base.cgroup import usable_memory_bytes
from streamer.config import FetchConfig
from streamer.errors import ClosedError, ConfigError
from streamer.fetch.concurrency import FetchLimits
from streamer.fetch.endpoint import Endpoint, Notify, ignore_notice
from streamer.fetch.fair_gate import Due, Owner, WaitQueue, no_owner
from streamer.fetch.memory_budget import ChunkBuffer, MemoryBudget
from streamer.fetch.pacing import Pacing
from streamer.fetch.ranges import close_gaps, plan_ranges
from streamer.fetch.request import MakeView
from streamer.fetch.statistics import FetchStatistics, Histogram, RequestTally
from streamer.fetch.transfer import FetchContext, RangeTransfer, WholeCall
from streamer.manifest.model import Chunk, Extent, ObjectRecord
from streamer.store.addresses.urls import Address, shown, split
from streamer.store.base import ObjectStore, OrderedLister, PartsKeeper

# A listing of up to this many objects fits into any memory; a longer one is compared with the memory of the machine.
_FEW_OBJECTS = 1_000_000
# Memory of an object in a listing, with a url and a version of 100 letters each.
_OBJECT_BYTES = 400

# Opens the store of a root (a bucket or a host), given the address of a url in it.
OpenStore = Callable[[Address], ObjectStore]
Page = Sequence[ObjectRecord]


class Fetched:
    """Holds the bytes of a chunk in a buffer of the fetcher until `close`, which must be called when they are used.

    Args:
        buffer: a buffer that begins with the bytes.
        give_back: gives the buffer and its reserved bytes back. `close` calls it once.
        length: number of bytes. None means that the buffer has no others.

    Attributes:
        parts: views whose concatenation is the chunk's bytes. The list is empty after `close`.
        content: the bytes as one view, or, if the buffer is shared, the descriptor of a file in memory that begins with
            them. Valid until `close`.
    """

    def __init__(self, buffer: ChunkBuffer, give_back: Callable[[], None], length: int | None = None) -> None:
        self._buffer: ChunkBuffer | None = buffer
        self._give_back = give_back
        self.parts = [buffer.view()[:length]]
        self.content = self.parts[0] if buffer.descriptor is None else buffer.descriptor

    def __repr__(self) -> str:
        return f"Fetched({self._buffer or 'closed'})"

    def __enter__(self) -> Fetched:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives the memory back to the fetcher; idempotent."""
        buffer, self._buffer = self._buffer, None
        self.parts = []
        self.content = memoryview(b"")
        if buffer is not None:
            self._give_back()


class Fetcher:
    """Fetches from the stores of one set of storage options, each with a window, retries and hedges of its own.

    It works inside its `async with`, on one event loop. It opens a store at the first use of a url in it.

    Args:
        config: bounds and budgets.
        open_store: opens the store of a root; called once per root. The fetcher closes the store at its end.
        memory: budget of memory that this fetcher shares with others. None means one of its own.
        notify: called with a sentence when a store has served nothing for a while.
        find_address: splits a url into its root ("s3://bucket") and the rest. Urls with the same root share an
            `Endpoint`.

    Attributes:
        tally: counts of its requests since it was made.
    """

    def __init__(
        self,
        config: FetchConfig,
        open_store: OpenStore,
        memory: MemoryBudget | None = None,
        notify: Notify = ignore_notice,
        find_address: Callable[[str], Address] = split,
    ) -> None:
        self._find_address = find_address
        self._config = config
        self._open_store = open_store
        self._notify = notify
        self._endpoints: dict[str, Endpoint] = {}
        self._last: Endpoint | None = None
        self._budget = memory or MemoryBudget(config)
        self._memory = self._budget.gate
        self.tally = RequestTally()
        self._open = False

    def __repr__(self) -> str:
        return f"Fetcher({list(self._endpoints.values())}, memory={self._memory})"

    async def __aenter__(self) -> Fetcher:
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open = False
        endpoints = list(self._endpoints.values())
        self._endpoints = {}
        self._last = None
        # A store that fails to close, or whose close is cancelled, keeps no other one open.
        async with AsyncExitStack() as on_exit:
            for endpoint in endpoints:
                on_exit.push_async_callback(endpoint.store.aclose)

    async def fetch(
        self, chunk: Chunk, *, due: Due | None = None, owner: Owner = no_owner, shared: bool = False
    ) -> Fetched:
        """Fetches the bytes of a chunk's extents, in their order, once its memory may be reserved.

        Args:
            chunk: the chunk. Its extents may be in several objects, and its ranges are requested at the same time.
            due: returns when the first reader needs the chunk, in seconds on the loop's clock. It is called again while
                the chunk waits. None means that it is needed now.
            owner: returns the job that requests and bytes are charged to.
            shared: whether another process is to map the bytes (`BufferPool.take`).

        Returns:
            The bytes, in an object that the caller closes.

        Raises:
            StoreError: a range failed for good (`RangeTransfer.run`). The other ranges are cancelled.
            ConfigError: a url or the storage options are wrong.
            ClosedError: the fetcher is not open.
            OSError: there is no memory or descriptor for the bytes (`ChunkBuffer.view`).
        """
        ranges = plan_ranges(chunk.extents, self._config.range_bytes)
        due = due or _due_now()
        length, reserved = (sum(extent.length for extent in each) for each in (chunk.extents, ranges))
        buffer, give_back = await self._budget.reserve(WaitQueue(due, owner), reserved, shared=shared)
        try:
            await self._fetch_all(ranges, partial(WaitQueue, due, owner), buffer.view)
            if reserved > length:
                close_gaps(buffer.view(), chunk.extents)
            return Fetched(buffer, give_back, length)
        except BaseException:
            give_back()
            raise

    async def read(self, extent: Extent, *, due: Due | None = None) -> bytes:
        """Fetches one range as bytes of their own, which is meant for small ones such as heads of files.

        Args:
            extent: the range.
            due: returns when the range is needed, as in `fetch`.

        Raises:
            StoreError, ConfigError, ClosedError: as `fetch`.
        """
        make_queue = partial(WaitQueue, due or _due_now())
        await self._memory.acquire(make_queue(), extent.length)
        try:
            ranges = plan_ranges([extent], self._config.range_bytes)
            content = bytearray(sum(extent.length for extent in ranges))
            await self._fetch_all(ranges, make_queue, lambda: memoryview(content))
            return bytes(content)
        finally:
            self._memory.release(extent.length)

    def lists_from(self, url: str) -> bool:
        """Whether `list` accepts `after` for a folder in the bucket of this url; opens its store.

        Raises:
            ConfigError, ClosedError: as `fetch`.
        """
        return isinstance(self._endpoint(url).store, OrderedLister)

    async def list(
        self, url: str, *, after: str = "", enough: Callable[[Sequence[Page]], bool] = lambda pages: False
    ) -> list[Page]:
        """Lists the objects below a url, from the beginning again after each failure.

        Args:
            url: what is listed: a prefix, an object or a glob (`ObjectStore.list`).
            after: url behind which the listing begins, where `lists_from` is true and `url` is a folder. "" means the
                beginning.
            enough: called with all pages so far; True ends the listing after them.

        Returns:
            The objects in pages, as the store has them.

        Raises:
            StoreError: the store failed for good. One that does not answer is waited for as in `fetch`.
            ConfigError: a url or the storage options are wrong, or the list would take half of the memory.
            ClosedError: the fetcher is not open.
        """
        endpoint = self._endpoint(url)
        call = WholeCall(endpoint, self.tally)

        async def pages() -> list[Page]:
            found: list[Page] = []
            count = 0
            async with aclosing(_listing(endpoint.store, url, after)) as listing:
                async for page in listing:
                    call.record_progress()
                    found.append(page)
                    count += len(page)
                    if count > _FEW_OBJECTS:
                        _check_memory_for(count, url)
                    if enough(found):
                        break
                    # A store that has all pages at once would otherwise hold the event loop for the whole listing.
                    await asyncio.sleep(0)
            return found

        return await call.run(pages)

    async def put(self, url: str, content: bytes) -> None:
        """Writes a whole object; one that exists is replaced.

        Raises:
            StoreError: the store failed for good. One that does not answer is waited for as in `fetch`.
            ConfigError, ClosedError: as `fetch`.
        """
        endpoint = self._endpoint(url)
        await WholeCall(endpoint, self.tally).run(lambda: endpoint.store.put(url, content))

    async def put_file(self, url: str, path: Path) -> ObjectRecord:
        """Writes a file of this machine as an object, which appears as a whole or not at all.

        A store of local files may move the file away (`ObjectStore.put_file`).

        Returns:
            The object as a listing shows it.

        Raises:
            StoreError, ConfigError, ClosedError: as `put`.
            OSError: the file cannot be read (`ObjectStore.put_file`).
        """
        endpoint = self._endpoint(url)
        call = WholeCall(endpoint, self.tally, long=True)
        return await call.run(lambda: endpoint.store.put_file(url, path))

    def limit(self, limits: FetchLimits) -> None:
        """Sets other limits of each endpoint, of those opened later, too; requests in flight go on."""
        self._config = limits.apply(self._config)
        for endpoint in self._endpoints.values():
            endpoint.limit(limits)

    def pace_anew(self) -> None:
        """Forgets the rates that the stores were found to permit (`Endpoint.pace_anew`)."""
        for endpoint in self._endpoints.values():
            endpoint.pace_anew()

    @property
    def pacings(self) -> Sequence[Pacing]:
        """The rate control of each endpoint that was used so far."""
        return [endpoint.pacing for endpoint in self._endpoints.values()]

    @property
    def window(self) -> int:
        """Number of requests allowed at once, over all endpoints that were used so far."""
        return sum(endpoint.control.size for endpoint in self._endpoints.values())

    def parts_keeper(self, url: str) -> PartsKeeper | None:
        """Returns the store of a url if it lists unfinished uploads, else None. Raises as `lists_from`."""
        store = self._endpoint(url).store
        return store if isinstance(store, PartsKeeper) else None

    @property
    def first_bytes(self) -> Histogram:
        """Histogram of the times to first byte since the fetcher was made."""
        return self.tally.first_byte_histogram

    def statistics(self) -> FetchStatistics:
        """Returns the counts since the fetcher was made, and the levels of now."""
        endpoints = self._endpoints.values()
        tally = self.tally
        first_byte = tally.first_byte_seconds()
        return FetchStatistics(
            requests=tally.requests,
            received_bytes=tally.received_bytes,
            retries=tally.retries,
            hedges=tally.hedges,
            hedge_wins=tally.hedge_wins,
            throttled=tally.throttled,
            stalled=tally.stalled,
            outpaced=tally.outpaced,
            failures=tally.failures,
            window=self.window,
            limited_per_second=sum(endpoint.pacing.per_second for endpoint in endpoints if endpoint.pacing.limited),
            in_flight=sum(endpoint.gate.used for endpoint in endpoints),
            waiting=sum(endpoint.gate.waiting for endpoint in endpoints) + self._memory.waiting,
            reserved_bytes=self._memory.used,
            reserved_peak_bytes=self._memory.peak,
            first_byte_p50_seconds=first_byte.p50,
            first_byte_p95_seconds=first_byte.p95,
            first_byte_p99_seconds=first_byte.p99,
        )

    async def _fetch_all(
        self, ranges: Sequence[Extent], make_queue: Callable[[], WaitQueue], make_view: MakeView
    ) -> None:
        """Fetches all ranges at the same time, each to its place in their concatenation.

        Args:
            ranges: the ranges, in the order of the memory.
            make_queue: makes a queue to wait in, one for each endpoint.
            make_view: returns the memory. It is called at the first byte.

        Raises:
            StoreError, ConfigError, ClosedError, OSError: the first error of a range, after which the others are
                cancelled.
        """
        at = 0
        fetches = dict[str, FetchContext]()
        try:
            async with asyncio.TaskGroup() as group:
                for extent in ranges:
                    endpoint = self._endpoint(extent.object.url)
                    if (fetch := fetches.get(endpoint.root)) is None:  # each endpoint has a queue of its own
                        fetch = FetchContext(queue=make_queue(), make_view=make_view, group=group, tally=self.tally)
                        fetches[endpoint.root] = fetch
                    group.create_task(RangeTransfer(extent, endpoint, fetch, at).run())
                    at += extent.length
        except BaseExceptionGroup as failures:
            first = failures.exceptions[0]
            raise first from first.__cause__

    def _endpoint(self, url: str) -> Endpoint:
        """Returns the endpoint of a url; opens its store at the first use. Raises ClosedError and ConfigError."""
        if not self._open:
            raise ClosedError("the fetcher is closed; use it inside its `async with`")
        if (last := self._last) is not None and url.startswith(last.root + "/"):
            return last
        address = self._find_address(url)
        if address.root not in self._endpoints:
            store = self._open_store(address)
            self._endpoints[address.root] = Endpoint(address.root, store, self._config, self._notify)
        self._last = self._endpoints[address.root]
        return self._last


def _check_memory_for(count: int, url: str) -> None:
    """Raises a ConfigError if a list of `count` objects takes more than half of the memory of this machine.

    A faulty store may list without an end.
    """
    if count * _OBJECT_BYTES > usable_memory_bytes() // 2:
        raise ConfigError(
            f"{shown(url)}: the store lists more than {count:,} objects, which take half of this machine's memory; "
            "name a part of them, or put many into one file (streamer pack)",
            field="url",
            objects=count,
        )


def _due_now() -> Due:
    """Returns a due time that stays at the present moment: such requests are served in the order of their arrival."""
    moment = asyncio.get_running_loop().time()
    return lambda: moment


def _listing(store: ObjectStore, url: str, after: str) -> AsyncGenerator[Page, None]:
    if not after:
        return store.list(url)
    assert isinstance(store, OrderedLister), "only where lists_from says so"
    return store.list_after(url, after)
