"""Which cause is behind the waiting, and what to do about it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

import msgspec

from streamer.loader.stall import causes
from streamer.loader.stall.stats import EngineView

# Less waiting than this is not worth anybody's time: 1 hour in 50.
NOT_BOUND_SHARE = 0.02


class Bottleneck(StrEnum):
    """The stage that limits the training."""

    NOTHING = "nothing measured"
    NOT_BOUND = "not input-bound"
    THROTTLED = "the store throttles"
    STORE = "slow store"
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
    """One worker, or single samples, far slower than the rest.

    Attributes:
        kind: which of both. number: of the worker, or the sample's ordinal.
        seconds: per batch, or of the sample. times: the batch's time in medians of the others.
    """

    kind: Literal["worker", "sample"]
    number: int
    seconds: float
    times: float


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What a bottleneck is made from.

    Attributes:
        share: of the time that was waiting. seconds: waiting and steps.
        waiting: seconds by cause.
        straggler: see `Straggler`.
        workers, cores: how many.
        engine_before, engine: the engine's view at both ends.
    """

    share: float
    seconds: float
    waiting: Mapping[str, float]
    straggler: Straggler | None
    workers: int
    cores: int
    engine_before: EngineView | None
    engine: EngineView | None

    def grown(self, name: str) -> float:
        """What an engine's counter grew by, since its start where nobody looked before or it was replaced."""
        after, before = (getattr(view or EngineView(), name) for view in (self.engine, self.engine_before))
        return float(after - before if after >= before else after)


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
    """The one thing to look at first."""
    if found.seconds <= 0:
        return Bottleneck.NOTHING
    if found.share < NOT_BOUND_SHARE:
        return Bottleneck.NOT_BOUND
    worker = sum(found.waiting.get(cause, 0.0) for cause in _IN_WORKER)
    outside = max(_OUTSIDE, key=lambda cause: found.waiting.get(cause, 0.0))
    largest = found.waiting.get(outside, 0.0)
    if found.straggler is not None and outside == causes.WINDOW and worker > 0:
        # Behind a straggler the window fills up: what was not begun meanwhile is its doing, too.
        worker += largest
    if worker < largest:
        return _network(found) if outside == causes.NETWORK else _OUTSIDE[outside]
    return _in_worker(found)


def _in_worker(found: Findings) -> Bottleneck:
    stages = {cause: found.waiting.get(cause, 0.0) for cause in _IN_WORKER}
    largest = max(stages, key=lambda cause: stages[cause])
    if found.straggler is not None:
        return Bottleneck.SLOW_WORKER if found.straggler.kind == "worker" else Bottleneck.SLOW_SAMPLE
    return Bottleneck.NO_WORKERS if found.workers == 0 else _IN_WORKER[largest]


def _network(found: Findings) -> Bottleneck:
    """Chunks that are not local: the store, or the SSD that they are written to, or no room there."""
    if found.engine is None:
        return Bottleneck.STORE
    if found.grown("throttled") > 0:
        return Bottleneck.THROTTLED
    if found.engine.in_flight == 0:
        return Bottleneck.CACHE_DISK if found.engine.fetches else Bottleneck.CACHE_ROOM
    return Bottleneck.STORE


def advise(bottleneck: Bottleneck, found: Findings) -> str:
    """What to do about it, in a line; "" when there is nothing to do."""
    if bottleneck in _WORKER_ADVICE:
        return f"{more_workers(found)}{_WORKER_ADVICE[bottleneck]}"
    if bottleneck is Bottleneck.STORE:
        return f"chunks come too late{_engine(found)}; {_ADVICE[bottleneck]}"
    if found.straggler is not None and bottleneck in (Bottleneck.SLOW_WORKER, Bottleneck.SLOW_SAMPLE):
        return _about(found.straggler)
    return _ADVICE.get(bottleneck, "")


def more_workers(found: Findings) -> str:
    """How many workers would make the waiting vanish, if the cores are there."""
    needed = math.ceil(found.workers / max(1.0 - found.share, 1 / 16))
    more = min(needed, found.cores) - found.workers
    if more < 1:
        return f"{found.workers} workers keep all {found.cores} cores busy: " if found.workers >= found.cores else ""
    return f"{more} more worker{'s' if more > 1 else ''} (num_workers={found.workers + more}) or "


def _about(straggler: Straggler) -> str:
    if straggler.kind == "worker":
        return (
            f"worker {straggler.number} takes {straggler.seconds * 1e3:.3g} ms a batch, {straggler.times:.1f} times as "
            "long as the others: look what else runs on its core, and at what its process alone does"
        )
    return (
        f"sample {straggler.number} took {straggler.seconds * 1e3:.3g} ms, its batch {straggler.times:.1f} times the "
        "median: shrink such samples beforehand, or raise prefetch_batches to hide them"
    )


def _engine(found: Findings) -> str:
    needs, hits = found.grown("needs"), found.grown("hits")
    if found.engine is None or needs <= 0:
        return ""
    rate = found.grown("store_bytes") / found.seconds / 1e6
    return f" ({rate:.3g} MB/s from the store, {hits / needs:.0%} hits, at most {found.engine.hit_bound:.0%} possible)"


_WORKER_ADVICE = {
    Bottleneck.SSD: "a faster cache disk (NVMe), less else on it, or more memory for its pages",
    Bottleneck.DECODE: "smaller images, scaled decoding, or a format that decodes faster",
    Bottleneck.TRANSFORM: "a cheaper transform, or part of it on the device (device_transform)",
    Bottleneck.LOAD: "cheaper samples: measure read, decode and transform of one",
    Bottleneck.COLLATE: "a cheaper collate_fn, or arrays instead of many small objects",
    Bottleneck.WRITE: "smaller samples (uint8 instead of float32): memory bandwidth is the limit",
}
_ADVICE = {
    Bottleneck.NO_WORKERS: "everything happens in the trainer's own time: set num_workers to the cores of this rank",
    Bottleneck.THROTTLED: "the store answers 'slow down': spread the data over more prefixes, or raise its limits; a "
    "larger cache asks it for less",
    Bottleneck.STORE: "a larger cache, a store that is nearer, or fewer bytes per sample",
    Bottleneck.CACHE_DISK: "chunks are here and wait for the disk: put the cache on NVMe, or keep others off it",
    Bottleneck.CACHE_ROOM: "the engine may not fetch: raise cache_bytes, or lower shuffle_window and prefetch_batches",
    Bottleneck.RING: "the trainer keeps batches: clone() what outlives the step, or raise ring_bytes",
    Bottleneck.WINDOW: "workers stand idle: raise prefetch_batches",
    Bottleneck.START: "gone after the first batches; lighter imports in transform and collate_fn make it shorter",
    Bottleneck.LOST: "see the log for why workers end: memory (OOM killer), or code that crashes on a sample",
    Bottleneck.HANDOFF: "batches are made and wait for the trainer's thread: other threads hold the GIL, or a batch has "
    "very many small tensors",
    Bottleneck.DEVICE: "pin=True, fewer or smaller tensors (uint8, normalise on the device), a cheaper device_transform",
}
