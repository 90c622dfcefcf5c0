"""The stall report: from two snapshots of a loader to one bottleneck. Pure: no clock, no thread, no engine."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap

from streamer.batches import causes
from streamer.batches.causes import BatchTiming, Tail
from streamer.loader.stall.advice import Bottleneck, Findings, Straggler, advise, diagnose
from streamer.loader.stall.growth import sentence
from streamer.loader.stall.stats import EngineView, LoaderStats, PackingStats, quantile

# A batch is slow if it takes this many times the median of the others; natural images of random sizes stay below.
_SLOW_BATCH = 3.0
# A worker is slow if its batches take this many times as long as those of the others.
_SLOW_WORKER = 2.0
# From this share of the workers' waiting on, a straggler is the bottleneck.
_STRAGGLER_SHARE = 0.5
# The trainer waits for what the store has not sent.
_ON_STORE = (Bottleneck.STORE, Bottleneck.THROTTLED)
# With fewer batches there is nothing to compare with.
_FEWEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A loader at one moment. All values only grow: the difference of two snapshots covers the time between.

    Attributes:
        stats: the counts.
        waits, steps: nanoseconds of the last batches, from a request to its batch, and from there to the next request.
        timings: the workers' times of the last batches.
        ongoing: the current wait, nanoseconds by cause.
        workers: number of batches made at the same time; 0: the trainer makes its batches itself.
        cores: usable by this process.
        at: seconds of the monotonic clock. idle_core_seconds: unused CPU time until then; None: unknown.
    """

    stats: LoaderStats = field(default_factory=LoaderStats)
    waits: Tail[int] = field(default_factory=Tail)
    steps: Tail[int] = field(default_factory=Tail)
    timings: Tail[BatchTiming] = field(default_factory=Tail)
    ongoing: Mapping[str, int] = field(default_factory=dict)
    workers: int = 0
    cores: int = 1
    at: float = 0.0
    idle_core_seconds: float | None = None

    def idle_cores(self, before: Snapshot) -> float | None:
        """Returns the mean number of cores without work since another snapshot, or None if it is unknown."""
        if self.idle_core_seconds is None or before.idle_core_seconds is None or self.at <= before.at:
            return None
        idle = (self.idle_core_seconds - before.idle_core_seconds) / (self.at - before.at)
        return min(max(idle, 0.0), float(self.cores))

    def seconds(self, cause: str) -> float:
        """The waiting charged to a cause so far."""
        return self.stats.waiting.get(cause, 0.0) + self.ongoing.get(cause, 0) / 1e9


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds of many batches. Median and 99th percentile are of the last 4,096 of them at most."""

    sum: float = 0.0
    mean: float = 0.0
    median: float = 0.0
    p99: float = 0.0

    @classmethod
    def of(cls, total: float, nanoseconds: Sequence[int], batches: int) -> Spread:
        """The spread of batches that took `total` seconds together."""
        ordered = sorted(nanoseconds)
        return cls(total, total / max(batches, 1), quantile(ordered, 0.5) / 1e9, quantile(ordered, 0.99) / 1e9)

    def __str__(self) -> str:
        mean, median, p99 = (f"{seconds * 1e3:.3g}" for seconds in (self.mean, self.median, self.p99))
        return f"{self.sum:.3g} s (mean {mean}, median {median}, p99 {p99} ms)"


@dataclass(frozen=True, slots=True)
class SlowWorker:
    """The worker with the longest batches: its number, their median and that of the others' batches, in seconds."""

    number: int
    seconds: float
    others_seconds: float


@dataclass(frozen=True, slots=True)
class SlowSample:
    """The sample that took longest: its ordinal, its name if known, and seconds."""

    ordinal: int
    seconds: float
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name or f'#{self.ordinal}'} {self.seconds * 1e3:.3g} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class StallReport:
    """The difference of two snapshots.

    Attributes:
        batches, samples: delivered.
        waiting_seconds: the trainer waited for a batch, or for its handoff.
        wait, step: waiting and computing per batch.
        share: of the trainer's time spent waiting, 0 to 1.
        waiting: cause -> share of the waiting, the largest first.
        bottleneck: the stage that limits the training. advice: against it.
        slowest_worker, slowest_sample: None: unknown.
        ring_slots, ring_free: of the ring, now. occupancy: mean number of batches ready at a request.
        spilled, respawns, rereads: in this time.
        engine: the engine's current view; None: not requested, or no answer.
        hit_share: hits as a share of the uses of chunks, in this time.
        growing: of a growing dataset: what the measured rates ask for; "": no change.
        packing: of the rows that were made in this time; None: none.
    """

    batches: int = 0
    samples: int = 0
    waiting_seconds: float = 0.0
    wait: Spread = Spread()
    step: Spread = Spread()
    share: float = 0.0
    waiting: Mapping[str, float] = field(default_factory=dict)
    bottleneck: Bottleneck = Bottleneck.NOTHING
    advice: str = ""
    slowest_worker: SlowWorker | None = None
    slowest_sample: SlowSample | None = None
    ring_slots: int = 0
    ring_free: int = 0
    occupancy: float = 0.0
    spilled: int = 0
    respawns: int = 0
    rereads: int = 0
    engine: EngineView | None = None
    hit_share: float = 0.0
    growing: str = ""
    packing: PackingStats | None = None

    @property
    def headline(self) -> str:
        """The bottleneck with its figures and advice."""
        if self.bottleneck in (Bottleneck.NOTHING, Bottleneck.NOT_BOUND):
            return f"{self.bottleneck}: {self.share:.1%} waiting"
        largest = ", ".join(f"{cause} {share:.0%}" for cause, share in list(self.waiting.items())[:2])
        return f"input-bound ({self.share:.0%} waiting): {self.bottleneck}, {largest}; {self.advice}"

    def __str__(self) -> str:
        """Returns one line, for the log."""
        slow = [f"slowest worker {w.number}: {w.seconds * 1e3:.3g} ms a batch" for w in (self.slowest_worker,) if w]
        slow += [f"slowest sample {sample}" for sample in (self.slowest_sample,) if sample]
        parts = [
            self.headline,
            f"{self.batches} batches",
            f"waiting {self.wait}",
            f"step {self.step}",
            *slow,
            f"ready {self.occupancy:.1f}",
            f"ring {self.ring_free} of {self.ring_slots} free",
            f"spilled {self.spilled}, respawned {self.respawns}",
        ]
        if self.growing and self.growing not in self.advice:
            parts.append(self.growing)
        if self.packing is not None:
            parts.append(_in_words(self.packing))
        if self.engine is not None:
            parts.append(f"engine {self.hit_share:.0%} hits, {self.engine.in_flight} requests in flight")
        return " | ".join(parts)

    def scalars(self) -> dict[str, float]:
        """Returns plain numbers by name, for TensorBoard, W&B and the like."""
        return {
            "stall/share": self.share,
            "stall/wait_mean_seconds": self.wait.mean,
            "stall/wait_p99_seconds": self.wait.p99,
            "stall/step_mean_seconds": self.step.mean,
            "stall/ready_batches": self.occupancy,
            "stall/spilled": float(self.spilled),
            "stall/hit_share": self.hit_share,
            **({} if self.packing is None else _packing_scalars(self.packing)),
            **{f"stall/waiting/{cause}": share for cause, share in self.waiting.items()},
        }

    def attributes(self) -> dict[str, float | str]:
        """Returns `scalars`, bottleneck and advice by dotted names, as a structured log has them."""
        figures = {f"streamer.{name.replace('/', '.')}": value for name, value in self.scalars().items()}
        return {**figures, "streamer.stall.bottleneck": str(self.bottleneck), "streamer.stall.advice": self.advice}


def compare(before: Snapshot, after: Snapshot) -> StallReport:
    """Compares two snapshots of one loader."""
    b = before.stats
    a = after.stats
    # A wait that was ongoing at a snapshot is charged to its final cause.
    waiting = {cause: _grown(before.seconds(cause), after.seconds(cause)) for cause in (*causes.ALL, causes.WORK)}
    waited, step = sum(waiting.values()), _grown(b.step_seconds, a.step_seconds)
    batches = int(_grown(b.batches, a.batches))
    timings = after.timings.values_after(before.timings.count)
    share = waited / (waited + step) if waited + step > 0 else 0.0
    shares = {cause: seconds / waited for cause, seconds in waiting.items() if waited > 0 and seconds > 0}
    slowest = slow_worker(timings)
    hits, needs = _engine_uses(b.engine, a.engine)
    findings = Findings(
        share=share,
        seconds=waited + step,
        waiting=waiting,
        straggler=straggler(timings, slowest),
        workers=after.workers,
        cores=after.cores,
        idle_cores=after.idle_cores(before),
        engine_before=b.engine,
        engine=a.engine,
    )
    bottleneck = diagnose(findings)
    growing = _growing(findings, a, int(_grown(b.samples, a.samples)), step, waits=bottleneck in _ON_STORE)
    return StallReport(
        batches=batches,
        samples=int(_grown(b.samples, a.samples)),
        waiting_seconds=waited,
        wait=Spread.of(waited, after.waits.values_after(before.waits.count), batches),
        step=Spread.of(step, after.steps.values_after(before.steps.count), batches),
        share=share,
        waiting=dict(sorted(shares.items(), key=lambda item: -item[1])),
        bottleneck=bottleneck,
        advice=growing if growing and bottleneck in _ON_STORE else advise(bottleneck, findings),
        slowest_worker=slowest,
        slowest_sample=slow_sample(timings),
        ring_slots=a.ring_slots,
        ring_free=a.ring_free,
        occupancy=max(0.0, a.occupancy * a.batches - b.occupancy * b.batches) / max(batches, 1),
        spilled=int(_grown(b.spilled_batches, a.spilled_batches)),
        respawns=int(_grown(b.respawns, a.respawns)),
        rereads=int(_grown(b.rereads, a.rereads)),
        engine=a.engine,
        hit_share=hits / needs if needs else 0.0,
        growing=growing,
        packing=_packing(b.packing or PackingStats(), a.packing),
    )


def _packing(before: PackingStats, after: PackingStats | None) -> PackingStats | None:
    """Returns the rows that were made between two snapshots, or None if none were."""
    made = None if after is None else after.since(before)
    return made if made is not None and made.batches else None


def _in_words(packing: PackingStats) -> str:
    per_row = packing.documents / max(1, packing.rows)
    cut = f", {packing.cut / packing.documents:.1%} of them pieces" if packing.cut else ""
    full = f"{1 - packing.padding:.2%}"
    spread = f"{packing.cost_spread:.1%}"
    lost = ""
    if packing.estimated:
        tokens = packing.tokens + packing.overflowed
        lost = (
            f", {packing.overflowed / max(1, tokens):.2%} of the tokens had no room in their rows: documents have "
            f"{tokens / packing.estimated:.3f} of the estimated tokens; streamer.measure() counts them"
        )
    return f"rows {full} full, {per_row:.1f} documents each{cut}, costs of batches spread by {spread}{lost}"


def _packing_scalars(packing: PackingStats) -> dict[str, float]:
    return {
        "stall/padding": packing.padding,
        "stall/cost_spread": packing.cost_spread,
        "stall/tokens": float(packing.tokens),
        "stall/overflowed": float(packing.overflowed),
    }


def _growing(found: Findings, stats: LoaderStats, samples: int, step_seconds: float, *, waits: bool) -> str:
    """Returns what the rates of a growing dataset ask for."""
    if stats.growing is None or found.engine is None or not step_seconds:
        return ""
    return sentence(
        stats.growing,
        samples_per_second=samples / step_seconds,
        store_bytes_per_second=found.grown("store_bytes") / found.seconds,
        cache_bytes=found.engine.limit_bytes,
        waits=waits,
    )


def slow_sample(timings: Sequence[BatchTiming]) -> SlowSample | None:
    """The sample that took longest."""
    slowest = max(timings, key=lambda timing: timing.sample, default=None)
    if slowest is None or slowest.ordinal < 0:
        return None
    return SlowSample(slowest.ordinal, slowest.sample / 1e9)


def slow_worker(timings: Sequence[BatchTiming]) -> SlowWorker | None:
    """Returns the worker with the longest batches, or None if there is only one."""
    spent: defaultdict[int, list[int]] = defaultdict(list)
    for timing in timings:
        spent[timing.worker].append(timing.spent)
    if len(spent) < 2:
        return None
    slowest = max(spent, key=lambda worker: statistics.median(spent[worker]))
    others = statistics.median(each for worker, batches in spent.items() if worker != slowest for each in batches)
    return SlowWorker(slowest, statistics.median(spent[slowest]) / 1e9, others / 1e9)


def straggler(timings: Sequence[BatchTiming], slowest: SlowWorker | None) -> Straggler | None:
    """The one worker, or the single samples, that cause most of the workers' share of the waiting."""
    waited = sum(timing.waited for timing in timings)
    if len(timings) < _FEWEST or not waited:
        return None
    if slowest is not None and slowest.seconds >= _SLOW_WORKER * slowest.others_seconds:
        theirs = [timing for timing in timings if timing.worker == slowest.number]
        steady = sum(timing.spent / 1e9 >= _SLOW_WORKER * slowest.others_seconds for timing in theirs) * 2 > len(theirs)
        if steady and len(theirs) > 1 and sum(timing.waited for timing in theirs) >= _STRAGGLER_SHARE * waited:
            times = slowest.seconds / max(slowest.others_seconds, 1e-9)
            return Straggler("worker", slowest.number, slowest.seconds, times)
    return _slow_samples(timings, waited)


def _slow_samples(timings: Sequence[BatchTiming], waited: int) -> Straggler | None:
    """Batches far above the median, each because of one sample."""
    median = statistics.median(timing.spent for timing in timings)
    late = [t for t in timings if t.spent >= _SLOW_BATCH * median and t.sample >= (t.spent - median) / 2]
    if not late or sum(timing.waited for timing in late) < _STRAGGLER_SHARE * waited:
        return None
    worst = max(late, key=lambda timing: timing.sample)
    return Straggler("sample", worst.ordinal, worst.sample / 1e9, worst.spent / max(median, 1))


def _grown(before: float, after: float) -> float:
    """The difference; a counter that fell was reset with the workers."""
    return after - before if after >= before else after


def _engine_uses(before: EngineView | None, after: EngineView | None) -> tuple[int, int]:
    """Hits and needs between; an engine that was replaced counts from 0."""
    if after is None:
        return 0, 0
    then = before if before is not None and before.needs <= after.needs else EngineView()
    hits, needs = starmap(int.__sub__, ((after.hits, then.hits), (after.needs, then.needs)))
    return max(0, hits), needs
