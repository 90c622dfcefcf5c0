"""The counts of a store."""

from __future__ import annotations

import msgspec

from streamer.store.base import StoreStatistics


class Counters(msgspec.Struct):
    """Mutable counterpart of StoreStatistics; one owner, one loop."""

    requests: int = 0
    lists: int = 0
    received_bytes: int = 0

    def received(self, piece: bytes | memoryview) -> int:
        """Counts a piece; returns its length."""
        self.received_bytes += len(piece)
        return len(piece)

    def frozen(self) -> StoreStatistics:
        """The counts now."""
        return StoreStatistics(self.requests, self.lists, self.received_bytes)
