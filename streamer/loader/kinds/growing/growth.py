"""Decides how a dataset grows on one rank: keeps its log of admissions, and agrees on rounds with the other ranks.

`ordering.py` makes a `Growth` for each stream, and `session.py` asks it for the next round.
"""

from __future__ import annotations

import time
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from streamer.batches.samples.opened import Members
from streamer.batches.torch_arguments import get_worker_info
from streamer.config import RankConfig
from streamer.errors import ConfigError, Detail, StateError
from streamer.loader.agreement import gather_for, process_group, process_store
from streamer.loader.kinds.step_session import Share
from streamer.loader.stall.stats import GrowingStats
from streamer.order.growing import AdmissionLog, Growing, GrowingSpec
from streamer.order.plan import RankPlan
from streamer.order.spec import OrderSpec
from streamer.order.state import State

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store


# Least time between two looks at the offers of other ranks. A look costs 50 us; the trainer has batches meanwhile.
POLL_SECONDS = 0.005
# Longest wait for other ranks if the process group has no timeout: torch's own default.
_WAIT_SECONDS = 1800.0
# A longer time between two polls counts as this one: the process did not wait for other ranks then.
_GAP_SECONDS = 1.0


class Offers:
    """Lets all ranks agree on the number of cohorts that a round adds, which is the smallest that any rank offers.

    Each rank writes its offer into the process group's store; rank 0 reads those of a round, and writes the smallest.
    There is no collective that could meet another one, and no device. Nothing blocks: the feeder must go on delivering
    batches, on which the ranks that have not offered yet may depend. Used by one thread at a time.

    Args:
        store: Store of the process group.
        place: Prefix of the keys, the same on all ranks, used by one log of admissions.
        rank: Number of this rank.
        world: Number of ranks.
        timeout_seconds: Longest wait for the other ranks.
    """

    def __init__(self, store: Store, place: str, rank: int, world: int, *, timeout_seconds: float) -> None:
        self._store = store
        self._place = place
        self._rank = rank
        self._world = world
        self._timeout_seconds = timeout_seconds
        self._offered = -1
        self._looked = self._waited = 0.0

    @classmethod
    def from_process_group(cls, rank: int, world: int) -> Offers:
        """Makes the offers of one log of admissions; the n-th that a rank makes belong to the n-th of the other ranks.

        Args:
            rank: Number of this rank.
            world: Number of ranks.
        """
        store = process_store()
        number = store.add(f"streamer/growers/{rank}", 1)
        # The timeout that init_process_group was given; torch's stubs do not have it.
        timeout = getattr(store, "timeout", None)
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else _WAIT_SECONDS
        return cls(store, f"streamer/growing/{number}", rank, world, timeout_seconds=seconds)

    def __repr__(self) -> str:
        return f"Offers({self._place}, offered for round {self._offered})"

    def agree_on(self, number: int, cohorts: int) -> int | None:
        """Returns the smallest offer of all ranks for a round, or None if this rank does not know it yet.

        Asks the store at most once in `POLL_SECONDS`. The first offer of a rank for a round counts; rounds come in
        order.

        Args:
            number: Number of the round.
            cohorts: Offer of this rank: the number of cohorts that the round may add here.

        Raises:
            StateError: a rank does not answer in time, or the store fails.
        """
        now = time.monotonic()
        fresh = self._offered != number
        since = now - self._looked
        if not fresh and since < POLL_SECONDS:
            return None
        # Time without calls does not count as waiting: a session may end before the answer.
        self._waited = 0.0 if fresh else self._waited + min(since, _GAP_SECONDS)
        self._looked = now
        try:
            if fresh:
                self._store.set(self._key(number, self._rank), str(cohorts))
                self._offered = number
            least = self._find_least(number)
            silent: list[str] = []
            if least is None and self._waited > self._timeout_seconds:
                keys = {rank: self._key(number, rank) for rank in range(self._world)}
                silent = [str(rank) for rank, key in keys.items() if not self._store.check([key])]
                # If all have offered, rank 0 has not answered.
                silent = silent or ["0"]
        except Exception as error:  # torch has many types for a store that is gone
            raise StateError(f"the ranks cannot agree on round {number}: {error}", round=number) from error
        if silent:
            ranks = ", ".join(silent)
            raise StateError(
                f"ranks {ranks} have not said within {self._timeout_seconds:.0f} s what has arrived: all ranks must "
                "iterate the same loaders in step; one may have ended",
                ranks=ranks,
            )
        return least

    def _find_least(self, number: int) -> int | None:
        """Returns the smallest offer for a round, which rank 0 writes, or None if it is not there yet."""
        key = f"{self._place}/{number}"
        if self._rank == 0:
            offers = [self._key(number, rank) for rank in range(self._world)]
            if not self._store.check(offers):
                return None
            self._store.set(key, str(min(int(self._store.get(offer)) for offer in offers)))
        return int(self._store.get(key)) if self._store.check([key]) else None

    def _key(self, number: int, rank: int) -> str:
        return f"{self._place}/{number}/{rank}"


# A round of fewer batches would mix the uses of a sample with too few others.
_LEAST_BATCHES = 4


class Growth:
    """Keeps the rounds of a growing dataset, as one rank knows them, and decides on the next one.

    Used by one thread at a time; other threads may read the log.

    Args:
        growing: Argument `growing=` of the user.
        order: The order that is asked for.
        members: The dataset.
        rank_config: Rank and world size.
        global_batch: Samples of a batch over all ranks.

    Raises:
        ConfigError: several ranks cannot agree, because torch.distributed is not initialised or has other ranks; or an
            error of `Cohorts` or of `AdmissionLog`.

    Attributes:
        manifest: Manifest of the dataset.
        rank_config: Rank and world size.
        order: The order within which samples are admitted.
        log: The rounds so far.
        epoch_samples: Samples of an epoch over all ranks, in whole batches of the run that began.
        grow: Number of cohorts that each round adds, or None for those that have arrived on all ranks.
        waiting: Whether the last `decide` added no round, because other ranks have not said what they have.
    """

    def __init__(
        self,
        growing: Growing,
        order: OrderSpec,
        members: Members,
        rank_config: RankConfig,
        *,
        global_batch: int,
    ) -> None:
        self._growing = growing
        self._data = members.each[0]
        self.manifest = self._data.manifest
        self.rank_config = rank_config
        self.waiting = False
        cohorts = self._data.cohorts(order)
        window_samples = order.window * cohorts.samples // int(np.count_nonzero(self._data.order_samples))
        least = cohorts.enough(max(window_samples, _LEAST_BATCHES * global_batch))
        replayed = () if isinstance(growing.round_bytes, (str, int)) else tuple(growing.round_bytes)
        self._begin(
            GrowingSpec(
                order=order,
                reuse=growing.reuse,
                epoch_samples=growing.whole_epoch(global_batch),
                least=least,
                admitted=replayed,
            )
        )

    def __repr__(self) -> str:
        return f"Growth({self.log!r}, grow={self.grow})"

    def _begin(self, spec: GrowingSpec) -> None:
        """Begins the log of admissions with the rounds of `spec`; raises ConfigError if the ranks cannot agree."""
        self.order = spec.order
        cohorts = self._data.cohorts(spec.order)
        self.log = AdmissionLog(cohorts, spec.reuse, spec.least, spec.admitted)
        self.epoch_samples = spec.epoch_samples
        added = self._growing.bytes_per_round()
        data_bytes = max(1, int(self.manifest.chunk_local_bytes.sum()))
        self.grow = None if added is None else max(1, round(added * cohorts.per_pass / data_bytes))
        self._offers: Offers | None = None
        rank = self.rank_config
        if self.grow is None and rank.world_size > 1:
            # A rank knows only what has arrived on its own node: the ranks must agree.
            if gather_for(rank) is None:
                other = process_group()
                remedy = (
                    "call init_process_group first"
                    if other is None
                    else f"rank= and world_size= take the place of its {other[1]} ranks, which are others, so that "
                    "these cannot agree"
                )
                raise ConfigError(
                    f"the {rank.world_size} ranks of a growing dataset agree on what has arrived through "
                    f'torch.distributed: {remedy}; or give round_bytes= in bytes, as round_bytes="20GB"',
                    field="growing",
                )
            self._offers = Offers.from_process_group(rank.rank, rank.world_size)

    def decide(self, arrived: int) -> None:
        """Adds the next round to the log, or sets `waiting` if other ranks have not offered yet.

        Args:
            arrived: Number one past the last cohort that the round may train here: it and all before it are local.

        Raises:
            StateError: as `Offers.agree_on`.
        """
        added = self.grow
        if added is None:
            added = max(0, arrived - self.log.last.end)
            if self._offers is not None:
                added = self._offers.agree_on(len(self.log), added)
        self.waiting = added is None
        if added is not None:
            self.log.admit(added)

    def check_share(self, share: Share) -> None:
        """Makes sure that this process reads all batches of the rank, and so knows all rounds.

        Raises:
            ConfigError: this is a worker of a plain DataLoader, which does not know what other workers have trained.
        """
        if share.workers > 1 or get_worker_info() is not None:
            raise ConfigError(
                "a growing dataset is for StreamingDataLoader, or for a bare loop; the workers of a plain DataLoader "
                "do not share its log of admissions",
                field="growing",
            )

    # ------------------------------------------------------------ state

    @property
    def spec(self) -> GrowingSpec:
        """The order, with the rounds that are known so far; a state keeps it."""
        log = self.log
        return GrowingSpec(
            order=self.order,
            reuse=log.reuse,
            epoch_samples=self.epoch_samples,
            least=log.least,
            admitted=tuple(log.admitted),
        )

    def facts(self) -> dict[str, Detail]:
        """Returns the values that must be equal on all ranks."""
        return {
            "reuse": self._growing.reuse,
            "epoch_samples": self.epoch_samples,
            "grow": self._growing.bytes_per_round(),
            "admissions": blake2b(repr(self.log.admitted).encode(), digest_size=8).hexdigest(),
        }

    def restore(self, state: State) -> None:
        """Replaces the log by that of a saved state.

        Raises:
            StateError: the state is of other data, has another `reuse` or length of an epoch, or the ranks cannot
                agree.
        """
        saved = state.spec_of(GrowingSpec)
        state.check_value("reuse", saved.reuse, self._growing.reuse)
        state.check_value("epoch_samples", saved.epoch_samples, self._growing.whole_epoch(state.global_batch))
        try:
            self._begin(saved)
        except ConfigError as error:
            raise StateError(f"state of a growing dataset: {error.message}", field="admitted") from error

    def statistics(self, plan: RankPlan, batch: int) -> GrowingStats:
        """Returns passes, uses and the samples in use at a batch.

        Args:
            plan: Plan of the batch's epoch.
            batch: Number of the batch in the epoch.
        """
        log = self.log
        cohorts = self.log.cohorts
        rank = self.rank_config
        position = min(plan.position(batch), log.stop - 1)
        current = log.find_round(position)
        least_uses, most_uses = log.find_use_bounds(position)
        sample_bytes = self._data.stored_bytes / cohorts.samples
        return GrowingStats(
            reuse=log.reuse,
            round=current.number,
            passes=current.end / cohorts.per_pass,
            least_uses=least_uses,
            most_uses=most_uses,
            live_bytes=int((current.stop - current.start) * sample_bytes),
            data_bytes=int(cohorts.samples * sample_bytes),
            sample_bytes=sample_bytes,
            ranks=rank.world_size,
            nodes=max(1, rank.nodes),
        )
