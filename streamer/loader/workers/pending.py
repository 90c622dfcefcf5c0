"""A batch on its way from the order to the trainer."""

from __future__ import annotations

import msgspec

from streamer.loader.ring.ring import Slot
from streamer.loader.stall.causes import BatchTimeline


class Pending(msgspec.Struct, eq=False):
    """A batch that is being made.

    Attributes:
        step: its place in the run: 0 is the first batch delivered.
        epoch, batch: which one it is.
        task: number of the task that was sent for it last.
        slot: where it goes; None: not known yet, or memory of its own.
        left_out: ordinals that are not loaded any more.
        skipped: ordinal -> cause of those whose place another sample of the batch takes.
        rereads: how often a chunk of it had to be leased again.
        crash_counts: ordinal (-1: between samples) -> workers that died over it.
        abandoned: nobody waits for it any more.
        timeline: what it went through.
    """

    step: int
    epoch: int
    batch: int
    task: int = 0
    slot: Slot | None = None
    left_out: set[int] = msgspec.field(default_factory=set)
    skipped: dict[int, str] = msgspec.field(default_factory=dict)
    rereads: int = 0
    crash_counts: dict[int, int] = msgspec.field(default_factory=dict)
    abandoned: bool = False
    timeline: BatchTimeline = msgspec.field(default_factory=BatchTimeline)

    def count_crash(self, ordinal: int) -> int:
        """One more worker died over this sample; returns how many have."""
        self.crash_counts[ordinal] = self.crash_counts.get(ordinal, 0) + 1
        return self.crash_counts[ordinal]
