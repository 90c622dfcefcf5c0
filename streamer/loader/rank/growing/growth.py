"""How a dataset grows on one rank: its log of admissions, and the sessions in which its cohorts arrive."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from hashlib import blake2b

import msgspec
import numpy as np
from torch.utils.data import get_worker_info

from streamer.client.engine_client import EngineClient
from streamer.client.session import SessionSpec
from streamer.config import RankConfig
from streamer.errors import ConfigError, Detail, StateError
from streamer.loader.rank.agreement import gather_for
from streamer.loader.rank.growing.feed import CohortFeed, Entry
from streamer.loader.rank.growing.offers import Offers, OwnOffer, StoreOffers
from streamer.loader.rank.growing.session import Admissions, GrowingSession, Room, Steps
from streamer.loader.rank.step_session import Share
from streamer.loader.samples.opened import Members
from streamer.loader.samples.recipe import SampleRecipe
from streamer.loader.stall.growth import GrowingStats
from streamer.order import state as order_state
from streamer.order.growing import AdmissionLog, Cohorts, Growing
from streamer.order.plan import RankPlan, batch_count
from streamer.order.protocol import Batches
from streamer.order.spec import OrderSpec

# Of the cache, for the cohorts in use; the rest is for their arrival and for other datasets of the job.
WINDOW_SHARE = 0.85
# A round of fewer batches would spread the uses of a sample over too few others.
_LEAST_BATCHES = 4


class Growth:
    """The rounds of a growing dataset, as one rank knows them. Used by one thread at a time.

    Args:
        growing: as the user says it.
        recipe: of the samples.
        members: the dataset.
        rank_config: rank and world size.

    Attributes:
        epoch_samples: samples of an epoch over all ranks, in whole batches of the run that began.
        admissions: the log, and how it goes on.
    """

    admissions: Admissions
    epoch_samples: int

    def __init__(self, growing: Growing, recipe: SampleRecipe, members: Members, rank_config: RankConfig) -> None:
        self._growing = growing
        self._data = members.each[0]
        self._rank_config = rank_config
        self._begin(recipe, growing.whole_epoch(recipe.global_batch), growing.replayed)

    def __repr__(self) -> str:
        return repr(self.admissions)

    @property
    def log(self) -> AdmissionLog:
        """The rounds so far."""
        return self.admissions.log

    def facts(self) -> dict[str, Detail]:
        """The values that must be equal on all ranks."""
        return {
            "reuse": self._growing.reuse,
            "epoch_samples": self.epoch_samples,
            "grow": self._growing.grow_bytes(),
            "admissions": blake2b(repr(self.log.admitted).encode(), digest_size=8).hexdigest(),
        }

    def statistics(self, plan: RankPlan, batch: int) -> GrowingStats:
        """Passes, uses and the samples in use at a batch."""
        log, cohorts, rank, manifest = self.log, self.log.cohorts, self._rank_config, self._data.manifest
        position = min(plan.position(batch), log.stop - 1)
        of, data_bytes = log.at(position), int(manifest.chunk_local_bytes.sum())
        least, most = log.used(position)
        sample_bytes = data_bytes / max(1, manifest.samples)
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

    # ------------------------------------------------------------ state

    def saved(self) -> order_state.Growth:
        """The part of a state that says how the dataset has grown."""
        log = self.log
        return order_state.Growth(log.reuse, self.epoch_samples, log.least, tuple(log.admitted))

    def restore(self, recipe: SampleRecipe, state: order_state.State) -> None:
        """Continues with the log of a saved state.

        Raises:
            StateError: the state is of other data, or grows in another way.
        """
        growing = self._growing
        saved = state.check_growth(growing.reuse, growing.whole_epoch(state.global_batch))
        try:
            self._begin(recipe, saved.epoch_samples, saved.admitted, saved.least)
        except ConfigError as error:
            raise StateError(f"state of a growing dataset: {error.message}", field="admitted") from error

    def _begin(self, recipe: SampleRecipe, epoch_samples: int, admitted: tuple[int, ...], least: int = 0) -> None:
        """Begins a log of admissions with what is known of it; `least` 0: chosen from the batch size."""
        assert isinstance(recipe.spec, OrderSpec)
        growing, manifest = self._growing, self._data.manifest
        cohorts = Cohorts(recipe.spec, self._data.chunk_samples)
        window_samples = recipe.spec.window * cohorts.samples // int(np.count_nonzero(np.diff(cohorts.chunk_first)))
        least = least or cohorts.enough(max(window_samples, _LEAST_BATCHES * recipe.global_batch))
        added = growing.grow_cohorts(cohorts, int(manifest.chunk_local_bytes.sum()))
        log = AdmissionLog(cohorts, growing.reuse, least, admitted)
        self.admissions, self.epoch_samples = Admissions(log, self._offers(), added), epoch_samples

    def _offers(self) -> Offers:
        rank = self._rank_config
        if gather_for(rank) is not None:
            return StoreOffers.of_process_group(rank.rank, rank.world_size)
        if rank.world_size > 1 and self._growing.grow_bytes() is None:
            raise ConfigError(
                f"the {rank.world_size} ranks of a growing dataset agree on what has arrived through "
                'torch.distributed: call init_process_group first, or give grow= in bytes, as grow="20GB"',
                field="growing",
            )
        return OwnOffer()

    # ------------------------------------------------------------ sessions

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

    def session(
        self,
        client: EngineClient,
        spec: SessionSpec,
        recipe: SampleRecipe,
        start: tuple[RankPlan, int],
        on_close: Callable[[], None],
    ) -> GrowingSession:
        """Opens the session of the rank's batches.

        Args:
            client: the connection to the engine.
            spec: the consumer, with one part.
            recipe: of the samples.
            start: the plan of an epoch, and the batch of it that is step 0.
            on_close: called once, when the session is closed.
        """
        plan, first = start
        position, lanes = plan.position(first), recipe.growing_lanes
        self._know(position)
        batch, epoch_samples = recipe.global_batch, self.epoch_samples
        later = batch_count(epoch_samples, batch, recipe.last_batch)
        steps = Steps(plan.order.epoch, first, position, plan.batches - first, later, epoch_samples, batch)
        entry = self._entry(recipe, plan, position)
        feed = CohortFeed(self.log.cohorts, lanes, self._data.manifest.chunk_local_bytes, entry)
        room = self._room(client.welcome.limit_bytes, feed.live_bytes, len(lanes))
        (part,) = spec.parts
        spec = msgspec.structs.replace(spec, parts=(msgspec.structs.replace(part, open_bytes=room.bytes),))
        return GrowingSession(client, spec, steps, feed, self.admissions, room=room, on_close=on_close)

    def _know(self, position: int) -> None:
        """Decides on the rounds before a position, where an epoch was left early or left out: their uses are lost."""
        ready = threading.Event()
        while self.log.stop < position:
            if self.admissions.decide(0, ready.set) is None:
                ready.wait()
                ready.clear()

    def _entry(self, recipe: SampleRecipe, plan: RankPlan, position: int) -> Entry:
        log, size, epoch_samples = self.log, recipe.global_batch, self.epoch_samples
        first_batch = np.full(self._data.manifest.chunks, np.iinfo(np.int64).max)
        if position == log.stop:
            return Entry(0, log.next_begin, log[len(log) - 1].end, first_batch)
        of = log.at(position)
        # After a resume with another batch size, batches do not follow each other over the end of an epoch.
        stop = of.stop if epoch_samples % size == 0 else min(of.stop, (position // epoch_samples + 1) * epoch_samples)
        steps = (stop - position) // size
        for need in plan.order.needs(recipe.split, Batches(position, size, 0, steps)) if steps else ():
            np.minimum.at(first_batch, need.chunk, need.first)
        return Entry(steps, of.begin, of.end, first_batch)

    def _cohort_bytes(self, cohorts: int, lanes: int) -> int:
        """The chunks of some cohorts, in so many lanes."""
        total, all_cohorts = int(self._data.manifest.chunk_local_bytes.sum()), self.log.cohorts
        return total * cohorts * lanes // (all_cohorts.spec.lanes * all_cohorts.per_pass)

    def _room(self, limit_bytes: int, live_bytes: int, lanes: int) -> Room:
        """This rank's room in a cache: its share of `WINDOW_SHARE`, or more where that is too little for its rounds."""
        rank, log, per_pass = self._rank_config, self.log, self.log.cohorts.per_pass
        # The last chunk of each lane belongs to a later cohort as well.
        edges = lanes * int(self._data.manifest.chunk_local_bytes.max())
        added = min(self.admissions.grow or 0, per_pass)
        reserve = self._cohort_bytes(max(log.least, added), lanes) + edges
        trained = self._cohort_bytes(max(self.admissions.fixed_window, log.least), lanes)
        needed = max(live_bytes, trained) + reserve
        own = limit_bytes // max(1, rank.world_size // max(1, rank.nodes))
        # Cohorts of two passes may be live together; their chunks are the same files.
        all_data = self._cohort_bytes(per_pass, lanes) + edges
        most = math.inf if max(needed, own) >= all_data else max(needed, own)
        return Room(bytes=max(needed, int(WINDOW_SHARE * own)), reserve=reserve, most=most)
