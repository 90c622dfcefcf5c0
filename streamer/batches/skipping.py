"""`on_error="skip"`: the rules, the list of skipped samples, and their budget. Imports no torch.

Positions never move: another sample of the same batch replaces a sample that cannot be made, and is marked as a repeat;
a document that cannot be made leaves its places in a row empty. So every rank makes the same number of steps with the
same number of samples, wherever the damaged samples are.

The budget is the job's. If torch.distributed is initialised, ranks count through the process group's store. A rank that
finds the budget spent at its batch s does not raise at once, which would leave the others waiting for it in their next
collective. It records that no rank delivers batch s + 16 or later, and all ranks read this record before each batch.
They all raise at the same step, as long as no rank is more than 16 batches ahead of another, which every gradient
exchange prevents; a rank that is farther ahead raises at its next batch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from streamer.errors import DecodeError, StreamerError, printable

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

logger = logging.getLogger(__name__)

OnError = Literal["raise", "skip"]

# Batches that a rank may run ahead of another between two gradient exchanges (accumulation over 8 steps is common).
NOTICE_STEPS = 16
# Samples that an error names; the others are only counted.
_NAMED = 5


class SkipRules(msgspec.Struct, frozen=True):
    """The rules for samples that cannot be made.

    Attributes:
        on_error: "raise": the batch fails. "skip": another sample of the batch replaces it; its row goes without it.
        budget: samples that may be skipped, over all epochs and ranks.
    """

    on_error: OnError = "raise"
    budget: int = 100


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that was replaced by another one, or a document that was left out of its row.

    Attributes:
        ordinal: the number that `dataset[i]` takes.
        key: path below the url, or container and byte range.
        cause: the error.
        member: name of its dataset in a mix; "" outside one.
    """

    ordinal: int
    key: str
    cause: str
    member: str = ""

    @property
    def place(self) -> str:
        """Number and key."""
        return f"sample {f'{self.member}/' if self.member else ''}{self.ordinal} ({self.key})"

    def __str__(self) -> str:
        return printable(f"{self.place}: {self.cause}")


class Stop(msgspec.Struct, frozen=True):
    """The record with which a rank stops all ranks.

    Attributes:
        step: the first batch that no rank delivers.
        message: the reason.
    """

    step: int
    message: str


class StoreBudget:
    """Counts skipped samples over all ranks, in the process group's store. Used by one thread.

    A look is one request to the store, 30 to 60 us on one machine; only loaders with on_error="skip" look.

    Args:
        store: the process group's.
        place: begins the keys; the same on all ranks, used by one loader.
        rank: of this process.
    """

    def __init__(self, store: Store, place: str, rank: int) -> None:
        self._store = store
        self._place = place
        self._rank = rank

    @classmethod
    def next(cls, store: Store, rank: int) -> StoreBudget:
        """The n-th of this rank counts together with the n-th of every other."""
        return cls(store, f"streamer/skips/{store.add(f'streamer/skippers/{rank}', 1)}", rank)

    def __repr__(self) -> str:
        return f"StoreBudget({self._place})"

    def spend(self, samples: int) -> int:
        """Adds to the count of skipped samples; returns the new count over all ranks."""
        return self._store.add(f"{self._place}/spent", samples)

    def stop(self, stop: Stop) -> None:
        """Records that all ranks stop; only the first record counts."""
        if self._store.add(f"{self._place}/stoppers", 1) == 1:
            record = {"step": stop.step, "message": f"rank {self._rank}: {stop.message}"}
            self._store.set(f"{self._place}/stop", json.dumps(record))

    def find_stop(self) -> Stop | None:
        """The recorded stop, if there is one."""
        if not self._store.check([f"{self._place}/stop"]):
            return None
        record = json.loads(self._store.get(f"{self._place}/stop"))
        return Stop(record["step"], record["message"])


def may_skip(error: BaseException) -> bool:
    """Whether a sample caused the error (decoding or transform), not the engine, the cache or the store."""
    return isinstance(error, DecodeError) or (isinstance(error, Exception) and not isinstance(error, StreamerError))


class SkipLedger:
    """The samples that this process has skipped, and their budget. Used by one thread.

    Args:
        budget: samples that may be skipped, over all epochs and, with `shared`, over all ranks.
        shared: counts over all ranks; None: over this process.
        entries: skipped before, and already counted.
    """

    def __init__(self, budget: int, shared: StoreBudget | None = None, entries: Sequence[Skipped] = ()) -> None:
        self.entries = list(entries)
        self._budget = budget
        self._shared = shared
        self._stop: Stop | None = None

    def __repr__(self) -> str:
        return f"SkipLedger({len(self.entries)} of {self._budget}, stop={self._stop})"

    def note(self, skipped: Sequence[Skipped], step: int = 0, *, packed: bool = False) -> None:
        """Records the samples skipped in the batch that will be delivered at `step`.

        Args:
            skipped: the samples.
            step: batches delivered before, the same number on all ranks.
            packed: whether they are documents of rows, or of buckets.
        """
        for entry in skipped:
            instead = "left out of its row" if packed else "replaced by another sample of its batch"
            logger.warning("skipped and %s: %s", instead, entry)
        self.entries.extend(skipped)
        spent = len(self.entries)
        if skipped and self._shared is not None:
            spent = self._shared.spend(len(skipped))
        if skipped and spent > self._budget and self._stop is None:
            named = "; ".join(map(str, self.entries[-_NAMED:]))
            message = f"Skip(budget={self._budget}) is spent, {spent} samples cannot be made; the last ones: {named}"
            self._stop = Stop(step if self._shared is None else step + NOTICE_STEPS, message)
            if self._shared is not None:
                logger.error("%s; all ranks stop before batch %d of this loader", message, self._stop.step)
                self._shared.stop(self._stop)
                # Another rank may have been faster; its record counts for all.
                self._stop = self._shared.find_stop()

    def check(self, step: int = 0) -> None:
        """Checks whether the batch at `step` may still be delivered.

        Raises:
            DecodeError: the budget is spent; on all ranks at the same step. Names samples and causes.
        """
        if self._stop is None and self._shared is not None:
            self._stop = self._shared.find_stop()
        if self._stop is not None and step >= self._stop.step:
            raise DecodeError(self._stop.message, step=step)
