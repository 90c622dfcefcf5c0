"""How a dataset grows on one rank: its log of admissions, what decides on the next round, and what a state keeps."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from torch.utils.data import get_worker_info

from streamer.batches.samples.opened import Members
from streamer.config import RankConfig
from streamer.errors import ConfigError, Detail, StateError
from streamer.loader.agreement.agreement import gather_for, process_group
from streamer.loader.kinds.growing.offers import Offers
from streamer.loader.kinds.step_session import Share
from streamer.loader.stall.growth import GrowingStats
from streamer.order.growing import AdmissionLog, Growing, GrowingSpec
from streamer.order.plan import RankPlan
from streamer.order.spec import OrderSpec
from streamer.order.state import State

# A round of fewer batches would spread the uses of a sample over too few others.
_LEAST_BATCHES = 4


class Growth:
    """The rounds of a growing dataset, as one rank knows them.

    Used by one thread at a time; other threads may read the log.

    Args:
        growing: how it grows.
        order: the order that is asked for.
        members: the dataset.
        rank_config: rank and world size.
        global_batch: B, over all ranks.

    Attributes:
        order: the order within which samples are admitted.
        log: the rounds so far.
        epoch_samples: samples of an epoch over all ranks, in whole batches of the run that began.
        grow: number of cohorts that each round adds; None: those that have arrived on all ranks.
        waiting: whether the last `decide` added no round, because other ranks have not said what they have.
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
        replayed = () if isinstance(growing.grow, (str, int)) else tuple(growing.grow)
        self._begin(GrowingSpec(order, growing.reuse, growing.whole_epoch(global_batch), least, replayed))

    def __repr__(self) -> str:
        return f"Growth({self.log!r}, grow={self.grow})"

    def _begin(self, spec: GrowingSpec) -> None:
        """Begins with a log of admissions."""
        self.order = spec.order
        cohorts = self._data.cohorts(spec.order)
        self.log = AdmissionLog(cohorts, spec.reuse, spec.least, spec.admitted)
        self.epoch_samples = spec.epoch_samples
        added = self._growing.grow_bytes()
        data_bytes = max(1, int(self.manifest.chunk_local_bytes.sum()))
        self.grow = None if added is None else max(1, round(added * cohorts.per_pass / data_bytes))
        self._offers = self._own_offers()

    def _own_offers(self) -> Offers | None:
        """Returns the way to agree with other ranks; None: there is one rank, or nothing to agree on."""
        rank = self.rank_config
        if self.grow is not None or rank.world_size == 1:
            return None
        if gather_for(rank) is None:
            other = process_group()
            remedy = (
                "call init_process_group first"
                if other is None
                else f"rank= and world_size= take the place of its {other[1]} ranks, which are others, so that these "
                "cannot agree"
            )
            raise ConfigError(
                f"the {rank.world_size} ranks of a growing dataset agree on what has arrived through "
                f'torch.distributed: {remedy}; or give grow= in bytes, as grow="20GB"',
                field="growing",
            )
        return Offers.of_process_group(rank.rank, rank.world_size)

    def decide(self, arrived: int) -> None:
        """Decides on the next round; `arrived` cohorts are local, from the first one on.

        Raises:
            StateError: a rank does not answer.
        """
        added = self.grow
        if added is None:
            added = max(0, arrived - self.log.last.end)
            if self._offers is not None:
                added = self._offers.agreed(len(self.log), added)
        self.waiting = added is None
        if added is not None:
            self.log.admit(added)

    def check_share(self, share: Share) -> None:
        """Makes sure that this process has the log.

        Raises:
            ConfigError: in a worker of a plain DataLoader, which does not know what other workers have trained.
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
        """The order, with the rounds that are known so far."""
        log = self.log
        return GrowingSpec(self.order, log.reuse, self.epoch_samples, log.least, tuple(log.admitted))

    def facts(self) -> dict[str, Detail]:
        """Returns the values that must be equal on all ranks."""
        return {
            "reuse": self._growing.reuse,
            "epoch_samples": self.epoch_samples,
            "grow": self._growing.grow_bytes(),
            "admissions": blake2b(repr(self.log.admitted).encode(), digest_size=8).hexdigest(),
        }

    def restore(self, state: State) -> None:
        """Continues with the log of a saved state.

        Raises:
            StateError: the state is of other data, or grows in another way.
        """
        saved = state.spec_of(GrowingSpec)
        state.check_value("reuse", saved.reuse, self._growing.reuse)
        state.check_value("epoch_samples", saved.epoch_samples, self._growing.whole_epoch(state.global_batch))
        try:
            self._begin(saved)
        except ConfigError as error:
            raise StateError(f"state of a growing dataset: {error.message}", field="admitted") from error

    def statistics(self, plan: RankPlan, batch: int) -> GrowingStats:
        """Returns passes, uses and the samples in use at a batch."""
        log = self.log
        cohorts = self.log.cohorts
        rank = self.rank_config
        position = min(plan.position(batch), log.stop - 1)
        of = log.find_round(position)
        least, most = log.bound_uses(position)
        sample_bytes = self._data.stored_bytes / cohorts.samples
        return GrowingStats(
            reuse=log.reuse,
            round=of.number,
            passes=of.end / cohorts.per_pass,
            least_uses=least,
            most_uses=most,
            live_bytes=int((of.stop - of.start) * sample_bytes),
            data_bytes=int(cohorts.samples * sample_bytes),
            sample_bytes=sample_bytes,
            ranks=rank.world_size,
            nodes=max(1, rank.nodes),
        )
