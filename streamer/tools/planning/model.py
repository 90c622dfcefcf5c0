"""The inputs and the results of a plan. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

# The stall report's bound: below it, the data is not what limits the training.
WAITING_BOUND = 0.02


@dataclass(frozen=True, kw_only=True)
class Link:
    """The link from the store to one node.

    Attributes:
        bytes_per_second: rate of all connections together.
        first_byte_seconds: time to the first byte of a request on an open connection.
        connection_bytes_per_second: rate of one connection.
        requests: most requests that one node has in flight.
    """

    bytes_per_second: float
    first_byte_seconds: float = 0.03
    connection_bytes_per_second: float = 90e6
    requests: int = 256


@dataclass(frozen=True, kw_only=True)
class EngineCost:
    """CPU seconds that an engine takes for what it fetches: on its loop's core, or shared with fetch processes.

    Attributes:
        byte_seconds: time for a byte that is fetched and published, checksum and file included.
        request_seconds: the same for each request.
        loop_byte_seconds: time of the loop for a byte that a process fetches.
        loop_request_seconds: the same for each request.
        fetch_processes: number of processes; 0: the loop fetches itself.
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
        """Returns the time that the busiest core takes for so many bytes and requests."""
        fetching = size_bytes * self.byte_seconds + requests * self.request_seconds
        if not self.fetch_processes:
            return fetching
        loop = size_bytes * self.loop_byte_seconds + requests * self.loop_request_seconds
        return max(loop, fetching / self.fetch_processes)


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """The training job.

    Attributes:
        nodes, ranks_per_node: their product is the number of ranks, which step together.
        step_seconds: duration of the training step without waiting.
        sample_seconds: time in which a worker reads, decodes and transforms one sample.
        epochs: number of epochs; the first one begins with an empty cache.
        seed, shuffle: see `StreamingDataset`.
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
    """A job, the cache of each of its nodes, and their links."""

    job: TrainingJob
    link: Link
    cache_bytes: int
    engine: EngineCost = field(default_factory=EngineCost)


@dataclass(frozen=True, kw_only=True)
class Prices:
    """The prices of the store in USD.

    Attributes:
        per_gb: price of 10^9 bytes that leave it; 0 within a region.
        per_million_gets: price of 10^6 GETs; 0.40 for S3 standard, us-east-1, 2025.
    """

    per_gb: float = 0.0
    per_million_gets: float = 0.4


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """One epoch of all nodes.

    Attributes:
        hit_share: share of the needed bytes that were not fetched for this use.
        seconds: duration; of the first epoch, from the first batch on.
        waiting_share: share of this time spent waiting for data, except for the first batch of the job.
        of_joins: bytes and requests for the rows of each joined dataset, which are among those of the epoch.
    """

    fetched_bytes: int
    requests: int
    hit_share: float
    seconds: float
    waiting_share: float
    of_joins: tuple[tuple[int, int], ...] = ()

    def price(self, prices: Prices) -> float:
        """Returns the price in USD."""
        return self.fetched_bytes / 1e9 * prices.per_gb + self.requests / 1e6 * prices.per_million_gets


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A simulated job.

    Attributes:
        first_batch_seconds: time from the start of the engine to the first batch on all ranks.
        epochs: the epochs in order; later ones are like the last one.
        ahead_bytes, ahead_requests: bytes and requests by the end of the last epoch for the one after it.
    """

    first_batch_seconds: float
    epochs: tuple[EpochPlan, ...]
    ahead_bytes: int = 0
    ahead_requests: int = 0
