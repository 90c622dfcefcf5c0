"""The counters of the feeder."""

from __future__ import annotations

import msgspec

from streamer.loader.workers.protocol import Made


class FeedCounters(msgspec.Struct):
    """Counted by the feeder's thread (or inline); read by any thread."""

    batches: int = 0
    spilled: int = 0
    oversize: int = 0
    faults: int = 0
    pickled_bytes: int = 0
    respawns: int = 0
    rereads: int = 0
    nanoseconds: list[int] = msgspec.field(default_factory=lambda: [0] * 6)

    def made(self, made: Made) -> None:
        """Counts a finished batch."""
        self.batches += 1
        self.faults += made.faults
        self.pickled_bytes += made.description[1]
        s, total = made.stages, self.nanoseconds
        for at, spent in enumerate((s.load, s.read, s.decode, s.transform, s.collate, s.write)):
            total[at] += spent
