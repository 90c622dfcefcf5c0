"""Finds the bottleneck from the waiting by cause, and what to do about it. No I/O, no clock.

`report.py` calls it, and `reporter.py` compares bottlenecks. The words of `Bottleneck` are also in `wire/messages.py`,
for /metrics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

import msgspec

from streamer.batches import causes
from streamer.config import counted
from streamer.loader.stall.stats import EngineView, GrowingStats

# A smaller share of waiting is not worth the effort: 1 hour in 50.
NOT_BOUND_SHARE = 0.02
# If recoders have work for this share of the time or more, chunks wait for them.
_BUSY_RECODERS = 0.75
# If the engine's loop takes this share of a core or more, of which it has one at most, chunks wait for it.
_BUSY_LOOP = 0.75
# Retries are mentioned if they are at least 1 in so many requests; fewer are usual.
_RETRIED_PART = 20
# A worker is taken to keep at least this share of a core busy, even if it waits for something in its transform.
_LEAST_BUSY_SHARE = 0.05
# The advised `reuse` is larger by this factor than what the trainer reads, so that the samples in use grow to the whole
# cache, in about three times the time in which the link fills a cache (simulated, benchmarks/growing.py).
_SURPLUS = 1.25


class Bottleneck(StrEnum):
    """Names the stage that limits the training; the values are the words of reports."""

    NOTHING = "nothing measured"
    NOT_BOUND = "not input-bound"
    THROTTLED = "the store throttles"
    STORE = "slow store"
    PEERS = "slow peers"
    RECODING = "recoding"
    ENGINE_LOOP = "the engine's loop"
    CACHE_DISK = "slow SSD (writing)"
    CACHE_ROOM = "no room in the cache"
    SSD = "slow SSD (reading)"
    DECODE = "decode"
    TRANSFORM = "transform"
    LOAD = "loading"
    COLLATE = "collate"
    WRITE = "copy into the ring"
    NO_WORKERS = "no workers"
    SLOW_WORKER = "one slow worker"
    SLOW_SAMPLE = "single slow samples"
    RING = "full ring"
    WINDOW = "prefetch_batches"
    START = "starting workers"
    LOST = "crashing workers"
    HANDOFF = "handoff"
    DEVICE = "copy to the device"


class Straggler(msgspec.Struct, frozen=True):
    """Names one worker, or the slowest of single samples, that is far slower than the rest.

    Attributes:
        kind: Whether it is a worker or a sample.
        number: Number of the worker, or code of the sample.
        seconds: Median time of a batch of the worker, or time of the sample.
        times: Median time of a batch of the worker, divided by that of the other workers; or time of the batch of the
            sample, divided by the median time of all batches.
    """

    kind: Literal["worker", "sample"]
    number: int
    seconds: float
    times: float


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what was measured between two snapshots, the input of the diagnosis.

    Attributes:
        share: Share of the time spent waiting, 0 to 1.
        seconds: Time of waiting and of steps together.
        waiting: Seconds of waiting by cause.
        straggler: The straggler, or None if there is none.
        workers, cores: Number of workers, and of cores.
        idle_cores: Mean number of cores without work, or None if it is unknown: each worker is then taken to keep one
            busy.
        engine_before, engine: Statistics of the engine at the start and at the end of the interval, or None.
    """

    share: float
    seconds: float
    waiting: Mapping[str, float]
    straggler: Straggler | None
    workers: int
    cores: int
    idle_cores: float | None
    engine_before: EngineView | None
    engine: EngineView | None

    def increase(self, name: str) -> float:
        """Returns by how much a counter of the engine has grown, by its name; of a new engine its whole value."""
        after = getattr(self.engine or EngineView(), name)
        before = getattr(self.engine_before or EngineView(), name)
        return float(after - before if after >= before else after)

    @property
    def engine_seconds(self) -> float:
        """Time in which the engine's counters have grown, by its own clock; `seconds` if the engine does not say it.

        The trainer's `seconds` may be less: a step counts when it ends.
        """
        return self.increase("uptime_seconds") or self.seconds

    @property
    def recoders_share(self) -> float:
        """Share of the time in which recoders had work, 0 to 1, over as many as there may be."""
        limit = 0 if self.engine is None else self.engine.most_recoders
        if not limit or self.engine_seconds <= 0:
            return 0.0
        return min(1.0, self.increase("recode_busy_seconds") / (self.engine_seconds * limit))

    @property
    def loop_share(self) -> float:
        """Share of a core that the engine's loop took, 0 to 1."""
        seconds = self.engine_seconds
        return min(1.0, self.increase("loop_cpu_seconds") / seconds) if seconds > 0 else 0.0


# The bottleneck for each cause of waiting in a worker, and for each other cause.
_IN_WORKER = {
    causes.READ: Bottleneck.SSD,
    causes.DECODE: Bottleneck.DECODE,
    causes.TRANSFORM: Bottleneck.TRANSFORM,
    causes.LOAD: Bottleneck.LOAD,
    causes.COLLATE: Bottleneck.COLLATE,
    causes.WRITE: Bottleneck.WRITE,
    causes.WORK: Bottleneck.LOAD,
}
_OUTSIDE = {
    causes.NETWORK: Bottleneck.STORE,
    causes.RING: Bottleneck.RING,
    causes.WINDOW: Bottleneck.WINDOW,
    causes.START: Bottleneck.START,
    causes.LOST: Bottleneck.LOST,
    causes.HANDOFF: Bottleneck.HANDOFF,
    causes.DEVICE: Bottleneck.DEVICE,
}


def diagnose(found: Findings) -> Bottleneck:
    """Returns the bottleneck: the stage that most of the waiting is charged to, or the straggler in it."""
    if found.seconds <= 0:
        return Bottleneck.NOTHING
    if found.share < NOT_BOUND_SHARE:
        return Bottleneck.NOT_BOUND
    worker = sum(found.waiting.get(cause, 0.0) for cause in _IN_WORKER)
    outside = max(_OUTSIDE, key=lambda cause: found.waiting.get(cause, 0.0))
    largest = found.waiting.get(outside, 0.0)
    if found.straggler is not None and outside == causes.WINDOW and worker > 0:
        # A straggler fills the window: the batches that could not begin meanwhile are charged to it as well.
        worker += largest
    if worker < largest:
        return _diagnose_network(found) if outside == causes.NETWORK else _OUTSIDE[outside]
    if found.straggler is not None:
        return Bottleneck.SLOW_WORKER if found.straggler.kind == "worker" else Bottleneck.SLOW_SAMPLE
    if found.workers == 0:
        return Bottleneck.NO_WORKERS
    return _IN_WORKER[max(_IN_WORKER, key=lambda cause: found.waiting.get(cause, 0.0))]


def _diagnose_network(found: Findings) -> Bottleneck:
    """Returns why chunks are not local: store, peers or recoders, the SSD that they are written to, or its space."""
    if found.engine is None:
        return Bottleneck.STORE
    if found.increase("throttled") > 0:
        return Bottleneck.THROTTLED
    if found.recoders_share >= _BUSY_RECODERS:
        return Bottleneck.RECODING
    if found.loop_share >= _BUSY_LOOP:
        return Bottleneck.ENGINE_LOOP
    if found.increase("peer_bytes") > found.increase("store_bytes"):
        return Bottleneck.PEERS
    # The store is not waited for if no request is in flight, unless requests fail and are tried again.
    if found.engine.in_flight == 0 and found.increase("retries") == 0:
        return Bottleneck.CACHE_DISK if found.engine.fetches else Bottleneck.CACHE_ROOM
    return Bottleneck.STORE


def advise(bottleneck: Bottleneck, found: Findings) -> str:
    """Returns the advice, in one line, or "" if there is nothing to do."""
    if bottleneck in _WORKER_ADVICE:
        return f"{more_workers(found)}{_WORKER_ADVICE[bottleneck]}"
    if bottleneck is Bottleneck.STORE:
        rates = ""
        needs = found.increase("needs")
        if found.engine is not None and needs > 0:
            rate = found.increase("store_bytes") / found.engine_seconds / 1e6
            hits = found.increase("hits") / needs
            rates = f" ({rate:.3g} MB/s from the store, {hits:.0%} hits, at most {found.engine.hit_bound:.0%} possible)"
        failures = ""
        retries = int(found.increase("retries"))
        # Requests that fail now and then are not mentioned.
        if retries and retries * _RETRIED_PART >= found.increase("store_requests"):
            counts = counted(retries, "requests")
            failures = f"{counts} failed and were sent again: the log has the store's answers; otherwise "
        return f"chunks come too late{rates}; {failures}{_ADVICE[bottleneck]}"
    if bottleneck is Bottleneck.PEERS:
        rate = found.increase("peer_bytes") / found.seconds / 1e6
        return f"chunks come too late ({rate:.3g} MB/s from peers); {_ADVICE[bottleneck]}"
    if bottleneck is Bottleneck.RECODING and found.engine is not None:
        count = counted(found.engine.most_recoders, "recoders")
        return f"{count}, busy {found.recoders_share:.0%}; {_ADVICE[bottleneck]}"
    if bottleneck is Bottleneck.ENGINE_LOOP and found.engine is not None:
        count = counted(found.engine.fetch_processes, "fetch processes")
        return f"{found.loop_share:.0%} of a core, {count}; {_ADVICE[bottleneck]}"
    if found.straggler is not None and bottleneck in (Bottleneck.SLOW_WORKER, Bottleneck.SLOW_SAMPLE):
        slow = found.straggler
        if slow.kind == "worker":
            return (
                f"worker {slow.number} takes {slow.seconds * 1e3:.3g} ms a batch, {slow.times:.1f} times as long as "
                "the others: check what else runs on its core, and what only its process does"
            )
        return (
            f"sample {slow.number} took {slow.seconds * 1e3:.3g} ms, its batch {slow.times:.1f} times the median: "
            "shrink such samples in advance, or raise prefetch_batches to hide them"
        )
    return _ADVICE.get(bottleneck, "")


def more_workers(found: Findings) -> str:
    """Returns the begin of an advice: how many more workers would remove the waiting, as far as cores are idle."""
    idle = max(0, found.cores - found.workers) if found.idle_cores is None else found.idle_cores
    # All work on the cores counts as that of the workers, also that of other programs. The advice at most doubles the
    # workers, or gives each core one.
    busy = max((found.cores - idle) / max(found.workers, 1), _LEAST_BUSY_SHARE)
    room = int(idle / min(busy, 1.0) + 0.25)
    needed = math.ceil(found.workers / max(1.0 - found.share, 1 / 16)) - found.workers
    more = min(needed, room, max(found.workers, found.cores - found.workers))
    cores = f"{found.cores} core{'s' if found.cores > 1 else ''}"
    if more < 1:
        return f"no core is idle ({found.workers} worker{'s' if found.workers > 1 else ''}, {cores}): "
    idle_text = f"{idle:.1f} of {cores} idle"
    return f"{more} more worker{'s' if more > 1 else ''} (num_workers={found.workers + more}; {idle_text}) or "


_WORKER_ADVICE = {
    Bottleneck.SSD: "a faster cache disk (NVMe), less other load on it, or more memory for the page cache",
    Bottleneck.DECODE: "smaller images, scaled decoding, or a format that decodes faster",
    Bottleneck.TRANSFORM: "a cheaper transform, or part of it on the device (device_transform)",
    Bottleneck.LOAD: "cheaper samples: measure read, decode and transform of one",
    Bottleneck.COLLATE: "a cheaper collate_fn, or arrays instead of many small objects",
    Bottleneck.WRITE: "smaller samples (uint8 instead of float32): memory bandwidth is the limit",
}
_ADVICE = {
    Bottleneck.NO_WORKERS: "the trainer's thread makes the batches itself: set num_workers to the cores of this rank",
    Bottleneck.THROTTLED: "the store answers 'slow down': spread the data over more prefixes, or raise its limits; a "
    "larger cache needs fewer requests",
    Bottleneck.STORE: "a larger cache, a nearer store, or fewer bytes per sample",
    Bottleneck.PEERS: "streamer top shows the slow ones; a faster network between the nodes, more [peers] sends, or "
    "larger caches",
    Bottleneck.RECODING: "the engine may take a quarter of the cores: give the job more of them, a larger cache, which "
    "keeps what was recoded, or data that is not compressed as a whole (tars, or shards without compression)",
    Bottleneck.ENGINE_LOOP: "raise fetch_processes where cores are idle; larger chunks (streamer index --chunk-bytes) "
    "cost the loop less",
    Bottleneck.CACHE_DISK: "chunks wait to be written: put the cache on NVMe, or reduce other load on the disk",
    Bottleneck.CACHE_ROOM: "the engine may not fetch: raise cache_bytes, or lower shuffle_window and prefetch_batches",
    Bottleneck.RING: "the trainer keeps batches: clone() what outlives the step, or raise ring_bytes",
    Bottleneck.WINDOW: "workers are idle: raise prefetch_batches",
    Bottleneck.START: "workers are still starting, which ends after the first batches; fewer imports in transform and "
    "collate_fn shorten it",
    Bottleneck.LOST: "see the log for why workers end: memory (OOM killer), or code that crashes on a sample",
    Bottleneck.HANDOFF: "finished batches wait for the trainer's thread: other threads hold the GIL, or a batch has "
    "very many small tensors",
    Bottleneck.DEVICE: "pin_memory='required', fewer or smaller tensors (uint8, normalised on the device), a cheaper "
    "device_transform",
}


def advise_growth(
    growing: GrowingStats, *, samples_per_second: float, store_bytes_per_second: float, cache_bytes: int, waits: bool
) -> str:
    """Returns a sentence on what to change, with the measured rates, or "" if nothing is to be changed or was measured.

    Args:
        growing: Statistics of the dataset.
        samples_per_second: Samples that the trainer of one rank reads while it does not wait.
        store_bytes_per_second: Bytes that the engine of this machine receives from the store.
        cache_bytes: Limit of the engine's cache.
        waits: Whether the trainer waits for chunks from the store.
    """
    trained = samples_per_second * growing.sample_bytes * growing.ranks
    brought = store_bytes_per_second * growing.nodes
    if not trained or not brought:
        return ""
    cached = min(1.0, cache_bytes * growing.nodes / max(1, growing.data_bytes))
    figures = f"the trainer reads {trained / 1e6:.3g} MB/s, the link brings {brought / 1e6:.3g} MB/s"
    # Epochs without growing= would find nothing in the cache, either, before the end of the first pass.
    if brought >= trained * (1.0 - cached if growing.passes >= 1 else 1.0):
        return f"{figures} and the cache holds {cached:.0%} of the data: without growing= no epoch would wait"
    needed = math.ceil(_SURPLUS * trained / brought)
    if waits and needed > growing.reuse:
        return f"{figures}: Growing(reuse={needed}) instead of {growing.reuse} would not wait"
    return ""
