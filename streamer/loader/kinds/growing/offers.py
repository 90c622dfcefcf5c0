"""How many cohorts have arrived on every rank: the smallest of the numbers that the ranks offer, once per round."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

from streamer.errors import StateError
from streamer.loader.agreement.agreement import process_store

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

# A look costs 50 us; the trainer has finished batches meanwhile.
POLL_SECONDS = 0.005
# Torch's own default.
_WAIT_SECONDS = 1800.0
_GAP_SECONDS = 1.0


class Offers:
    """The offers of all ranks, in the process group's store: rank 0 reads those of a round and writes the smallest.

    There is no collective that could meet another one, and no device. Nothing blocks: the feeder must go on delivering
    batches, on which the ranks that have not offered yet may depend. Used by one thread at a time.

    Args:
        place: prefix of the keys; the same on all ranks, used by one log of admissions.
        timeout_seconds: longest wait for the other ranks.
    """

    def __init__(self, store: Store, place: str, rank: int, world: int, timeout_seconds: float) -> None:
        self._store = store
        self._place = place
        self._rank = rank
        self._world = world
        self._timeout_seconds = timeout_seconds
        self._offered = -1
        self._looked = self._waited = 0.0

    @classmethod
    def of_process_group(cls, rank: int, world: int) -> Offers:
        """Returns the n-th offers of this rank, which are compared with the n-th of every other rank."""
        store = process_store()
        number = store.add(f"streamer/growers/{rank}", 1)
        # Not in torch's stubs; what init_process_group was given.
        timeout = getattr(store, "timeout", None)
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else _WAIT_SECONDS
        return cls(store, f"streamer/growing/{number}", rank, world, seconds)

    def __repr__(self) -> str:
        return f"Offers({self._place}, offered for round {self._offered})"

    def agreed(self, number: int, cohorts: int) -> int | None:
        """Returns the number of cohorts that every rank has for a round; None: not all ranks have offered yet.

        Looks at most once in `POLL_SECONDS`. The first offer of a rank for a round counts; rounds come in order.

        Raises:
            StateError: a rank does not answer in time, or the store fails.
        """
        now = time.monotonic()
        fresh = self._offered != number
        since = now - self._looked
        if not fresh and since < POLL_SECONDS:
            return None
        # Where nothing looked meanwhile, nothing waited: a session may end before the answer.
        self._waited = 0.0 if fresh else self._waited + min(since, _GAP_SECONDS)
        self._looked = now
        try:
            if fresh:
                self._store.set(self._key(number, self._rank), str(cohorts))
                self._offered = number
            least = self._least(number)
            silent = self._silent(number) if least is None and self._waited > self._timeout_seconds else ""
        except Exception as error:  # torch has many types for a store that is gone
            raise StateError(f"the ranks cannot agree on round {number}: {error}", round=number) from error
        if silent:
            raise StateError(
                f"ranks {silent} have not said within {self._timeout_seconds:.0f} s what has arrived: all ranks must "
                "iterate the same loaders in step; one may have ended",
                ranks=silent,
            )
        return least

    def _least(self, number: int) -> int | None:
        key = f"{self._place}/{number}"
        if self._rank == 0:
            offers = [self._key(number, rank) for rank in range(self._world)]
            if not self._store.check(offers):
                return None
            self._store.set(key, str(min(int(self._store.get(offer)) for offer in offers)))
        return int(self._store.get(key)) if self._store.check([key]) else None

    def _silent(self, number: int) -> str:
        """Returns the ranks that have not offered; rank 0, which answers, if all have."""
        ranks = [str(rank) for rank in range(self._world) if not self._store.check([self._key(number, rank)])]
        return ", ".join(ranks or ["0"])

    def _key(self, number: int, rank: int) -> str:
        return f"{self._place}/{number}/{rank}"
