"""Makes the stall report: compares two snapshots of a loader, and names one bottleneck. No clock, thread or engine.

`loader/loader_views.py` takes the snapshots and compares them, on demand or for `reporter.py`.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from streamer.batches import causes
from streamer.batches.causes import BatchTiming, Tail
from streamer.loader.stall.advice import Bottleneck, Findings, Straggler, advise, advise_growth, diagnose
from streamer.loader.stall.stats import EngineView, LoaderStats, PackingStats, quantile

# A batch is slow if it takes this many times the median of all; batches of natural images of random sizes stay below
# it.
_SLOW_BATCH = 3.0
# A worker is slow if its batches take this many times as long as those of the others.
_SLOW_WORKER = 2.0
# A straggler is named if it causes at least this share of the waiting for workers.
_STRAGGLER_SHARE = 0.5
# The bottlenecks at which the trainer waits for bytes of the store.
_ON_STORE = (Bottleneck.STORE, Bottleneck.THROTTLED)
# A straggler is looked for among at least so many batches.
_MIN_BATCHES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Holds the counts of a loader at one moment; the difference of two snapshots covers the time between.

    Attributes:
        stats: Counts since the loader began.
        waits: Nanoseconds from each request of the trainer to its batch, for the last batches.
        steps: Nanoseconds from each batch to the next request, for the last batches.
        timings: Times of the workers for the last batches.
        ongoing: Nanoseconds of the current wait, by cause.
        workers: Number of batches made at the same time, or 0 if the trainer makes its batches itself.
        cores: Number of cores that this process may use.
        at: Time of the monotonic clock, in seconds.
        idle_core_seconds: Unused CPU time of the machine until `at`, or None if it is unknown.
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
        """Returns the seconds of waiting that are charged to a cause so far, the current wait included."""
        return self.stats.waiting.get(cause, 0.0) + self.ongoing.get(cause, 0) / 1e9


@dataclass(frozen=True, slots=True)
class Spread:
    """Holds seconds of many batches. Median and 99th percentile are of the last 4,096 of them at most."""

    sum: float = 0.0
    mean: float = 0.0
    median: float = 0.0
    p99: float = 0.0

    @classmethod
    def from_batches(cls, total_seconds: float, nanoseconds: Sequence[int], batches: int) -> Spread:
        """Returns the spread of some batches.

        Args:
            total_seconds: Seconds of all batches together.
            nanoseconds: Nanoseconds of each of the last batches.
            batches: Number of all batches.
        """
        ordered = sorted(nanoseconds)
        return cls(
            total_seconds, total_seconds / max(batches, 1), quantile(ordered, 0.5) / 1e9, quantile(ordered, 0.99) / 1e9
        )

    def __str__(self) -> str:
        mean, median, p99 = (f"{seconds * 1e3:.3g}" for seconds in (self.mean, self.median, self.p99))
        return f"{self.sum:.3g} s (mean {mean}, median {median}, p99 {p99} ms)"


@dataclass(frozen=True, slots=True)
class SlowWorker:
    """Names the worker with the longest batches.

    Attributes:
        number: Number of the worker.
        seconds: Median time of its batches.
        others_seconds: Median time of the batches of the other workers.
    """

    number: int
    seconds: float
    others_seconds: float


@dataclass(frozen=True, slots=True)
class SlowSample:
    """Names the sample that took longest.

    Attributes:
        ordinal: Code of the sample.
        seconds: Time that the sample took.
        name: Name of the sample, or "" if it is not known.
    """

    ordinal: int
    seconds: float
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name or f'#{self.ordinal}'} {self.seconds * 1e3:.3g} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class StallReport:
    """Says why a trainer waited in some time: the difference of two snapshots of its loader.

    Attributes:
        batches, samples: Number of batches and samples delivered.
        waiting_seconds: Time that the trainer waited for batches, or for their handoff.
        wait, step: Seconds of waiting for a batch, and of computing between two batches.
        share: Share of the trainer's time spent waiting, 0 to 1.
        waiting: Share of the waiting by cause, 0 to 1, the largest first.
        bottleneck: Stage that limits the training.
        advice: What to do against the bottleneck, or "".
        slowest_worker, slowest_sample: The slowest ones, or None if they are unknown.
        ring_slots, ring_free: Slots of the ring, and those that are free now.
        occupancy: Mean number of batches ready at a request.
        spilled, respawns, rereads: Growth in this time of `spilled_batches`, `respawns` and `rereads` of `LoaderStats`.
        engine: Statistics of the engine at the end, or None if there is no engine, or it has not answered.
        hit_share: Share of the uses of chunks that were hits, in this time.
        growing: Sentence on what the measured rates of a growing dataset ask for, or "" for no change.
        packing: Statistics of the rows that were made in this time, or None if none were.
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
            parts.append(_describe_rows(self.packing))
        if self.engine is not None:
            parts.append(f"engine {self.hit_share:.0%} hits, {self.engine.in_flight} requests in flight")
        return " | ".join(parts)

    def scalars(self) -> dict[str, float]:
        """Returns plain numbers by name, for TensorBoard, W&B and the like."""
        of_rows = {}
        if self.packing is not None:
            of_rows = {
                "stall/padding": self.packing.padding,
                "stall/cost_spread": self.packing.cost_spread,
                "stall/tokens": float(self.packing.tokens),
                "stall/overflowed": float(self.packing.overflowed),
            }
        return {
            "stall/share": self.share,
            "stall/wait_mean_seconds": self.wait.mean,
            "stall/wait_p99_seconds": self.wait.p99,
            "stall/step_mean_seconds": self.step.mean,
            "stall/ready_batches": self.occupancy,
            "stall/spilled": float(self.spilled),
            "stall/hit_share": self.hit_share,
            **of_rows,
            **{f"stall/waiting/{cause}": share for cause, share in self.waiting.items()},
        }

    def attributes(self) -> dict[str, float | str]:
        """Returns `scalars`, bottleneck and advice by dotted names, as a structured log has them."""
        figures = {f"streamer.{name.replace('/', '.')}": value for name, value in self.scalars().items()}
        return {**figures, "streamer.stall.bottleneck": str(self.bottleneck), "streamer.stall.advice": self.advice}


def compare(before: Snapshot, after: Snapshot) -> StallReport:
    """Returns the report of the time between two snapshots of one loader."""
    b = before.stats
    a = after.stats
    # A wait that was under way at a snapshot is charged to its final cause.
    waiting = {cause: _subtract(before.seconds(cause), after.seconds(cause)) for cause in (*causes.ALL, causes.WORK)}
    waited = sum(waiting.values())
    step = _subtract(b.step_seconds, a.step_seconds)
    batches = int(_subtract(b.batches, a.batches))
    timings = after.timings.values_after(before.timings.count)
    share = waited / (waited + step) if waited + step > 0 else 0.0
    shares = {cause: seconds / waited for cause, seconds in waiting.items() if waited > 0 and seconds > 0}
    slowest = slow_worker(timings)
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
    growing = _advise_growth(findings, a, int(_subtract(b.samples, a.samples)), step, waits=bottleneck in _ON_STORE)
    engine = b.engine
    if a.engine is None or engine is None or engine.needs > a.engine.needs:
        # An engine that was replaced counts from 0.
        engine = EngineView()
    needs = 0 if a.engine is None else a.engine.needs - engine.needs
    hits = 0 if a.engine is None else max(0, a.engine.hits - engine.hits)
    made = a.packing
    if made is not None:
        made = made.since(b.packing or PackingStats())
    return StallReport(
        batches=batches,
        samples=int(_subtract(b.samples, a.samples)),
        waiting_seconds=waited,
        wait=Spread.from_batches(waited, after.waits.values_after(before.waits.count), batches),
        step=Spread.from_batches(step, after.steps.values_after(before.steps.count), batches),
        share=share,
        waiting=dict(sorted(shares.items(), key=lambda item: -item[1])),
        bottleneck=bottleneck,
        advice=growing if growing and bottleneck in _ON_STORE else advise(bottleneck, findings),
        slowest_worker=slowest,
        slowest_sample=slow_sample(timings),
        ring_slots=a.ring_slots,
        ring_free=a.ring_free,
        occupancy=max(0.0, a.occupancy * a.batches - b.occupancy * b.batches) / max(batches, 1),
        spilled=int(_subtract(b.spilled_batches, a.spilled_batches)),
        respawns=int(_subtract(b.respawns, a.respawns)),
        rereads=int(_subtract(b.rereads, a.rereads)),
        engine=a.engine,
        hit_share=hits / needs if needs else 0.0,
        growing=growing,
        packing=made if made is not None and made.batches else None,
    )


def _describe_rows(packing: PackingStats) -> str:
    """Describes how full rows were, and how much their estimated lengths were off, if they were estimated."""
    per_row = packing.documents / max(1, packing.rows)
    cut = f", {packing.cut / packing.documents:.1%} of them pieces" if packing.cut else ""
    full = f"{1 - packing.padding:.2%}"
    spread = f"{packing.cost_spread:.1%}"
    lost = ""
    if packing.estimated:
        tokens = packing.tokens + packing.overflowed
        lost = (
            f", {packing.overflowed / max(1, tokens):.2%} of the tokens had no room in their rows: documents have "
            f"{tokens / packing.estimated:.3f} of the estimated tokens; streamer.measure_lengths() counts them"
        )
    return f"rows {full} full, {per_row:.1f} documents each{cut}, costs of batches spread by {spread}{lost}"


def _advise_growth(found: Findings, stats: LoaderStats, samples: int, step_seconds: float, *, waits: bool) -> str:
    """Returns a sentence on what the rates of a growing dataset ask for, or ""."""
    if stats.growing is None or found.engine is None or not step_seconds:
        return ""
    return advise_growth(
        stats.growing,
        samples_per_second=samples / step_seconds,
        store_bytes_per_second=found.increase("store_bytes") / found.engine_seconds,
        cache_bytes=found.engine.limit_bytes,
        waits=waits,
    )


def slow_sample(timings: Sequence[BatchTiming]) -> SlowSample | None:
    """Returns the sample that took longest, or None if it is not known."""
    slowest = max(timings, key=lambda timing: timing.sample, default=None)
    if slowest is None or slowest.ordinal < 0:
        return None
    return SlowSample(slowest.ordinal, slowest.sample / 1e9)


def slow_worker(timings: Sequence[BatchTiming]) -> SlowWorker | None:
    """Returns the worker with the longest batches, or None if there are not two workers to compare."""
    spent: defaultdict[int, list[int]] = defaultdict(list)
    for timing in timings:
        spent[timing.worker].append(timing.spent)
    if len(spent) < 2:
        return None
    slowest = max(spent, key=lambda worker: statistics.median(spent[worker]))
    others = statistics.median(each for worker, batches in spent.items() if worker != slowest for each in batches)
    return SlowWorker(slowest, statistics.median(spent[slowest]) / 1e9, others / 1e9)


def straggler(timings: Sequence[BatchTiming], slowest: SlowWorker | None) -> Straggler | None:
    """Returns the one worker, or the single samples, that cause at least half of the waiting for workers, or None.

    Args:
        timings: Times of the workers for the last batches.
        slowest: Worker with the longest batches, or None.
    """
    waited = sum(timing.waited for timing in timings)
    if len(timings) < _MIN_BATCHES or not waited:
        return None
    if slowest is not None and slowest.seconds >= _SLOW_WORKER * slowest.others_seconds:
        theirs = [timing for timing in timings if timing.worker == slowest.number]
        steady = sum(timing.spent / 1e9 >= _SLOW_WORKER * slowest.others_seconds for timing in theirs) * 2 > len(theirs)
        if steady and len(theirs) > 1 and sum(timing.waited for timing in theirs) >= _STRAGGLER_SHARE * waited:
            times = slowest.seconds / max(slowest.others_seconds, 1e-9)
            return Straggler("worker", slowest.number, slowest.seconds, times)
    # Batches far above the median, each because of one sample.
    median = statistics.median(timing.spent for timing in timings)
    late = [t for t in timings if t.spent >= _SLOW_BATCH * median and t.sample >= (t.spent - median) / 2]
    if not late or sum(timing.waited for timing in late) < _STRAGGLER_SHARE * waited:
        return None
    worst = max(late, key=lambda timing: timing.sample)
    return Straggler("sample", worst.ordinal, worst.sample / 1e9, worst.spent / max(median, 1))


def _subtract(before_value: float, after_value: float) -> float:
    """Returns the difference of two values of a counter. A counter that fell has begun anew with new workers."""
    return after_value - before_value if after_value >= before_value else after_value
