"""A growing dataset prepared for one batch size: manifest, order, admissions, state."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from functools import partial
from hashlib import blake2b

import msgspec
import numpy as np
from torch.utils.data import get_worker_info

from streamer.annotations.join import table_digest
from streamer.client.chunk_reader import ChunkReader
from streamer.client.session import EpochSchedule, SessionPart, SessionSpec
from streamer.errors import ConfigError, Detail, StateError
from streamer.loader.contracts import StepSession
from streamer.loader.rank.agreement import gather_for
from streamer.loader.rank.connections import EngineConnections
from streamer.loader.rank.growing.feed import CohortFeed, Entry
from streamer.loader.rank.growing.offers import Offers, OwnOffer, StoreOffers
from streamer.loader.rank.growing.session import Admissions, GrowingSession, Room, Steps
from streamer.loader.rank.rank_stream import Identity, RankStream, SavedPlace
from streamer.loader.rank.step_session import Integers, Share
from streamer.loader.samples.growing import GrowingMaker, GrowingPlans, GrowingRecipe, SampleNumbers
from streamer.loader.samples.maker import CachedBytes, SampleMaker, sample_key
from streamer.loader.samples.opened import OpenedDataset
from streamer.loader.samples.recipe import SampleRecipe
from streamer.loader.stall.growth import GrowingStats
from streamer.order.growing import AdmissionLog, Growing, GrowingState
from streamer.order.plan import batch_count
from streamer.order.protocol import Batches
from streamer.order.state import State, resume_at

# Of the cache, for the cohorts in use; the rest is for their arrival and for other datasets of the job.
WINDOW_SHARE = 0.85
# A round of fewer batches would spread the uses of a sample over too few others.
_LEAST_BATCHES = 4


class GrowingPrepared(RankStream):
    """A growing dataset prepared for one batch size. Used by one thread at a time.

    Args:
        connections: to the engine.
        recipe: of the samples.
        data: the selected samples.
        identity: of the consumer.
        growing: as the user says it.

    Attributes:
        manifest: of the dataset.
    """

    _plans: GrowingPlans

    def __init__(
        self,
        connections: EngineConnections,
        recipe: SampleRecipe,
        data: OpenedDataset,
        identity: Identity,
        growing: Growing,
    ) -> None:
        super().__init__(connections, identity, recipe)
        self._data = data
        self.manifest = data.manifest
        self._growing = growing
        self._recipe: GrowingRecipe
        self._begin_at(GrowingRecipe(recipe, growing.whole_epoch(recipe.global_batch)), growing.replayed)

    def __repr__(self) -> str:
        return (
            f"GrowingPrepared(manifest={self.manifest.digest}, {self._admissions!r}, "
            f"global_batch={self.global_batch}, rank={self.rank_config.rank}/{self.rank_config.world_size})"
        )

    # ------------------------------------------------------------ samples

    @property
    def seed(self) -> int:
        """The seed of the order and of each sample's randomness."""
        return self._recipe.base.spec.seed

    @property
    def log(self) -> AdmissionLog:
        """The rounds so far."""
        return self._admissions.log

    @property
    def admissions(self) -> list[int]:
        """Cohorts that each round has added, from round 0."""
        return self.log.admitted

    def statistics(self, epoch: int, batch: int) -> GrowingStats:
        """Passes, uses and the samples in use at a batch."""
        log, cohorts, rank = self.log, self._numbers.cohorts, self.rank_config
        position = min(self._plans.plan(epoch).position(batch), log.stop - 1)
        of, data_bytes = log.at(position), int(self.manifest.chunk_local_bytes.sum())
        least, most = log.used(position)
        sample_bytes = data_bytes / max(1, self.manifest.samples)
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

    def samples_in(self, epoch: int) -> int:
        """Number of samples of an epoch, over all ranks, without repeats."""
        return self._recipe.epoch_samples

    def sample_key(self, ordinal: int) -> str:
        """Path below the url, or container and byte range."""
        return sample_key(self.manifest, int(self._numbers.to_manifest(np.array([ordinal], np.int64))[0]))

    def sample_number(self, ordinal: int) -> int:
        """Code -> the number that `dataset[i]` takes."""
        return ordinal % self._numbers.cohorts.samples

    def facts(self) -> dict[str, Detail]:
        """The values that must be equal on all ranks."""
        log = blake2b(repr(self.admissions).encode(), digest_size=8).hexdigest()
        return {
            **self._recipe.base.spec.parts(),
            "world_size": self.rank_config.world_size,
            "global_batch": self.global_batch,
            "last_batch": self.last_batch,
            "annotations": table_digest(self._recipe.base.rules.joined),
            "reuse": self._growing.reuse,
            "epoch_samples": self._recipe.epoch_samples,
            "grow": self._growing.grow_bytes(),
            "admissions": log,
        }

    def recipe(self) -> GrowingRecipe:
        """The recipe for worker processes."""
        return self._recipe

    def maker(self) -> GrowingMaker:
        """Makes samples in this process."""
        content = CachedBytes(self.manifest, ChunkReader(self.roots))
        maker = SampleMaker(self.manifest, content, self._recipe.base.rules, self._data.number)
        return GrowingMaker(maker, self._numbers)

    def ordinals(self, epoch: int, batch: int) -> Integers:
        """This rank's samples of a batch, as codes."""
        return self.plan(epoch).batch(batch).ordinals

    # ------------------------------------------------------------ state

    def state(self, epoch: int, batch: int) -> dict[str, object]:
        """The state to save after `batch` batches of `epoch`."""
        epoch_samples = self._recipe.epoch_samples
        position = self._plans.plan(epoch).position(batch) - epoch * epoch_samples
        place = State(self._recipe.base.spec, epoch, position, self.global_batch)
        log = self.log
        return GrowingState(place, log.reuse, epoch_samples, log.least, tuple(log.admitted)).to_dict()

    def _adopt(self, state: Mapping[str, object], strict: bool) -> SavedPlace:
        if not strict:
            raise ConfigError("strict=False is for a MixedDataset; the order of one dataset is fixed", field="strict")
        saved = GrowingState.from_dict(state)
        place = saved.place
        place.check_given(self._recipe.base.spec)
        free = {part: getattr(place.spec, part) for part in self._identity.free_parts}
        spec = msgspec.structs.replace(self._recipe.base.spec, **free)
        saved.check(spec, self._growing.reuse, self._growing.whole_epoch(place.global_batch))
        recipe = GrowingRecipe(msgspec.structs.replace(self._recipe.base, spec=spec), saved.epoch_samples)
        try:
            self._begin_at(recipe, saved.admitted, saved.least)
        except ConfigError as error:
            raise StateError(f"state of a growing dataset: {error.message}", field="admitted") from error
        at = (place.epoch, place.position, place.global_batch)
        resume = resume_at(at, saved.epoch_samples, self.global_batch, self.last_batch)
        return SavedPlace(place.epoch, place.position, resume)

    def _enter_at(self, epoch: int, start: int) -> None:
        position = epoch * self._recipe.epoch_samples + start
        base = msgspec.structs.replace(self._recipe.base, entry=(epoch, position))
        self._recipe = msgspec.structs.replace(self._recipe, base=base)
        self._plans = GrowingPlans(self._recipe, self.log)

    def _begin_at(self, recipe: GrowingRecipe, admitted: tuple[int, ...], least: int = 0) -> None:
        """Begins a log of admissions with what is known of it; `least` 0: chosen from the batch size."""
        growing, spec, manifest = self._growing, recipe.base.spec, self.manifest
        self._recipe, self._numbers = recipe, SampleNumbers(spec, self._data)
        cohorts = self._numbers.cohorts
        window_samples = spec.window * cohorts.samples // int(np.count_nonzero(np.diff(cohorts.chunk_first)))
        least = least or cohorts.enough(max(window_samples, _LEAST_BATCHES * self.global_batch))
        added = growing.grow_cohorts(cohorts, int(manifest.chunk_local_bytes.sum()))
        log = AdmissionLog(cohorts, growing.reuse, least, admitted)
        self._admissions = Admissions(log, self._offers(), added)
        self._plans = GrowingPlans(recipe, log)

    def _offers(self) -> Offers:
        rank = self.rank_config
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

    def share_session(self, epoch: int, share: Share, *, endless: bool) -> StepSession:
        """Opens the session of the rank's batches from the share's first one on.

        Raises:
            ConfigError: in a worker of a plain DataLoader, which does not know what other workers have trained.
        """
        if share.workers > 1 or get_worker_info() is not None:
            raise ConfigError(
                "a growing dataset is for StreamingDataLoader, or for a bare loop; the workers of a plain DataLoader "
                "do not share its log of admissions",
                field="growing",
            )
        plan = self._plans.plan(epoch)
        position = plan.position(share.first)
        self._know(position)
        recipe, batch = self._recipe, self.global_batch
        later = batch_count(recipe.epoch_samples, batch, self.last_batch)
        steps = Steps(epoch, share.first, position, plan.batches - share.first, later, recipe.epoch_samples, batch)
        chunk_bytes, cohorts = self.manifest.chunk_local_bytes, self._numbers.cohorts
        feed = CohortFeed(cohorts, self._plans.lanes, chunk_bytes, self._entry(position))
        self._last_connection = connection = self._connections.take(self._last_connection)
        on_close = partial(self._connections.give_back, connection)
        try:
            room = self._room(connection.welcome.limit_bytes, feed.live_bytes)
            part = SessionPart(
                dataset=self.manifest.digest,
                name="",
                options=connection.settings.encoded_options(),
                # What is used up leaves first, and is not kept in place of what is in use.
                value=0.0,
                open_bytes=room.bytes,
            )
            spec = msgspec.structs.replace(self._session_spec(epoch, share, feed.first), parts=(part,))
            return GrowingSession(connection, spec, steps, feed, self._admissions, room=room, on_close=on_close)
        except BaseException:
            on_close()
            raise

    def _know(self, position: int) -> None:
        """Decides on the rounds before a position, where an epoch was left early or left out: their uses are lost."""
        ready = threading.Event()
        while self.log.stop < position:
            if self._admissions.decide(0, ready.set) is None:
                ready.wait()
                ready.clear()

    def _entry(self, position: int) -> Entry:
        log, size, epoch_samples = self.log, self.global_batch, self._recipe.epoch_samples
        first_batch = np.full(self.manifest.chunks, np.iinfo(np.int64).max)
        if position == log.stop:
            return Entry(0, log.next_begin, log[len(log) - 1].end, first_batch)
        of = log.at(position)
        # After a resume with another batch size, batches do not follow each other over the end of an epoch.
        stop = of.stop if epoch_samples % size == 0 else min(of.stop, (position // epoch_samples + 1) * epoch_samples)
        steps = (stop - position) // size
        for need in self._plans.order.needs(self._plans.split, Batches(position, size, 0, steps)) if steps else ():
            np.minimum.at(first_batch, need.chunk, need.first)
        return Entry(steps, of.begin, of.end, first_batch)

    def _cohort_bytes(self, cohorts: int) -> int:
        """The chunks of some cohorts, in this rank's lanes."""
        total, all_lanes = int(self.manifest.chunk_local_bytes.sum()), self._numbers.cohorts.spec.lanes
        return total * cohorts * len(self._plans.lanes) // (all_lanes * self._numbers.cohorts.per_pass)

    def _room(self, limit_bytes: int, live_bytes: int) -> Room:
        """This rank's room in a cache: its share of `WINDOW_SHARE`, or more where that is too little for its rounds."""
        rank, log, cohorts = self.rank_config, self.log, self._numbers.cohorts
        # The last chunk of each lane belongs to a later cohort as well.
        edges = len(self._plans.lanes) * int(self.manifest.chunk_local_bytes.max())
        added = min(self._admissions.grow or 0, cohorts.per_pass)
        reserve = self._cohort_bytes(max(log.least, added)) + edges
        needed = max(live_bytes, self._cohort_bytes(max(self._admissions.fixed_window, log.least))) + reserve
        own = limit_bytes // max(1, rank.world_size // max(1, rank.nodes))
        # Cohorts of two passes may be live together; their chunks are the same files.
        all_data = self._cohort_bytes(cohorts.per_pass) + edges
        most = math.inf if max(needed, own) >= all_data else max(needed, own)
        return Room(bytes=max(needed, int(WINDOW_SHARE * own)), reserve=reserve, most=most)

    def _session_spec(self, epoch: int, share: Share, schedule: EpochSchedule) -> SessionSpec:
        rank = self.rank_config
        return SessionSpec(
            dataset=self.manifest.digest,
            consumer=f"rank {rank.rank}",
            order_id=self._recipe.base.spec.order_id,
            global_batch=self.global_batch,
            world_size=rank.world_size,
            start=self._plans.plan(epoch).position(share.first),
            stream=self._identity.stream,
            sharers=rank.world_size // max(1, rank.nodes),
        )
