"""`on_error="skip"`: what may be skipped, what was, and when it is too much. Imports no torch.

Positions never move: the place of a sample that cannot be made is taken by another one of the same batch, and marked
as a repeat. So every rank makes equally many steps with equally many samples, whatever its share of the damage.

The budget is the job's. Where torch.distributed is initialised, ranks count through the process group's store. A rank
that finds the budget spent at its batch s does not raise alone, which would leave the others waiting for it in their
next collective: it writes down that batch s + 16 is not delivered any more, by anybody, and all ranks look there
before each batch. They all raise at the same step, as long as no rank is more than 16 batches ahead of another, which
every gradient exchange prevents; a rank that is farther ahead raises as soon as it looks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from streamer.errors import DecodeError, StreamerError

logger = logging.getLogger(__name__)

OnError = Literal["raise", "skip"]

# Batches that a rank may run ahead of another between two gradient exchanges (accumulation over 8 steps is common).
NOTICE_STEPS = 16
# Samples that an error names; the rest is counted.
_NAMED = 5


class SkipRules(msgspec.Struct, frozen=True):
    """What is done with samples that cannot be made.

    Attributes:
        on_error: "raise": the error is the batch's. "skip": another sample of the batch takes the place.
        budget: samples that may be skipped, over all epochs and ranks.
    """

    on_error: OnError = "raise"
    budget: int = 100


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample whose place another one took.

    Attributes:
        ordinal: its number in the manifest.
        key: path below the url, or container and byte range.
        cause: what was wrong with it.
    """

    ordinal: int
    key: str
    cause: str

    def __str__(self) -> str:
        return f"sample {self.ordinal} ({self.key}): {self.cause}"


class Stop(msgspec.Struct, frozen=True):
    """What a rank has written down for all.

    Attributes:
        step: the first batch that no rank delivers any more.
        message: why.
    """

    step: int
    message: str


class SharedBudget(Protocol):
    """Counts over all ranks."""

    def spend(self, samples: int) -> int:
        """So many more; returns how many it are now, over all ranks."""
        ...

    def stop(self, stop: Stop) -> None:
        """Writes down that all ranks stop; the first one counts."""
        ...

    def stopped(self) -> Stop | None:
        """What was written down."""
        ...


def may_skip(error: BaseException) -> bool:
    """Whether an error is the sample's: bytes that do not decode, a transform that fails. Not: engine, cache, store."""
    return isinstance(error, DecodeError) or (isinstance(error, Exception) and not isinstance(error, StreamerError))


class SkipLedger:
    """The list of the samples that this process has skipped, and the budget they come out of. Used by one thread.

    Args:
        budget: samples that may be skipped, over all epochs and, with `shared`, over all ranks.
        shared: counts over all ranks; None: this process counts alone.
        entries: what was skipped before, and is in the budget.
    """

    def __init__(self, budget: int, shared: SharedBudget | None = None, entries: Sequence[Skipped] = ()) -> None:
        self.entries = list(entries)
        self._budget = budget
        self._shared = shared
        self._stop: Stop | None = None

    def __repr__(self) -> str:
        return f"SkipLedger({len(self.entries)} of {self._budget}, stop={self._stop})"

    def note(self, skipped: Sequence[Skipped], step: int = 0) -> None:
        """Takes note of what was skipped in the batch that is to be delivered at `step`.

        Args:
            skipped: the samples.
            step: batches delivered before, the same number on all ranks.
        """
        for entry in skipped:
            logger.warning("skipped, another sample of its batch takes its place: %s", entry)
        self.entries.extend(skipped)
        spent = len(self.entries)
        if skipped and self._shared is not None:
            spent = self._shared.spend(len(skipped))
        if skipped and spent > self._budget and self._stop is None:
            self._announce(spent, step)

    def check(self, step: int = 0) -> None:
        """Whether the batch at `step` may still be delivered.

        Raises:
            DecodeError: the budget is spent; on all ranks at the same step. Names samples and causes.
        """
        if self._stop is None and self._shared is not None:
            self._stop = self._shared.stopped()
        if self._stop is not None and step >= self._stop.step:
            raise DecodeError(self._stop.message, step=step)

    def _announce(self, spent: int, step: int) -> None:
        named = "; ".join(map(str, self.entries[-_NAMED:]))
        message = f"error_budget={self._budget} is spent, {spent} samples cannot be made; the last ones: {named}"
        self._stop = Stop(step if self._shared is None else step + NOTICE_STEPS, message)
        if self._shared is not None:
            logger.error("%s; all ranks stop before batch %d of this loader", message, self._stop.step)
            self._shared.stop(self._stop)
            # Another rank may have been faster; what it wrote counts for all.
            self._stop = self._shared.stopped()
