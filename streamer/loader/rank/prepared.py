"""A dataset prepared for one batch size: manifest, order, state."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec
import numpy as np

from streamer.client.engine_client import EngineClient
from streamer.client.session import EpochSchedule, SessionSpec
from streamer.config import RankConfig
from streamer.errors import Detail
from streamer.loader.rank.agreement import StoreBudget, gather_for
from streamer.loader.rank.connections import EngineConnections
from streamer.loader.rank.step_session import Integers, Share, StepSession, open_bytes
from streamer.loader.samples.maker import CachedBytes, SampleMaker, sample_key
from streamer.loader.samples.recipe import Plans, SampleRecipe
from streamer.loader.skipping import SharedBudget, SkipRules
from streamer.manifest.table import Manifest
from streamer.order.plan import RankPlan, sample_count
from streamer.order.rank_split import RankSplit
from streamer.order.spec import OrderSpec
from streamer.order.state import Resume, State


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a consumer.

    Attributes:
        rank_config: rank and world size.
        stream: distinguishes the loaders of one job.
        free_parts: parts of the order that were chosen automatically: a resumed state may replace them.
        skip_rules: for samples that cannot be made.
    """

    rank_config: RankConfig
    stream: str
    free_parts: frozenset[str]
    skip_rules: SkipRules


class Prepared:
    """A dataset prepared for one batch size. Used by one thread at a time.

    Each of its sessions has its own connection to the engine.

    Attributes:
        manifest: of the dataset.
        spec: the order.
        rank_config: rank and world size.
        global_batch: samples of a batch over all ranks.
        last_batch: what becomes of an incomplete last batch.
        roots: cache folders as this process sees them.
    """

    def __init__(
        self,
        connections: EngineConnections,
        recipe: SampleRecipe,
        manifest: Manifest,
        identity: Identity,
    ) -> None:
        self._connections = connections
        self._last_connection: EngineClient | None = None
        self._recipe = recipe
        self._identity = identity
        self._plans = Plans(recipe, manifest)
        self.manifest = manifest
        self.rank_config = identity.rank_config
        self.global_batch = recipe.global_batch
        self.last_batch = recipe.last_batch
        self.roots = list(recipe.roots)

    def __repr__(self) -> str:
        return (
            f"Prepared(manifest={self.manifest.digest}, order={self.spec.order_id}, global_batch={self.global_batch}, "
            f"rank={self.rank_config.rank}/{self.rank_config.world_size})"
        )

    @property
    def spec(self) -> OrderSpec:
        """The order; a resumed state may replace lanes and window."""
        return self._recipe.spec

    @property
    def local_batch(self) -> int:
        """Samples of this rank in a batch."""
        return self.global_batch // self.rank_config.world_size

    @property
    def epoch_samples(self) -> int:
        """Samples of this rank in a whole epoch, repeats that fill the last batch included."""
        split = RankSplit(self.spec.lanes, self.global_batch, self.rank_config.world_size, self.rank_config.rank)
        return sample_count(self._plans.samples, split, self.last_batch)

    @property
    def seed(self) -> int:
        """The seed of the order and of each sample's randomness."""
        return self.spec.seed

    @property
    def skip_rules(self) -> SkipRules:
        """The rules for samples that cannot be made."""
        return self._identity.skip_rules

    def sample_key(self, ordinal: int) -> str:
        """Path below the url, or container and byte range."""
        return sample_key(self.manifest, ordinal)

    def sample_number(self, ordinal: int) -> int:
        """Ordinal in the manifest -> the number that `dataset[i]` takes."""
        return self._plans.number(ordinal)

    def shared_budget(self) -> SharedBudget | None:
        """Counts skipped samples over all ranks; None: one rank. Every rank must call it equally often."""
        return None if gather_for(self.rank_config) is None else StoreBudget.of_process_group()

    def facts(self) -> dict[str, Detail]:
        """The values that must be equal on all ranks."""
        return {
            **self.spec.parts(),
            "world_size": self.rank_config.world_size,
            "global_batch": self.global_batch,
            "last_batch": self.last_batch,
        }

    def plan(self, epoch: int) -> RankPlan:
        """This rank's batches of an epoch."""
        return self._plans.plan(epoch)

    def recipe(self) -> SampleRecipe:
        """The recipe for worker processes."""
        return self._recipe

    def maker(self) -> SampleMaker:
        """Makes samples in this process."""
        content = CachedBytes(self.manifest, self.roots)
        return SampleMaker(self.manifest, content, self._recipe.rules, self.sample_number)

    def ordinals(self, epoch: int, batch: int) -> Integers:
        """This rank's samples of a batch, by their numbers in the manifest."""
        return self._plans.to_manifest(self.plan(epoch).batch(batch).ordinals)

    def session(self, epoch: int, start_batch: int) -> StepSession:
        """Opens the rank's session, whose step 0 is that batch."""
        return self.share_session(epoch, Share(first=start_batch), endless=True)

    def share_session(self, epoch: int, share: Share, *, endless: bool) -> StepSession:
        """Opens a session for one worker's share of the rank's batches, from the share's first batch on."""
        # Computed once for request and session: with 540 chunks it delays the first batch by 2 to 6 ms.
        begun = [self.schedule(epoch, share)]

        def schedule(epoch: int, share: Share) -> tuple[EpochSchedule, int]:
            return begun.pop() if begun else self.schedule(epoch, share)

        spec = self._session_spec(epoch, share, begun[0][0])
        self._last_connection = connection = self._connections.take(self._last_connection)
        on_close = partial(self._connections.give_back, connection)
        try:
            return StepSession(connection, spec, schedule, (epoch, share), endless=endless, on_close=on_close)
        except BaseException:
            on_close()
            raise

    def schedule(self, epoch: int, share: Share) -> tuple[EpochSchedule, int]:
        """The chunks that a share needs in an epoch, by its steps, and the number of its steps."""
        plan = self._plans.plan(epoch)
        steps = share.steps(plan.batches)
        whole = plan.schedule(share.first)
        first, last = share.steps_from(whole.first), np.minimum(share.steps_until(whole.last), steps - 1)
        mine = first <= last
        order = np.argsort(first[mine], kind="stable")
        return EpochSchedule(epoch, whole.chunk[mine][order], first[mine][order], last[mine][order]), steps

    def state(self, epoch: int, batch: int) -> dict[str, object]:
        """The state to save after `batch` batches of `epoch`."""
        position = self._plans.plan(epoch).position(batch)
        return dict(State(self.spec, epoch, position, self.global_batch).to_dict())

    def resume(self, state: Mapping[str, object]) -> tuple[int, int]:
        """Restores a saved state; after a finished epoch the next one begins.

        Returns:
            The epoch and the number of its next batch.

        Raises:
            StateError: the state is of another dataset, order or seed.
        """
        saved = self._adopt(state)
        return self._continue(saved.resume(self._plans.samples, self.global_batch, self.last_batch))

    def reenter(self, state: Mapping[str, object]) -> tuple[int, int]:
        """Like `resume`, but a finished epoch stays finished: its next batch is one past the last."""
        saved = self._adopt(state)
        batch, start = divmod(saved.position, self.global_batch)
        return self._continue(Resume(saved.epoch, start, batch))

    def _adopt(self, state: Mapping[str, object]) -> State:
        """Reads a state. It replaces the parts of the order that were chosen automatically, for its global batch."""
        saved = State.from_dict(state)
        # First: lanes and window of another shuffle are no parts of this order.
        saved.check_given(self.spec)
        free = {part: getattr(saved.spec, part) for part in self._identity.free_parts}
        spec = msgspec.structs.replace(self.spec, **free)
        saved.check(spec)
        self._recipe = msgspec.structs.replace(self._recipe, spec=spec)
        return saved

    def _continue(self, resume: Resume) -> tuple[int, int]:
        self._recipe = msgspec.structs.replace(self._recipe, entry=(resume.epoch, resume.start))
        self._plans = Plans(self._recipe, self.manifest)
        return resume.epoch, resume.batch

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
