"""Keeps the ring: builds it when the first batch says how large it is, builds a larger one when batches grow."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from streamer.loader.control import MEASURE, SPILL
from streamer.loader.ring import Ring, fit
from streamer.loader.window import Pending

logger = logging.getLogger(__name__)

# Once may happen; from the second oversize batch on, larger slots pay.
_OVERSIZE = 2


@dataclass(frozen=True, kw_only=True)
class RingRules:
    """What a ring may be.

    Attributes:
        budget_bytes: its memory.
        poison: fill freed slots, to find views that outlive them.
        on_ring: called with each new ring before it is used, on the feeder's thread.
    """

    budget_bytes: int
    poison: bool = False
    on_ring: Callable[[Ring], None] | None = None


class RingKeeper:
    """Gives slots to batches. On the feeder's thread only.

    Args:
        rules: what a ring may be.
        span: batches wanted ahead of the trainer.
        on_free: see `Ring`.
    """

    def __init__(self, rules: RingRules, span: int, on_free: Callable[[], None]) -> None:
        self.ring: Ring | None = None
        self._rules = rules
        self._span = span
        self._on_free = on_free
        self._built = 0
        self._no_room = False
        self._oversize: list[int] = []

    def __repr__(self) -> str:
        return f"RingKeeper({self.ring!r}, built={self._built})"

    @property
    def measuring(self) -> bool:
        """Nobody knows yet how large a batch is."""
        return self.ring is None and not self._no_room

    def place(self, pending: Pending, starving: bool) -> bool:
        """Finds a batch its slot; it keeps the one it has. False: there is none now.

        Args:
            pending: the batch.
            starving: the trainer has nothing else to take: it must not wait for slots that it holds itself.
        """
        if pending.ring is not None:
            return True
        if self.ring is None:
            pending.slot = SPILL if self._no_room else MEASURE
            return True
        slot = self.ring.take()
        if slot is None:
            pending.slot = SPILL
            return starving
        pending.ring, pending.slot = self.ring, slot
        return True

    def grant(self, pending: Pending, nbytes: int) -> Ring | None:
        """A worker holds a batch of this size: sets its place. Returns the ring that had to be built for it."""
        built = self._build(nbytes) if self.measuring else None
        slot = self.ring.take() if self.ring is not None and nbytes <= self.ring.shape.slot_bytes else None
        pending.ring, pending.slot = (self.ring, slot) if slot is not None else (None, SPILL)
        return built

    def oversize(self, pending: Pending, nbytes: int) -> Ring | None:
        """A batch was too large for its slot. Returns the larger ring, if it is time for one."""
        release(pending)
        self._oversize.append(nbytes)
        largest = max(self._oversize)
        if len(self._oversize) < _OVERSIZE or fit(largest, self._span, self._rules.budget_bytes) is None:
            return None
        self._oversize.clear()
        return self._build(largest)

    def close(self) -> None:
        """Gives the ring's descriptor back."""
        if self.ring is not None:
            self.ring.close()

    def _build(self, batch_bytes: int) -> Ring | None:
        shape = fit(batch_bytes, self._span, self._rules.budget_bytes)
        if shape is None:
            self._no_room = True
            logger.warning(
                "ring_bytes=%d does not hold two batches of %d bytes: every batch goes through memory of its own; "
                "raise ring_bytes",
                self._rules.budget_bytes,
                batch_bytes,
            )
            return None
        self._built += 1
        self.close()
        self.ring = Ring(self._built, shape, self._on_free, poison=self._rules.poison)
        if self._rules.on_ring is not None:
            self._rules.on_ring(self.ring)
        return self.ring


def release(pending: Pending) -> None:
    """Takes a batch's slot back unused."""
    if pending.ring is not None:
        pending.ring.put_back(pending.slot)
        pending.ring = None
