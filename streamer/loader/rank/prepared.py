"""A dataset prepared for one batch size: manifest, order, state."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from streamer.annotations.join import table_digest
from streamer.client.chunk_reader import ChunkReader
from streamer.client.session import EpochSchedule, SessionSpec
from streamer.errors import ConfigError, Detail
from streamer.loader.rank.agreement import Gather
from streamer.loader.rank.connections import EngineConnections
from streamer.loader.rank.rank_stream import Identity, RankStream, SavedPlace
from streamer.loader.rank.step_session import Integers, Share, open_bytes
from streamer.loader.samples.maker import CachedBytes, SampleMaker, sample_key
from streamer.loader.samples.opened import OpenedDataset
from streamer.loader.samples.recipe import Plans, SampleRecipe
from streamer.order.spec import OrderSpec
from streamer.order.state import State


class Prepared(RankStream):
    """A dataset prepared for one batch size. Used by one thread at a time.

    Each of its sessions has its own connection to the engine.

    Attributes:
        manifest: of the dataset.
    """

    _plans: Plans

    def __init__(
        self,
        connections: EngineConnections,
        recipe: SampleRecipe,
        data: OpenedDataset,
        identity: Identity,
    ) -> None:
        super().__init__(connections, identity, recipe)
        self._recipe = recipe
        self._data = data
        self._plans = Plans(recipe, data)
        self.manifest = data.manifest

    def __repr__(self) -> str:
        return (
            f"Prepared(manifest={self.manifest.digest}, order={self.spec.order_id}, global_batch={self.global_batch}, "
            f"rank={self.rank_config.rank}/{self.rank_config.world_size})"
        )

    @property
    def spec(self) -> OrderSpec:
        """The order; a resumed state may replace lanes and window."""
        return self._recipe.spec

    def samples_in(self, epoch: int) -> int:
        """Number of samples of an epoch, over all ranks, without repeats."""
        return self._plans.samples

    @property
    def seed(self) -> int:
        """The seed of the order and of each sample's randomness."""
        return self.spec.seed

    def sample_key(self, ordinal: int) -> str:
        """Path below the url, or container and byte range."""
        return sample_key(self.manifest, ordinal)

    def sample_number(self, ordinal: int) -> int:
        """Ordinal in the manifest -> the number that `dataset[i]` takes."""
        return self._data.number(ordinal)

    def facts(self) -> dict[str, Detail]:
        """The values that must be equal on all ranks."""
        return {
            **self.spec.parts(),
            "world_size": self.rank_config.world_size,
            "global_batch": self.global_batch,
            "last_batch": self.last_batch,
            "annotations": table_digest(self._recipe.rules.joined),
            "peers": self._identity.peers,
        }

    def recipe(self) -> SampleRecipe:
        """The recipe for worker processes."""
        return self._recipe

    def maker(self) -> SampleMaker:
        """Makes samples in this process."""
        content = CachedBytes(self.manifest, ChunkReader(self.roots))
        return SampleMaker(self.manifest, content, self._recipe.rules, self.sample_number)

    def ordinals(self, epoch: int, batch: int) -> Integers:
        """This rank's samples of a batch, by their numbers in the manifest."""
        return self._data.to_manifest(self.plan(epoch).batch(batch).ordinals)

    def state(self, epoch: int, batch: int) -> dict[str, object]:
        """The state to save after `batch` batches of `epoch`."""
        position = self._plans.plan(epoch).position(batch)
        return dict(State(self.spec, epoch, position, self.global_batch).to_dict())

    def share_caches(self, gather: Gather) -> None:
        """Makes the engines of all ranks share their caches; this rank then reads what its node holds. Collective.

        Raises:
            StreamerError: an engine cannot share its cache; on every rank.
        """
        # Only here: datasets that share nothing do not load it.
        from streamer.loader.rank.sharing import Shared, has_lanes, share_caches

        spec = self.spec
        fixed = spec.shuffle != "none" and spec.cut != "redrawn"
        follow = fixed and has_lanes(self.manifest.chunks, self.global_batch, spec.lanes)
        shared = Shared(
            manifest=self.manifest,
            name=self._data.digest,
            global_batch=self.global_batch,
            lanes=self._plans.chunk_lanes() if follow else None,
            lane_count=spec.lanes,
        )
        with self._connections.for_requests() as connection:
            runs = share_caches(gather, connection, self.rank_config, shared)
        self._recipe = msgspec.structs.replace(self._recipe, runs=runs)
        self._plans = Plans(self._recipe, self._data)

    def _adopt(self, state: Mapping[str, object], strict: bool) -> SavedPlace:
        if not strict:
            raise ConfigError("strict=False is for a MixedDataset; the order of one dataset is fixed", field="strict")
        saved = State.from_dict(state)
        # First: lanes and window of another shuffle are no parts of this order.
        saved.check_given(self.spec)
        free = {part: getattr(saved.spec, part) for part in self._identity.free_parts}
        spec = msgspec.structs.replace(self.spec, **free)
        saved.check(spec)
        # They belong to the lanes, and are found anew when the ranks compare.
        self._recipe = msgspec.structs.replace(self._recipe, spec=spec, runs=())
        resume = saved.resume(self._plans.samples, self.global_batch, self.last_batch)
        return SavedPlace(saved.epoch, saved.position, resume)

    def _enter_at(self, epoch: int, start: int) -> None:
        self._recipe = msgspec.structs.replace(self._recipe, entry=(epoch, start))
        self._plans = Plans(self._recipe, self._data)

    def _session_spec(self, epoch: int, share: Share, schedule: EpochSchedule) -> SessionSpec:
        rank, worker = self.rank_config, f" worker {share.worker} of {share.workers}"
        return SessionSpec(
            dataset=self.manifest.digest,
            consumer=f"rank {rank.rank}{worker if share.workers > 1 else ''}",
            order_id=self.spec.order_id,
            global_batch=self.global_batch,
            world_size=rank.world_size,
            # Workers of a plain DataLoader resume each at its own position: there is nothing to compare.
            start=self._plans.plan(epoch).position(share.first) if share.workers == 1 else 0,
            open_bytes=open_bytes(schedule, self.manifest.chunk_local_bytes),
            stream=self._identity.stream,
            sharers=rank.world_size // max(1, rank.nodes) * share.workers,
        )
