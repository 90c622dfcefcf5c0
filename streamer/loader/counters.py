"""What the loader counts, always on: a few additions per batch."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from streamer.loader.control import Made

# Waits kept for the percentiles.
_RECENT = 1024


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What happened since the loader began. Times are seconds.

    Attributes:
        batches: batches delivered. samples: samples in them. nbytes: their bytes in the ring.
        wait_seconds: the trainer waited for data. step_seconds: it was busy between two batches.
        wait_median_seconds, wait_p99_seconds: of the last 1,024 batches.
        load_seconds: workers' time for loading, of which read, decode and transform where the data set tells.
        collate_seconds: putting samples together. write_seconds: copying them into the ring.
        hand_over_seconds: making tensors of a finished slot, in the trainer.
        ring_slots, ring_slot_bytes: the ring's shape; 0 before the first batch, or without a ring.
        ring_free: slots free now. ready_batches: finished batches waiting now. occupancy: their mean at each request.
        spilled_batches: batches that went around the ring. oversize_batches: of these, larger than a slot.
        worker_faults: workers' minor page faults. pickled_bytes: pickled structure, all batches.
        respawns: workers replaced. rereads: batches repeated because a chunk was gone or wrong.
        skipped: samples whose place another one took (`on_error="skip"`), in the batches delivered.
        pinned: whether the ring is registered with CUDA.
    """

    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    wait_seconds: float = 0.0
    step_seconds: float = 0.0
    wait_median_seconds: float = 0.0
    wait_p99_seconds: float = 0.0
    load_seconds: float = 0.0
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    transform_seconds: float = 0.0
    collate_seconds: float = 0.0
    write_seconds: float = 0.0
    hand_over_seconds: float = 0.0
    ring_slots: int = 0
    ring_slot_bytes: int = 0
    ring_free: int = 0
    ready_batches: int = 0
    occupancy: float = 0.0
    spilled_batches: int = 0
    oversize_batches: int = 0
    worker_faults: int = 0
    pickled_bytes: int = 0
    respawns: int = 0
    rereads: int = 0
    skipped: int = 0
    pinned: bool = False

    @property
    def wait_share(self) -> float:
        """Share of the trainer's time spent waiting for data."""
        total = self.wait_seconds + self.step_seconds
        return self.wait_seconds / total if total else 0.0


@dataclass(slots=True)
class FeedCounters:
    """Counted by the feeder's thread (or inline); read by anybody."""

    spilled: int = 0
    oversize: int = 0
    faults: int = 0
    pickled_bytes: int = 0
    respawns: int = 0
    rereads: int = 0
    nanoseconds: list[int] = field(default_factory=lambda: [0] * 6)

    def made(self, made: Made) -> None:
        """A batch was made."""
        self.faults += made.faults
        self.pickled_bytes += made.description[1]
        s, total = made.stages, self.nanoseconds
        for at, spent in enumerate((s.load, s.read, s.decode, s.transform, s.collate, s.write)):
            total[at] += spent


class TrainerClock:
    """Where the trainer's time goes; called by its thread, twice per batch."""

    def __init__(self) -> None:
        self.batches = 0
        self.samples = 0
        self.nbytes = 0
        self.occupancy = 0
        self._wait = 0
        self._step = 0
        self._hand_over = 0
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._left_at = 0
        self._asked_at = 0

    def ask(self, ready: int) -> None:
        """The trainer wants a batch; `ready` are there."""
        self._asked_at = now = time.perf_counter_ns()
        self.occupancy += ready
        if self._left_at:
            self._step += now - self._left_at

    def arrive(self) -> None:
        """There is one."""
        waited = time.perf_counter_ns() - self._asked_at
        self._wait += waited
        self._recent.append(waited)
        self._asked_at += waited

    def leave(self, samples: int, nbytes: int) -> None:
        """The trainer gets it."""
        self._left_at = time.perf_counter_ns()
        self._hand_over += self._left_at - self._asked_at
        self.batches += 1
        self.samples += samples
        self.nbytes += nbytes

    def pause(self) -> None:
        """The epoch is over: what comes next is not a step."""
        self._left_at = 0

    def fields(self) -> dict[str, float]:
        """The fields of `LoaderStats` that are known here."""
        waits = sorted(self._recent)
        return {
            "wait_seconds": self._wait / 1e9,
            "step_seconds": self._step / 1e9,
            "wait_median_seconds": _quantile(waits, 0.5) / 1e9,
            "wait_p99_seconds": _quantile(waits, 0.99) / 1e9,
            "hand_over_seconds": self._hand_over / 1e9,
            "occupancy": self.occupancy / max(self.batches, 1),
        }


def _quantile(ordered: Sequence[int], share: float) -> int:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0
