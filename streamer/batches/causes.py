"""Charges the trainer's waiting for a batch to causes.

The workers measure the stages of a batch (`Stages`), the loader's feed notes its states (`loader/feed`), and the stall
report tells the causes (`loader/stall`).

Each cause is charged with the waiting that would not have happened without it. Take a batch whose chunks came a second
late, and for which the trainer then waited during 0.3 s of decoding: it was late because of the chunks, for without
their delay it would have been decoded during the previous step. So the delays before a worker got the batch are charged
first, each up to its length; the rest is charged to the worker, by the stages of this batch.

Cost on the trainer's thread: 3 us per batch (2026-11-20), on the feeder's 1 us.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

# These are the causes before a worker had the batch, each a state of a batch, too.
NETWORK: Final = "network"
"""The chunks of the batch were not local."""
RING: Final = "ring"
"""No slot was free: the trainer holds them."""
WINDOW: Final = "window"
"""A worker was idle, and `prefetch_batches` allowed no further batch."""
START: Final = "start"
"""The workers were still starting."""
LOST: Final = "lost"
"""A worker crashed on the batch, or the batch failed."""
# These are the causes in the worker.
READ: Final = "read"
DECODE: Final = "decode"
TRANSFORM: Final = "transform"
LOAD: Final = "load"
"""The part of making the samples that is neither read nor decode nor transform."""
COLLATE: Final = "collate"
WRITE: Final = "write"
"""The copy of the batch into its slot."""
WORK: Final = "work"
"""The batch is in a worker, in a stage that is not known yet."""
# These are the causes after the worker.
HANDOFF: Final = "handoff"
"""The batch was finished, and the trainer had not yet taken it."""
DEVICE: Final = "device"
"""The time of the trainer's thread for the copy to the device and `device_transform`."""

# Delays are charged in this order.
DELAYS: Final = (LOST, NETWORK, RING, START, WINDOW)
STAGES: Final = (READ, DECODE, TRANSFORM, LOAD, COLLATE, WRITE)
ALL: Final = (*DELAYS, *STAGES, HANDOFF, DEVICE)
MADE: Final = "made"
"""The last state of a batch, which is no cause."""

# Values that `Recent` keeps, for medians and percentiles since the last report: 30 s of batches of 7 ms.
_RECENT: Final = 4096

Item = TypeVar("Item")


class BatchTimeline:
    """The states of a batch and their times. Written by the feeder's thread.

    `sum_until` may be called on any thread. All else is read when the batch is made.

    Attributes:
        state: the current state, a cause or MADE, "" at first.
        since: perf_counter nanoseconds at which the state began.
        spent: nanoseconds of the earlier states, by cause.
        worker: number of the worker that made the batch, or -1 before, and if the trainer made it itself.
    """

    __slots__ = ("since", "spent", "state", "worker")

    def __init__(self) -> None:
        self.state = ""
        self.since = 0
        self.spent: dict[str, int] = {}
        self.worker = -1

    def __repr__(self) -> str:
        return f"BatchTimeline({self.state!r}, spent={self.spent})"

    def enter(self, state: str) -> None:
        """Ends the current state and begins another one now. Does nothing if the batch is in it already."""
        if state == self.state:
            return
        now = time.perf_counter_ns()
        if self.state:
            self.add(self.state, now - self.since)
        self.state = state
        self.since = now

    def add(self, cause: str, nanoseconds: int) -> None:
        """Adds time to a cause, without a change of the state."""
        self.spent[cause] = self.spent.get(cause, 0) + nanoseconds

    def sum_until(self, now: int) -> dict[str, int]:
        """Returns the nanoseconds in each state; those of the current one until `now` (perf_counter nanoseconds)."""
        spent = dict(self.spent)
        state = self.state
        spent[state] = spent.get(state, 0) + max(0, now - self.since)
        return spent

    def record_crash(self) -> None:
        """Enters the state LOST after a crash of the worker, and charges the time of its work to LOST, too."""
        self.enter(LOST)
        self.add(LOST, self.spent.pop(WORK, 0))


class Stages(msgspec.Struct, frozen=True, array_like=True):
    """A worker's time for one batch by stage, in nanoseconds.

    Attributes:
        load: time of making the samples: read, decode, transform and everything in between.
        read, decode, transform: parts of `load`, 0 if they are not measured.
        collate: putting samples together, without the copy.
        write: the copy into the slot.
    """

    load: int = 0
    read: int = 0
    decode: int = 0
    transform: int = 0
    collate: int = 0
    write: int = 0

    @property
    def total(self) -> int:
        """Nanoseconds of all stages."""
        return self.load + self.collate + self.write


class Trace(msgspec.Struct, frozen=True):
    """The times of a batch until the trainer has it.

    Attributes:
        timeline: its states until it was made.
        stages: times of the worker that made it, or of the trainer.
        slowest: code and nanoseconds of its slowest sample; (-1, 0) if it is not known.
    """

    timeline: BatchTimeline
    stages: Stages
    slowest: tuple[int, int] = (-1, 0)


@dataclass(frozen=True, slots=True)
class Tail(Generic[Item]):
    """The last values of a growing sequence, as they were at one moment.

    Attributes:
        count: number of all values so far.
        values: the last of them, at most `_RECENT`.
    """

    count: int = 0
    values: Sequence[Item] = ()

    def values_after(self, count: int) -> Sequence[Item]:
        """Returns the values after the first `count` of the whole sequence, as far as they are kept."""
        fresh = min(max(0, self.count - count), len(self.values))
        return self.values[len(self.values) - fresh :]


class Recent(Generic[Item]):
    """Keeps the last values of a growing sequence. One thread appends, any thread reads."""

    def __init__(self) -> None:
        self.count = 0
        self._values: deque[Item] = deque(maxlen=_RECENT)

    def __repr__(self) -> str:
        return f"Recent({self.count})"

    def add(self, value: Item) -> None:
        """Appends a value."""
        self._values.append(value)
        self.count += 1

    def tail(self) -> Tail[Item]:
        """Returns the values that are kept now."""
        # list() of a deque is atomic under the GIL.
        count = self.count
        return Tail(count, list(self._values))


@dataclass(frozen=True, slots=True)
class BatchTiming:
    """The worker's times for one batch, in nanoseconds.

    Attributes:
        worker: number of the worker, or -1 if the trainer made the batch itself.
        spent: time of loading, collating and writing.
        ordinal: code of the slowest sample, or -1 if it is not known.
        sample: time of the slowest sample, or 0 if it is not known.
        waited: the trainer's waiting that is charged to the worker.
    """

    worker: int
    spent: int
    ordinal: int
    sample: int
    waited: int


class Ledger(msgspec.Struct):
    """The trainer's waiting by cause, and the times of the last batches. Written by its thread, read by any.

    Attributes:
        nanoseconds: waiting so far for each cause of `ALL`. `DEVICE` is added by the loader (`loader/stall/stats.py`).
        timings: times of the batches that did not fail.
    """

    nanoseconds: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(ALL, 0))
    timings: Recent[BatchTiming] = msgspec.field(default_factory=Recent)

    def note(self, trace: Trace | None, waited: int, arrived_at: int) -> None:
        """Charges the waiting for one batch to causes, and adds its times to `timings`.

        Args:
            trace: Times of the batch, or None if it failed: all of the waiting is charged to LOST then.
            waited: nanoseconds that the trainer waited.
            arrived_at: perf_counter nanoseconds at which the waiting ended.
        """
        if trace is None:
            self.nanoseconds[LOST] += waited
            return
        timeline = trace.timeline
        # The time since the batch was made is its handoff.
        taken = max(0, min(waited, arrived_at - timeline.since))
        self.nanoseconds[HANDOFF] += taken
        left = waited - taken
        for cause in DELAYS if left else ():
            if delay := timeline.spent.get(cause):
                taken = min(left, delay)
                self.nanoseconds[cause] += taken
                left -= taken
        if left:
            # The stages of the worker share what is left.
            s = trace.stages
            spent = s.total
            rest = max(0, s.load - s.read - s.decode - s.transform)
            for cause, part in zip(STAGES, (s.read, s.decode, s.transform, rest, s.collate, s.write), strict=True):
                self.nanoseconds[cause] += left * part // spent if spent else 0
            if not spent:
                self.nanoseconds[LOAD] += left
        self.timings.add(BatchTiming(timeline.worker, trace.stages.total, *trace.slowest, left))


def so_far(timeline: BatchTimeline | None, waited: int, now: int) -> dict[str, int]:
    """Returns the nanoseconds of a waiting that still continues, by cause: each delay, and the rest as WORK.

    Args:
        timeline: Timeline of the next batch, or None if no worker has been free for it yet.
        waited: nanoseconds that the trainer has waited so far.
        now: the present time, perf_counter nanoseconds.
    """
    spent = timeline.sum_until(now) if timeline is not None else {}
    found = {}
    left = waited
    for cause in DELAYS:
        found[cause] = min(left, spent.get(cause, 0))
        left -= found[cause]
    found[WORK] = left
    return found
