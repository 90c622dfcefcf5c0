"""What the trainer's waiting for one batch is put down to.

The rule: a cause takes as much of the waiting as there would not have been without it. A batch whose chunks came a
second late and that was then waited for during 0.3 s of decoding was late because of the chunks: with them there, it
would have been decoded during the step before. So what delayed a batch before a worker had it counts first, up to its
length; what is left is the worker's, by the stages of this very batch.

Cost on the trainer's thread: 3 us per batch (2026-11-20), on the feeder's 1 us.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from streamer.loader.stages import Stages

# Before a worker had the batch:
NETWORK: Final = "network"
"""Its chunks were not local."""
RING: Final = "ring"
"""No slot was free: the trainer holds them."""
WINDOW: Final = "window"
"""A worker was idle, and `prefetch_batches` allowed no further batch."""
START: Final = "start"
"""Its worker was still starting."""
LOST: Final = "lost"
"""A worker died over it, or it failed."""
# In the worker:
READ: Final = "read"
DECODE: Final = "decode"
TRANSFORM: Final = "transform"
LOAD: Final = "load"
"""Loading, of which the source does not tell more."""
COLLATE: Final = "collate"
WRITE: Final = "write"
"""The copy into the ring."""
WORK: Final = "work"
"""In a worker, as yet unknown at what."""
# After it:
HANDOFF: Final = "handoff"
"""Made, and not yet in the trainer's hands."""
DEVICE: Final = "device"
"""The copy to the device and `device_transform`, as far as the trainer's thread is busy with them."""

DELAYS: Final = (LOST, NETWORK, RING, START, WINDOW)
STAGES: Final = (READ, DECODE, TRANSFORM, LOAD, COLLATE, WRITE)
ALL: Final = (*DELAYS, *STAGES, HANDOFF, DEVICE)
MADE: Final = "made"

# Kept for medians and percentiles since the last report: 30 s of batches of 7 ms; of faster ones the last 4,096.
_RECENT: Final = 4096

Item = TypeVar("Item")


class BatchTimeline:
    """What a batch went through, in order. Written by the feeder's thread, read when it is made.

    Attributes:
        state: what it is in now: a cause, or MADE; "" before anything happened.
        since: perf_counter nanoseconds at which that began.
        spent: cause -> nanoseconds, of the states before.
        worker: number of the worker that had it last; -1: none, or the trainer itself.
    """

    __slots__ = ("since", "spent", "state", "worker")

    def __init__(self) -> None:
        self.state = ""
        self.since = 0
        self.spent: dict[str, int] = {}
        self.worker = -1

    def __repr__(self) -> str:
        return f"BatchTimeline({self.state!r}, spent={self.spent})"

    def become(self, state: str) -> None:
        """From now on it is in this state."""
        if state == self.state:
            return
        now = time.perf_counter_ns()
        if self.state:
            self.add(self.state, now - self.since)
        self.state, self.since = state, now

    def add(self, cause: str, nanoseconds: int) -> None:
        """So much more of a cause."""
        self.spent[cause] = self.spent.get(cause, 0) + nanoseconds

    def until(self, now: int) -> dict[str, int]:
        """What was spent on each state, the present one included; any thread."""
        spent, state = dict(self.spent), self.state
        spent[state] = spent.get(state, 0) + max(0, now - self.since)
        return spent

    def lose(self) -> None:
        """The worker that had it is dead: what it did was for nothing."""
        self.become(LOST)
        self.add(LOST, self.spent.pop(WORK, 0))


class Trace(msgspec.Struct, frozen=True):
    """A batch's way to the trainer.

    Attributes:
        timeline: until it was made.
        stages: of the worker that made it.
        slowest: ordinal and nanoseconds of its slowest sample; ordinal -1: unknown.
    """

    timeline: BatchTimeline
    stages: Stages
    slowest: tuple[int, int] = (-1, 0)


@dataclass(frozen=True, slots=True)
class Tail(Generic[Item]):
    """The last values of a growing row.

    Attributes:
        count: how many there ever were. values: the last of them.
    """

    count: int = 0
    values: Sequence[Item] = ()

    def since(self, count: int) -> Sequence[Item]:
        """Those after the first `count`, as far as they are kept."""
        fresh = min(max(0, self.count - count), len(self.values))
        return self.values[len(self.values) - fresh :]


class Recent(Generic[Item]):
    """Keeps the last values of a growing row. Appended to by one thread, read by any."""

    def __init__(self) -> None:
        self.count = 0
        self._values: deque[Item] = deque(maxlen=_RECENT)

    def __repr__(self) -> str:
        return f"Recent({self.count})"

    def add(self, value: Item) -> None:
        """One more."""
        self._values.append(value)
        self.count += 1

    def tail(self) -> Tail[Item]:
        """As it is now; list() of a deque runs in one piece under the GIL."""
        count = self.count
        return Tail(count, list(self._values))


@dataclass(frozen=True, slots=True)
class BatchTiming:
    """One batch as a worker made it. All times are nanoseconds.

    Attributes:
        worker: its number; -1: the trainer itself.
        spent: of loading, collating and writing.
        ordinal, sample: the slowest sample and its time; -1 and 0: unknown.
        waited: the waiting that is the worker's.
    """

    worker: int
    spent: int
    ordinal: int
    sample: int
    waited: int


class Ledger(msgspec.Struct):
    """The waiting by cause. Written by the trainer's thread, read by any.

    Attributes:
        nanoseconds: by cause.
        timings: the last batches.
    """

    nanoseconds: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(ALL, 0))
    timings: Recent[BatchTiming] = msgspec.field(default_factory=Recent)

    def note(self, trace: Trace | None, waited: int, arrived_at: int) -> None:
        """The trainer waited so long for this batch, until then; None: it failed."""
        if trace is None:
            self.nanoseconds[LOST] += waited
            return
        left = self._delays(trace.timeline, waited, arrived_at)
        s = trace.stages
        spent = s.load + s.collate + s.write
        if left:
            self._stages(s, spent, left)
        self.timings.add(BatchTiming(trace.timeline.worker, spent, *trace.slowest, left))

    def _delays(self, timeline: BatchTimeline, waited: int, arrived_at: int) -> int:
        """Takes what is not the worker's; returns the rest."""
        # Made before it was waited for, or while: what passed since then is the way here.
        taken = max(0, min(waited, arrived_at - timeline.since))
        self.nanoseconds[HANDOFF] += taken
        left = waited - taken
        for cause in DELAYS if left else ():
            if delay := timeline.spent.get(cause):
                taken = min(left, delay)
                self.nanoseconds[cause] += taken
                left -= taken
        return left

    def _stages(self, s: Stages, spent: int, left: int) -> None:
        rest = max(0, s.load - s.read - s.decode - s.transform)
        for cause, part in zip(STAGES, (s.read, s.decode, s.transform, rest, s.collate, s.write), strict=True):
            self.nanoseconds[cause] += left * part // spent if spent else 0
        if not spent:
            self.nanoseconds[LOAD] += left


def so_far(timeline: BatchTimeline | None, waited: int, now: int) -> dict[str, int]:
    """A wait that still goes on, by cause.

    Args:
        timeline: of the batch that comes next; None: no worker has been free for it yet.
        waited: nanoseconds so far.
        now: perf_counter nanoseconds.
    """
    spent = timeline.until(now) if timeline is not None else {}
    found, left = {}, waited
    for cause in DELAYS:
        found[cause] = min(left, spent.get(cause, 0))
        left -= found[cause]
    found[WORK] = left
    return found
