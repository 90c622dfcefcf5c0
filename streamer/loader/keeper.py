"""Keeps the ring: builds it when the first batch says how large it is, builds a larger one when batches grow."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

import msgspec

from streamer.loader.control import EARLY, MEASURE, SPILL
from streamer.loader.ring import Ring, Shape, fit
from streamer.loader.window import Pending

logger = logging.getLogger(__name__)

# Once may happen; from the second oversize batch on, larger slots pay.
_OVERSIZE = 2
# Larger rings are built beside the feeder, once a batch is made: to take and map the pages of 133 MB are 90 ms of CPU,
# 290 with the engine and the workers on the same two cores, which the first batch would wait for (2026-11-20).
_AT_ONCE_BYTES = 16 << 20


class RingRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a ring may be.

    Attributes:
        budget_bytes: its memory.
        poison: fill freed slots, to find views that outlive them.
        on_ring: called with each new ring before it is used, on the thread that built it.
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
        on_built: called when there is something to `collect`, on whatever thread that was; must not block.
    """

    def __init__(
        self, rules: RingRules, span: int, on_free: Callable[[], None], on_built: Callable[[], None] = lambda: None
    ) -> None:
        self.ring: Ring | None = None
        self._rules = rules
        self._span = span
        self._on_free = on_free
        self._on_built = on_built
        self._built = 0
        self._no_room = False
        self._site: _Site | None = None
        self._oversize: list[int] = []

    def __repr__(self) -> str:
        return f"RingKeeper({self.ring!r}, built={self._built}, building={self._site is not None})"

    @property
    def measuring(self) -> bool:
        """Nobody knows yet how large a batch is."""
        return self.ring is None and self._site is None and not self._no_room

    def place(self, pending: Pending, starving: bool) -> bool:
        """Finds a batch its slot; it keeps the one it has. False: there is none now.

        Args:
            pending: the batch.
            starving: the trainer has nothing else to take: it must not wait for slots that it holds itself.
        """
        if pending.ring is not None:
            return True
        if self.ring is None:
            pending.slot = MEASURE if self.measuring else self._aside
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
        pending.ring, pending.slot = (self.ring, slot) if slot is not None else (None, self._aside)
        return built

    def oversize(self, pending: Pending, nbytes: int) -> Ring | None:
        """A batch was too large for its slot. Returns the larger ring, if it is time for one and it is there."""
        release(pending)
        self._oversize.append(nbytes)
        largest = max(self._oversize)
        waits = self._site is not None or len(self._oversize) < _OVERSIZE
        if waits or fit(largest, self._span, self._rules.budget_bytes) is None:
            return None
        self._oversize.clear()
        return self._build(largest)

    def build(self) -> None:
        """The trainer has a batch: a large ring, put off until then, is built from now on."""
        if self._site is not None:
            self._site.begin()

    def collect(self) -> Ring | None:
        """The ring that has been finished since the last call.

        Raises:
            ConfigError: it could not be built.
        """
        site = self._site
        if site is None or not site.done:
            return None
        self._site = None
        return self._move_into(site.take())

    def close(self) -> None:
        """Gives the ring's descriptor back, also of one that is still being built."""
        if self.ring is not None:
            self.ring.close()
        if self._site is not None:
            self._site.abandon()
            self._site = None

    @property
    def _aside(self) -> int:
        return SPILL if self._site is None else EARLY

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
        if shape.nbytes <= _AT_ONCE_BYTES:
            return self._move_into(self._make(self._built, shape))
        self._site = _Site(partial(self._make, self._built, shape), self._on_built)
        return None

    def _make(self, number: int, shape: Shape) -> Ring:
        ring = Ring(number, shape, self._on_free, poison=self._rules.poison)
        try:
            if self._rules.on_ring is not None:
                self._rules.on_ring(ring)
        except BaseException:
            ring.close()
            raise
        return ring

    def _move_into(self, ring: Ring) -> Ring:
        if self.ring is not None:
            self.ring.close()
        self.ring = ring
        return ring


class _Site:
    """A ring that is built on a thread of its own, from `begin` on.

    Args:
        make: builds it.
        on_built: called at the end, whatever came of it.
    """

    def __init__(self, make: Callable[[], Ring], on_built: Callable[[], None]) -> None:
        self.done = False
        self._make = make
        self._on_built = on_built
        self._found: Ring | BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="streamer-ring", daemon=True)

    def begin(self) -> None:
        """Starts building; again is harmless."""
        if self._thread.ident is None:
            self._thread.start()

    def take(self) -> Ring:
        """What was built, or the error."""
        self._thread.join()
        found, self._found = self._found, None
        if isinstance(found, BaseException):
            raise found
        assert found is not None
        return found

    def abandon(self) -> None:
        """Nobody wants it any more."""
        if self._thread.ident is None:
            return
        self._thread.join()
        if isinstance(self._found, Ring):
            self._found.close()

    def _work(self) -> None:
        try:
            self._found = self._make()
        except BaseException as error:  # noqa: BLE001 - it goes to the feeder
            self._found = error
        self.done = True
        self._on_built()


def release(pending: Pending) -> None:
    """Takes a batch's slot back unused."""
    if pending.ring is not None:
        pending.ring.put_back(pending.slot)
        pending.ring = None
