"""Handles samples that cannot be made with `on_error="skip"`: the rules, the skipped samples, and their budget.

Workers ask it which errors may be skipped (`batches/workers/batch_maker.py`). The loader keeps the ledger and the
budget (`loader/dataloader.py`, `loader/rank`). It imports no torch.

Positions never move: another sample of the same batch replaces a sample that cannot be made, and is marked as a repeat.
A document that cannot be made is left out of its row, which gets more padding. So every rank makes the same number of
steps with the same number of samples, wherever the damaged samples are.

The budget belongs to the job, not to one rank. If torch.distributed is initialised, ranks count through the process
group's store. A rank that finds the budget spent at its batch s does not raise at once, which would leave the others
waiting for it in their next collective. It records that no rank delivers batch s + 16 or later, and all ranks read this
record before each batch. All ranks then raise at the same step, as long as no rank is more than 16 batches ahead of
another, which every gradient exchange prevents. A rank that is farther ahead raises at its next batch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from streamer.base.system_limits import find_shortage, is_out_of_memory
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
        on_error: "raise" lets the batch fail. "skip" replaces the sample by another one of the batch, or leaves a
            document out of its row.
        budget: samples that may be skipped, over all epochs and ranks.
    """

    on_error: OnError = "raise"
    budget: int = 100


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that was replaced by another one, or a document that was left out of its row.

    Attributes:
        ordinal: index of the sample in its dataset, as `dataset[i]` takes it.
        key: key of the sample: its path below the url, or its container and byte range.
        cause: text of the error.
        member: name of its dataset in a mix, "" for one dataset.
    """

    ordinal: int
    key: str
    cause: str
    member: str = ""

    @property
    def place(self) -> str:
        """Text that names the sample: member of a mix, index and key."""
        return f"sample {f'{self.member}/' if self.member else ''}{self.ordinal} ({self.key})"

    def __str__(self) -> str:
        return printable(f"{self.place}: {self.cause}")


class Stop(msgspec.Struct, frozen=True):
    """The record with which a rank stops all ranks.

    Attributes:
        step: number of the first batch that no rank delivers, as `SkipLedger.note` counts them.
        message: the reason, which is the text of the DecodeError on every rank.
    """

    step: int
    message: str


class StoreBudget:
    """Counts skipped samples over all ranks, in the process group's store. Used by one thread.

    Each call makes requests to the store, which take 30 to 60 us each on one machine. Only loaders with on_error="skip"
    make them.

    Args:
        store: the process group's store.
        place: prefix of the keys in the store, the same on all ranks, used by one loader.
        rank: rank of this process, which `stop` adds to the message.
    """

    def __init__(self, store: Store, place: str, rank: int) -> None:
        self._store = store
        self._place = place
        self._rank = rank

    @classmethod
    def next(cls, store: Store, rank: int) -> StoreBudget:
        """Returns a new budget: the n-th that a rank makes counts together with the n-th of every other rank."""
        return cls(store, f"streamer/skips/{store.add(f'streamer/skippers/{rank}', 1)}", rank)

    def __repr__(self) -> str:
        return f"StoreBudget({self._place})"

    def spend(self, samples: int) -> int:
        """Adds to the count of skipped samples; returns the new count over all ranks."""
        return self._store.add(f"{self._place}/spent", samples)

    def stop(self, stop: Stop) -> None:
        """Records that all ranks stop. Only the record of the first rank counts."""
        if self._store.add(f"{self._place}/stoppers", 1) == 1:
            record = {"step": stop.step, "message": f"rank {self._rank}: {stop.message}"}
            self._store.set(f"{self._place}/stop", json.dumps(record))

    def find_stop(self) -> Stop | None:
        """Returns the recorded stop of all ranks, or None if there is none."""
        if not self._store.check([f"{self._place}/stop"]):
            return None
        record = json.loads(self._store.get(f"{self._place}/stop"))
        return Stop(record["step"], record["message"])


def may_skip(error: BaseException) -> bool:
    """Whether a sample that raised the error may be skipped: a DecodeError, or an error that is not of this package.

    Too many open files and a lack of memory say nothing of the sample, and all others would be skipped for it.
    """
    if isinstance(error, StreamerError) or not isinstance(error, Exception):
        return isinstance(error, DecodeError)
    return find_shortage(error) is None and not is_out_of_memory(error)


class SkipLedger:
    """The samples that this process has skipped, and their budget. Used by one thread.

    Args:
        budget: number of samples that may be skipped, over all epochs and, with `shared`, over all ranks.
        shared: counter over all ranks, or None to count in this process only.
        entries: samples that were skipped before, and are already counted.

    Attributes:
        entries: all samples that this process has skipped, in order.
    """

    def __init__(self, budget: int, shared: StoreBudget | None = None, entries: Sequence[Skipped] = ()) -> None:
        self.entries = list(entries)
        self._budget = budget
        self._shared = shared
        self._stop: Stop | None = None

    def __repr__(self) -> str:
        return f"SkipLedger({len(self.entries)} of {self._budget}, stop={self._stop})"

    def note(self, skipped: Sequence[Skipped], step: int = 0, *, packed: bool = False) -> None:
        """Records and logs samples that were skipped in one batch.

        If the budget is spent, it raises nothing, but notes at which batch `check` raises, with `shared` for all ranks.

        Args:
            skipped: the samples.
            step: number of batches delivered before this one, which is the same on all ranks.
            packed: whether they are documents of rows or buckets.
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
        """Checks whether a batch may still be delivered. With a shared budget it asks the store, without waiting.

        Args:
            step: number of batches delivered before this one.

        Raises:
            DecodeError: the budget is spent, on all ranks at the same step. It names samples and causes.
        """
        if self._stop is None and self._shared is not None:
            self._stop = self._shared.find_stop()
        if self._stop is not None and step >= self._stop.step:
            raise DecodeError(self._stop.message, step=step)
