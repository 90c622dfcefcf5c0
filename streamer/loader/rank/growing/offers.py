"""How many cohorts have arrived on every rank: the least of what the ranks offer, one number per round."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from streamer.errors import StateError, StreamerError
from streamer.loader.rank.agreement import process_store

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

# A look costs 50 us; the trainer has finished batches meanwhile.
_POLL_SECONDS = 0.005
_JOIN_SECONDS = 5.0
# Torch's own default.
_WAIT_SECONDS = 1800.0


class Offers(Protocol):
    """What the ranks agree on. Used by one thread."""

    def agreed(self, number: int, cohorts: int, wake: Callable[[], object]) -> int | None:
        """What every rank has for a round; None: not all of them have said it yet.

        Args:
            number: of the round; rounds come in order.
            cohorts: what this rank has; what it said first for a round counts.
            wake: called once, on any thread, when the answer is there.

        Raises:
            StreamerError: a rank does not answer.
        """
        ...

    def close(self) -> None:
        """Ends the waiting; it can begin again. Idempotent."""
        ...


class OwnOffer:
    """There is one rank."""

    def agreed(self, number: int, cohorts: int, wake: Callable[[], object]) -> int | None:
        """What this rank has."""
        return cohorts

    def close(self) -> None:
        """Does nothing."""


class StoreOffers:
    """Through the process group's store: rank 0 reads all offers of a round and writes the least.

    No collective that could meet another one, no device. A thread waits: the feeder must go on delivering batches, on
    which the ranks that have not offered yet may depend.

    Args:
        store: the process group's.
        place: begins the keys; the same on all ranks, used by one log of admissions.
        rank, world: of this process.
        timeout_seconds: a rank that needs longer is an error.
    """

    def __init__(self, store: Store, place: str, rank: int, world: int, timeout_seconds: float) -> None:
        self._store = store
        self._place = place
        self._rank, self._world = rank, world
        self._timeout_seconds = timeout_seconds
        self._offered = -1
        self._least: tuple[int, int] = (-1, 0)
        self._failure: StreamerError | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def of_process_group(cls, rank: int, world: int) -> StoreOffers:
        """The n-th of this rank and the n-th of every other offer together."""
        store = process_store()
        number = store.add(f"streamer/growers/{rank}", 1)
        # Not in torch's stubs; what init_process_group was given.
        timeout = getattr(store, "timeout", None)
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else _WAIT_SECONDS
        return cls(store, f"streamer/growing/{number}", rank, world, seconds)

    def __repr__(self) -> str:
        return f"StoreOffers({self._place}, offered for round {self._offered})"

    def agreed(self, number: int, cohorts: int, wake: Callable[[], object]) -> int | None:
        """See `Offers`."""
        if self._failure is not None:
            raise self._failure
        if self._least[0] == number:
            return self._least[1]
        if self._offered != number:
            self._store.set(f"{self._place}/{number}/{self._rank}", str(cohorts))
            self._offered = number
        if self._thread is None:
            self._closing.clear()
            self._thread = threading.Thread(target=self._wait, args=(number, wake), name="streamer-offers", daemon=True)
            self._thread.start()
        return None

    def close(self) -> None:
        """See `Offers`."""
        self._closing.set()
        if (thread := self._thread) is not None:
            thread.join(_JOIN_SECONDS)
            self._thread = None

    def _wait(self, number: int, wake: Callable[[], object]) -> None:
        try:
            if self._rank == 0:
                keys = [f"{self._place}/{number}/{rank}" for rank in range(self._world)]
                if not self._all_there(keys):
                    return
                least = min(int(self._store.get(key)) for key in keys)
                self._store.set(f"{self._place}/{number}", str(least))
            key = f"{self._place}/{number}"
            if not self._all_there([key]):
                return
            self._least = number, int(self._store.get(key))
        except StreamerError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 - of torch: the store is gone; raised in the feeder, which waits
            self._failure = StateError(f"the ranks cannot agree on round {number}: {error}", round=number)
        self._thread = None
        if not self._closing.is_set():
            wake()

    def _all_there(self, keys: list[str]) -> bool:
        """Waits for keys; False: closed meanwhile."""
        deadline = time.monotonic() + self._timeout_seconds
        while not self._store.check(keys):
            if self._closing.wait(_POLL_SECONDS):
                return False
            if time.monotonic() > deadline:
                missing = [key.rsplit("/", 1)[1] for key in keys if not self._store.check([key])]
                raise StateError(
                    f"ranks {', '.join(missing)} have not said within {self._timeout_seconds:.0f} s what has arrived: "
                    "all ranks must iterate the same loaders in step; one may have ended",
                    ranks=", ".join(missing),
                )
        return True
