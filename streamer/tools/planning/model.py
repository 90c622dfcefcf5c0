"""Defines the inputs and the results of a simulated job, as plain values.

Used by `tools/plan_command.py`, `simulate.py` and `search.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# A job that waits for a smaller share of its time is not limited by its data, as in the stall report.
WAITING_BOUND = 0.02


@dataclass(frozen=True, kw_only=True)
class Link:
    """The link from the store to one node.

    Attributes:
        bytes_per_second: rate of all connections together.
        first_byte_seconds: time to the first byte of a request on an open connection.
        connection_bytes_per_second: rate of one connection.
        requests: requests that one node has in flight, at most.
    """

    bytes_per_second: float
    first_byte_seconds: float = 0.03
    connection_bytes_per_second: float = 90e6
    requests: int = 256


@dataclass(frozen=True, kw_only=True)
class EngineCost:
    """CPU seconds that an engine takes to fetch, in its loop alone or with fetch processes.

    Attributes:
        byte_seconds: time to fetch and publish a byte, with its checksum and file.
        request_seconds: time for each request, besides that for its bytes.
        loop_byte_seconds: time of the loop for a byte that a fetch process fetches.
        loop_request_seconds: time of the loop for each request of a fetch process.
        fetch_processes: number of fetch processes; with 0 the loop fetches itself.
    """

    # benchmarks/results/fetch-bulk-2026-11-22.txt and fetch-small-2026-11-22.txt: 1,029 MB/s in ranges of 8 MiB and
    # 638 MB/s in objects of 100 KB, into files; the server ran on the same two cores.
    byte_seconds: float = 0.96e-9
    request_seconds: float = 61e-6
    # benchmarks/results/scaleup-2026-11-26.txt, 4 processes: .193 s/GB of tars, 25.4 us an object of 110 KB.
    loop_byte_seconds: float = 0.193e-9
    loop_request_seconds: float = 4e-6
    fetch_processes: int = 0

    def seconds(self, size_bytes: float, requests: int) -> float:
        """Returns the seconds that the busiest core takes to fetch so many bytes with so many requests."""
        fetching = size_bytes * self.byte_seconds + requests * self.request_seconds
        if not self.fetch_processes:
            return fetching
        loop = size_bytes * self.loop_byte_seconds + requests * self.loop_request_seconds
        return max(loop, fetching / self.fetch_processes)


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """A training job, whose ranks step together.

    Attributes:
        nodes: number of machines, each with a cache and a link.
        ranks_per_node: number of ranks on each of them.
        batch_size: samples of a batch on one rank.
        step_seconds: duration of a training step whose batch is there.
        workers: workers of each rank.
        sample_seconds: time in which a worker reads, decodes and transforms one sample.
        epochs: number of epochs; the first one begins with an empty cache.
        seed: seed of the order.
        shuffle: whether the samples are shuffled.
    """

    nodes: int = 1
    ranks_per_node: int = 1
    batch_size: int
    step_seconds: float
    workers: int = 4
    sample_seconds: float = 0.0
    epochs: int = 3
    seed: int = 17
    shuffle: bool = True


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The inputs of a simulation: a job, and for each of its nodes the link, the cache and the engine's cost.

    Attributes:
        job: the job.
        link: link of each node.
        cache_bytes: limit of each node's cache.
        engine: cost of each node's engine.
    """

    job: TrainingJob
    link: Link
    cache_bytes: int
    engine: EngineCost = field(default_factory=EngineCost)


@dataclass(frozen=True, kw_only=True)
class Prices:
    """The prices of the store in USD.

    Attributes:
        per_gb: price of 10^9 bytes that leave the store; 0 within a region.
        per_million_gets: price of 10^6 GETs; 0.40 for S3 standard, us-east-1, 2025.
    """

    per_gb: float = 0.0
    per_million_gets: float = 0.4


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """The results for one epoch, of all nodes together.

    Attributes:
        fetched_bytes: bytes from the store.
        requests: requests to the store.
        hit_share: share of hits in the needed bytes, 0 to 1.
        seconds: duration of the epoch; the first one begins with the job's first batch.
        waiting_share: share of that time in which the ranks wait for data, without the wait for the first batch.
        of_joins: bytes and requests for each joined dataset, which are also among those of the epoch.
    """

    fetched_bytes: int
    requests: int
    hit_share: float
    seconds: float
    waiting_share: float
    of_joins: tuple[tuple[int, int], ...] = ()

    def price(self, prices: Prices) -> float:
        """Returns the price of the epoch in USD."""
        return self.fetched_bytes / 1e9 * prices.per_gb + self.requests / 1e6 * prices.per_million_gets


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The results for a simulated job.

    Attributes:
        first_batch_seconds: time from a trainer's first request to its first batch.
        epochs: the epochs in order.
        ahead_bytes: bytes that are fetched before the end of the last epoch for an epoch after it.
        ahead_requests: requests for these bytes.
    """

    first_batch_seconds: float
    epochs: tuple[EpochPlan, ...]
    ahead_bytes: int = 0
    ahead_requests: int = 0
