"""A batch that is being made."""

from __future__ import annotations

import msgspec

from streamer.loader.ring.ring import Slot
from streamer.loader.stall.causes import BatchTimeline


class Pending(msgspec.Struct, eq=False):
    """A batch that is being made.

    Attributes:
        step: its number in the run; 0 is the first batch delivered.
        epoch, batch: its numbers.
        task: number of the last task for it.
        slot: its slot; None: not known yet, or memory of its own.
        left_out: ordinals that are no longer loaded.
        skipped: ordinal -> cause, of samples that another one of the batch replaces.
        rereads: number of new leases, by chunk.
        crash_counts: ordinal (-1: between samples) -> workers that crashed on it.
        rounds: of a growing dataset, the rounds of the batch.
        abandoned: its run has ended.
        timeline: its states and their times.
    """

    step: int
    epoch: int
    batch: int
    task: int = 0
    slot: Slot | None = None
    left_out: set[int] = msgspec.field(default_factory=set)
    skipped: dict[int, str] = msgspec.field(default_factory=dict)
    rereads: dict[int, int] = msgspec.field(default_factory=dict)
    crash_counts: dict[int, int] = msgspec.field(default_factory=dict)
    rounds: tuple[tuple[int, ...], ...] = ()
    abandoned: bool = False
    timeline: BatchTimeline = msgspec.field(default_factory=BatchTimeline)

    def count_reread(self, chunk: int) -> int:
        """Counts a new lease of this chunk; returns the new count."""
        self.rereads[chunk] = self.rereads.get(chunk, 0) + 1
        return self.rereads[chunk]

    def count_crash(self, ordinal: int) -> int:
        """Counts a crash on this sample; returns the new count."""
        self.crash_counts[ordinal] = self.crash_counts.get(ordinal, 0) + 1
        return self.crash_counts[ordinal]
