"""The way from the store to a simulated node: one queue, ordered by when the chunks are due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from streamer.config import FetchConfig
from streamer.engine.datasets import Dataset
from streamer.engine.fetching.fetches import Fetch, Waiter
from streamer.errors import StreamerError
from streamer.fetch.ranges import plan_ranges
from streamer.planning.model import EngineCost, Link
from streamer.planning.virtual_clock import VirtualClock

Finished = Callable[[Fetch, StreamerError | None], None]


class ChunkCosts:
    """What the chunks of a dataset cost to fetch; each is looked up once.

    Args:
        dataset: whose chunks.
        link, engine: of a node.
    """

    def __init__(self, dataset: Dataset, link: Link, engine: EngineCost) -> None:
        self._manifest = dataset.manifest
        self._link = link
        self._engine = engine
        self._range_bytes = FetchConfig().range_bytes
        self._known: dict[int, tuple[int, int]] = {}

    def of(self, chunk: int) -> tuple[int, int]:
        """Its bytes and its requests."""
        if (known := self._known.get(chunk)) is None:
            ranges = plan_ranges(self._manifest.chunk(chunk).extents, self._range_bytes)
            known = self._known[chunk] = sum(extent.length for extent in ranges), len(ranges)
        return known

    def seconds(self, chunk: int) -> tuple[float, float]:
        """For how long it takes the whole link, and how much later it is there.

        Requests share the link, so together they take what their bytes take, unless their number is the limit (of the
        link's window, or of the engine's core).
        """
        size_bytes, requests = self.of(chunk)
        one = self._link.first_byte_seconds + size_bytes / requests / self._link.connection_bytes_per_second
        by_window = requests * one / self._link.requests
        by_engine = size_bytes * self._engine.byte_seconds + requests * self._engine.request_seconds
        taken = max(size_bytes / self._link.bytes_per_second, by_window, by_engine)
        return taken, max(self._link.first_byte_seconds, one - taken)


class SimulatedLink:
    """Stands in for `InFlight`: the same calls, no bytes.

    Args:
        clock: of the simulation.
        costs: of the chunks.
        epoch_of: the epoch of a step.

    Attributes:
        on_finished: the scheduler's; set before the first fetch.
        fetched_bytes, requests: from the store, by the epoch that they were made for.
        missed_bytes: of the chunks' files, by the same.
    """

    on_finished: Finished

    def __init__(self, clock: VirtualClock, costs: ChunkCosts, epoch_of: Callable[[int], int]) -> None:
        self._clock = clock
        self._costs = costs
        self._epoch_of = epoch_of
        self._fetches: dict[bytes, Fetch] = {}
        self._queue: list[Fetch] = []
        self._busy = False
        self.fetched_bytes: Counter[int] = Counter()
        self.requests: Counter[int] = Counter()
        self.missed_bytes: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._fetches)

    def start(self, key: bytes, waiter: Waiter, victims: Iterable[bytes] = ()) -> None:
        """As `InFlight.start`."""
        part, chunk = waiter.session.collection.locate(waiter.chunk)
        fetch = Fetch(key, waiter.session.collection.datasets[part], chunk, [waiter])
        self._fetches[key] = fetch
        epoch, (size_bytes, requests) = self._epoch_of(waiter.step), self._costs.of(chunk)
        self.fetched_bytes[epoch] += size_bytes
        self.requests[epoch] += requests
        self.missed_bytes[epoch] += int(waiter.session.collection.file_bytes[waiter.chunk])
        self._queue.append(fetch)
        self._serve()

    def join(self, key: bytes, waiter: Waiter) -> bool:
        """As `InFlight.join`."""
        fetch = self._fetches.get(key)
        if fetch is not None:
            fetch.waiters.append(waiter)
        return fetch is not None

    def unlink(self, keys: Iterable[bytes]) -> None:
        """There are no files."""

    def _serve(self) -> None:
        if self._busy or not self._queue:
            return
        fetch = min(self._queue, key=Fetch.due)
        self._queue.remove(fetch)
        self._busy = True
        self._clock.call_later(self._costs.seconds(fetch.chunk)[0], self._served, fetch)

    def _served(self, fetch: Fetch) -> None:
        self._busy = False
        self._clock.call_later(self._costs.seconds(fetch.chunk)[1], self._arrived, fetch)
        self._serve()

    def _arrived(self, fetch: Fetch) -> None:
        del self._fetches[fetch.key]
        self.on_finished(fetch, None)
