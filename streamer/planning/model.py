"""What a plan is asked for, and what it says. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

# The stall report's bound: below it, the data is not what limits the training.
WAITING_BOUND = 0.02


@dataclass(frozen=True, kw_only=True)
class Link:
    """From the store to one node.

    Attributes:
        bytes_per_second: of all connections together.
        first_byte_seconds: of a request on an open connection.
        connection_bytes_per_second: of one connection.
        requests: that one node has in flight, at most.
    """

    bytes_per_second: float
    first_byte_seconds: float = 0.03
    connection_bytes_per_second: float = 90e6
    requests: int = 256


@dataclass(frozen=True, kw_only=True)
class EngineCost:
    """CPU seconds that an engine takes for what it fetches: on its loop's core, or shared with fetch processes.

    Attributes:
        byte_seconds: of whatever fetches and publishes, checksum and file included.
        request_seconds: of the same for each request.
        loop_byte_seconds: what a byte that a process fetches costs the loop.
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

    def seconds(self, size_bytes: float, requests: float) -> float:
        """Returns the time that the busiest core takes for so many bytes and requests."""
        fetching = size_bytes * self.byte_seconds + requests * self.request_seconds
        if not self.fetch_processes:
            return fetching
        loop = size_bytes * self.loop_byte_seconds + requests * self.loop_request_seconds
        return max(loop, fetching / self.fetch_processes)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the training does.

    Attributes:
        nodes, ranks_per_node: their product is the number of ranks, which step together.
        batch_size: samples of one rank's batch.
        step_seconds: of the training step, data at hand.
        workers: of each rank.
        sample_seconds: that a worker takes to read, decode and transform one sample.
        epochs: to simulate; the first one begins with an empty cache.
        seed, shuffle: of the order.
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

    job: Job
    link: Link
    cache_bytes: int
    engine: EngineCost = field(default_factory=EngineCost)


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What the store charges.

    Attributes:
        per_gb: for 10^9 bytes that leave it; 0 within a region.
        per_million_gets: S3 standard, us-east-1, 2025: 0.40 USD.
    """

    per_gb: float = 0.0
    per_million_gets: float = 0.4


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """One epoch of all nodes.

    Attributes:
        fetched_bytes, requests: from the store.
        hit_share: of the needed bytes, those that were not fetched for this use.
        seconds: of the epoch; of the first one, from the first batch on.
        waiting_share: of them, waiting for data; without the first batch of the job.
    """

    fetched_bytes: int
    requests: int
    hit_share: float
    seconds: float
    waiting_share: float

    def price(self, prices: Prices) -> float:
        """What the store charges for it."""
        return self.fetched_bytes / 1e9 * prices.per_gb + self.requests / 1e6 * prices.per_million_gets


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A simulated job.

    Attributes:
        first_batch_seconds: from the start of the engine to the first batch on all ranks.
        epochs: in order; the last one shows how the job goes on.
        ahead_bytes, ahead_requests: fetched by the end of the last epoch for the one after it.
    """

    first_batch_seconds: float
    epochs: tuple[EpochPlan, ...]
    ahead_bytes: int = 0
    ahead_requests: int = 0
