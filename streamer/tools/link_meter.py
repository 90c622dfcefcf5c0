"""Measures the link to a store by reading from it: latency, rates and CPU time. It prints nothing.

Used by `streamer bench`, `streamer doctor` and `streamer plan`.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from streamer.base.concurrency import plain_errors
from streamer.config import MiB
from streamer.errors import ConfigError, ObjectNotFoundError, StoreError
from streamer.manifest.model import ObjectRecord
from streamer.store import ObjectStore
from streamer.store.base import Get

# A range so short that its time is that of the round trip and of the store itself.
_PROBE_BYTES = 1024
# The listing ends after so many objects: enough for any number of connections, few enough for a prefix of millions.
_LISTED_OBJECTS = 1000


@dataclass(frozen=True, kw_only=True)
class Latency:
    """The time to the first byte of a small range, one request at a time.

    Attributes:
        requests: number of measured requests, on open connections.
        first_seconds: time of the request before them, which also connects if the store has no open connection.
        median_seconds, p95_seconds, max_seconds: median, 95th percentile and maximum of the measured requests. Of up
            to 20 requests the percentile is the maximum.
    """

    requests: int
    first_seconds: float
    median_seconds: float
    p95_seconds: float
    max_seconds: float


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The measurement of one combination of client, connections and length of ranges.

    Attributes:
        client: name of the client: "curl", "obstore", "fsspec" or "file"; "auto" in a `QuickTest`.
        connections: requests in flight.
        range_bytes: length of the range of a request, at most.
        received_bytes: bytes that arrived.
        seconds: duration of the measurement.
        cpu_seconds: CPU time of this process in that time, including TLS.
        requests: requests that were begun.
        errors: name of the error's class for each failed request, such as ThrottledError.
    """

    client: str
    connections: int
    range_bytes: int
    received_bytes: int
    seconds: float
    cpu_seconds: float
    requests: int
    errors: tuple[str, ...] = ()

    @property
    def bytes_per_second(self) -> float:
        """Bytes received per second."""
        return self.received_bytes / self.seconds

    @property
    def cpu_seconds_per_gb(self) -> float:
        """CPU seconds for each 10^9 bytes received."""
        return self.cpu_seconds / max(self.received_bytes, 1) * 1e9


@dataclass(frozen=True, kw_only=True)
class Way:
    """The measurement at one of the two endpoints of a store, by http or by https.

    Attributes:
        scheme: "http" or "https".
        latency: time to the first byte at this endpoint.
        cell: measurement of the chosen combination at this endpoint.
    """

    scheme: str
    latency: Latency
    cell: Cell


def ranges(objects: Sequence[ObjectRecord], range_bytes: int) -> Iterator[tuple[ObjectRecord, int, int]]:
    """Returns an endless iterator over (object, start, stop): all ranges of all objects in turn, then again.

    Args:
        objects: objects that are not empty, at least one.
        range_bytes: length of a range, at most.
    """
    return itertools.cycle(
        (target, start, min(start + range_bytes, target.size))
        for target in objects
        for start in range(0, target.size, range_bytes)
    )


def combine_cells(parts: Sequence[Cell]) -> Cell:
    """Returns the sum of several measurements of the same combination, of at least one."""
    return replace(
        parts[0],
        received_bytes=sum(part.received_bytes for part in parts),
        seconds=sum(part.seconds for part in parts),
        cpu_seconds=sum(part.cpu_seconds for part in parts),
        requests=sum(part.requests for part in parts),
        errors=tuple(error for part in parts for error in part.errors),
    )


async def find_objects(store: ObjectStore, url: str) -> list[ObjectRecord]:
    """Returns objects below a url that are not empty, the largest first.

    It reads whole pages of the listing until there are at least 1,000.

    Raises:
        ConfigError: there is none, or the store cannot list such a url.
        StoreError: the store cannot be listed.
    """
    found: list[ObjectRecord] = []
    async for page in store.list(url):
        found += [record for record in page if record.size]
        if len(found) >= _LISTED_OBJECTS:
            break
    if not found:
        raise ConfigError(f"{url} has no object with a byte in it to measure with", field="url")
    return sorted(found, key=lambda record: -record.size)


async def measure_latency(store: ObjectStore, objects: Sequence[ObjectRecord], requests: int) -> Latency:
    """Measures the time to the first byte by `requests` small ranges, one after the other, after one that connects.

    Args:
        store: open store; the caller closes it.
        objects: objects that are not empty, at least one.
        requests: number of measured requests, at least 1.

    Raises:
        ConfigError: the options or the environment make no usable request.
        StoreError: a request failed.
    """
    walk = itertools.cycle(objects)
    first, *waits = [await _one_byte(store, next(walk)) for _ in range(requests + 1)]
    ordered = sorted(waits)
    return Latency(
        requests=requests,
        first_seconds=first,
        median_seconds=statistics.median(ordered),
        p95_seconds=ordered[min(int(0.95 * len(ordered)), len(ordered) - 1)],
        max_seconds=ordered[-1],
    )


async def measure_cell(
    store: ObjectStore, walk: Iterator[tuple[ObjectRecord, int, int]], shape: tuple[str, int, int], seconds: float
) -> Cell:
    """Keeps a number of requests in flight for a time, and counts the bytes that arrive. Unfinished ones are abandoned.

    Args:
        store: Open store; the caller closes it.
        walk: Yields the ranges to read, as `ranges` does.
        shape: Name of the client, requests in flight, and bytes of a range. All are put into the
            result, and only the second one has another effect.
        seconds: Duration.

    Raises:
        ConfigError: The options or the environment make no usable request.
        StoreError: An object is gone, the store refuses access, or more than `_Meter.MAX_ERRORS` requests failed.
    """
    client, connections, range_bytes = shape
    meter = _Meter(store, walk)
    started = time.perf_counter()
    cpu = time.process_time()
    try:
        with plain_errors():
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
                for _ in range(connections):
                    tasks.create_task(meter.read_forever())
    except TimeoutError as end:
        if isinstance(end, StoreError):
            raise
        elapsed = time.perf_counter() - started
        spent = time.process_time() - cpu
    else:
        raise AssertionError("readers end only with the time")
    return Cell(
        client=client,
        connections=connections,
        range_bytes=range_bytes,
        received_bytes=meter.received_bytes,
        seconds=elapsed,
        cpu_seconds=spent,
        requests=meter.requests,
        errors=tuple(meter.errors),
    )


# Connections of a `QuickTest`, which fill a link of 5 GB/s at 90 MB/s each. Its ranges are as long as the engine's.
QUICK_CONNECTIONS = 64
_QUICK_RANGE_BYTES = 8 * MiB
_QUICK_LATENCY_REQUESTS = 10


@dataclass(frozen=True, kw_only=True)
class QuickTest:
    """A short measurement of a link.

    Attributes:
        latency: time to the first byte.
        one: measurement with one connection.
        many: measurement with `QUICK_CONNECTIONS`.
    """

    latency: Latency
    one: Cell
    many: Cell


async def measure_link(store: ObjectStore, objects: Sequence[ObjectRecord], seconds: float) -> QuickTest:
    """Measures the latency by ten requests after a first one, then the rate for `seconds` with one connection and many.

    Raises:
        ConfigError, StoreError: see `measure_latency` and `measure_cell`.
    """
    latency = await measure_latency(store, objects, _QUICK_LATENCY_REQUESTS)
    one, many = [
        await measure_cell(
            store, ranges(objects, _QUICK_RANGE_BYTES), ("auto", connections, _QUICK_RANGE_BYTES), seconds
        )
        for connections in (1, QUICK_CONNECTIONS)
    ]
    return QuickTest(latency=latency, one=one, many=many)


class _Meter:
    """Reads ranges for one cell, by several tasks, and counts what they receive.

    Args:
        store: open store.
        walk: yields the ranges to read; shared by all tasks.

    Attributes:
        received_bytes: bytes that arrived.
        requests: requests that were begun.
        errors: name of the error's class for each failed request.
    """

    # More errors end the measurement: a store that refuses everything is not asked ten thousand times.
    MAX_ERRORS = 100

    def __init__(self, store: ObjectStore, walk: Iterator[tuple[ObjectRecord, int, int]]) -> None:
        self._store = store
        self._walk = walk
        self.received_bytes = 0
        self.requests = 0
        self.errors: list[str] = []

    async def read_forever(self) -> None:
        """Requests range after range until it is cancelled. Raises as `measure_cell` does."""
        while True:
            target, start, stop = next(self._walk)
            self.requests += 1
            try:
                await self._store.get(Get(target, start, stop), self._count)
            except (ObjectNotFoundError, PermissionError):
                raise
            except StoreError as error:
                self.errors.append(type(error).__name__)
                if len(self.errors) > self.MAX_ERRORS:
                    raise
            # Else a store that answers at once (a local file) would never let the loop run.
            await asyncio.sleep(0)

    def _count(self, piece: bytes | memoryview) -> None:
        self.received_bytes += len(piece)


async def _one_byte(store: ObjectStore, target: ObjectRecord) -> float:
    """Returns the seconds until the first bytes of a small range arrive."""
    started = time.perf_counter()
    moments: list[float] = []
    await store.get(Get(target, 0, min(_PROBE_BYTES, target.size)), lambda piece: moments.append(time.perf_counter()))
    return moments[0] - started
