"""Tests of what is skipped, by one rank and by several that count together in a fake store."""

from __future__ import annotations

import errno

import pytest

from streamer.batches.skipping import NOTICE_STEPS, SkipLedger, Skipped, StoreBudget, may_skip
from streamer.errors import CacheFullError, DecodeError


class DictStore:
    """Stands for a process group's store: a dict in this process, where a key that is waited for must be there."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}

    def add(self, key, amount):
        self.values[key] = self.values.get(key, 0) + amount
        return self.values[key]

    def set(self, key, value):
        self.values[key] = value

    def get(self, key):
        return self.values[key].encode()

    def check(self, keys):
        return all(key in self.values for key in keys)

    def wait(self, keys, timeout):
        assert self.check(keys)


def entry(ordinal: int) -> Skipped:
    return Skipped(ordinal, f"{ordinal}.jpg", "ValueError: bad")


def ranks(budget: int, count: int) -> list[SkipLedger]:
    """Makes the ledgers of some ranks that share one store."""
    store = DictStore()
    return [SkipLedger(budget, StoreBudget(store, "place", rank)) for rank in range(count)]


@pytest.mark.parametrize(
    ("error", "may"),
    [
        (DecodeError("bad"), True),
        (KeyError("k"), True),
        (OSError(errno.ENOENT, "no such file"), True),
        (OSError(errno.EMFILE, "too many open files"), False),
        (MemoryError(), False),
        (CacheFullError("full"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_what_may_be_skipped(error, may):
    """A sample's own errors may be skipped, and those of cache, store and engine may not."""
    assert may_skip(error) is may


def test_alone_the_budget_ends_at_once():
    """Without other ranks the sample that is one too many for the budget is an error before its batch."""
    ledger = SkipLedger(2)
    for step in range(2):
        ledger.note([entry(step)], step)
        ledger.check(step)
    ledger.note([entry(7)], 2)
    with pytest.raises(DecodeError, match=r"Skip\(budget=2\) is spent, 3 .*sample 7 \(7\.jpg\): ValueError: bad"):
        ledger.check(2)


def test_ranks_share_the_budget_and_stop_at_the_same_step():
    """Ranks share the budget of `Skip`, and all stop at the same batch.

    The rank that finds it spent gives notice; the others may be some batches apart.
    """
    first, second = ranks(2, 2)
    first.note([entry(1), entry(2)], 0)
    second.note([entry(3)], 5)
    stop = 5 + NOTICE_STEPS
    for ledger in (first, second):
        for step in range(5, stop):
            ledger.check(step)
        with pytest.raises(DecodeError, match=r"rank 1: Skip\(budget=2\) is spent, 3 samples .*3\.jpg"):
            ledger.check(stop)


def test_the_first_notice_counts():
    """Where two ranks find the budget spent, all stop where the first one said."""
    first, second = ranks(0, 2)
    first.note([entry(1)], 3)
    second.note([entry(2)], 5)
    for ledger in (first, second):
        ledger.check(3 + NOTICE_STEPS - 1)
        with pytest.raises(DecodeError, match=r"rank 0.*1\.jpg"):
            ledger.check(3 + NOTICE_STEPS)


def test_a_rank_far_ahead_raises_as_soon_as_it_looks():
    """A rank that is ahead of the batch to stop at raises as soon as it looks, as it cannot stop in the past."""
    first, second = ranks(0, 2)
    second.check(99)
    first.note([entry(1)], 0)
    with pytest.raises(DecodeError, match=r"Skip\(budget=0\) is spent"):
        second.check(100)


def test_what_was_skipped_before_counts():
    """Samples that a ledger takes over from another one count for its budget."""
    ledger = SkipLedger(1, entries=[entry(0)])
    ledger.check()
    ledger.note([entry(1)])
    with pytest.raises(DecodeError, match=r"Skip\(budget=1\) is spent, 2 samples"):
        ledger.check()
