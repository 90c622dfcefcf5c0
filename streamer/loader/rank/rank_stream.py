"""One rank's batches of a dataset or of a mix, prepared for one batch size: plan, schedule, sessions and state.

A dataset alone is a stream with one member, a mix has several; of a growing dataset `growing.growth` decides the
rounds, and `growing.session` opens the sessions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.annotations.join import table_digest
from streamer.batches.rows.options import Buckets, Packing
from streamer.batches.samples.codes import StreamCodes
from streamer.batches.samples.maker import sample_key
from streamer.batches.samples.opened import Members
from streamer.batches.samples.plans import Plans
from streamer.batches.samples.recipe import SampleRecipe, StreamMaker
from streamer.batches.skipping import Skipped, SkipRules, StoreBudget
from streamer.client.engine_client import EngineClient
from streamer.client.session import EpochSchedule
from streamer.errors import ConfigError, Detail
from streamer.loader.agreement.agreement import Gather, gather_for, process_group, process_store
from streamer.loader.agreement.epoch_cell import check_same_rank
from streamer.loader.kinds.growing.growth import Growth
from streamer.loader.kinds.growing.session import GrowingSession
from streamer.loader.kinds.step_session import (
    EpochSession,
    Identity,
    Integers,
    OrderRequest,
    Share,
    StepSession,
    open_bytes,
)
from streamer.loader.members.connections import EngineConnections
from streamer.loader.stall.growth import GrowingStats
from streamer.order.audit.tallies import Record
from streamer.order.plan import RankPlan, sample_count
from streamer.order.spec import OrderSpec
from streamer.order.state import Resume, State
from streamer.wire.messages import OpenSession, Part

if TYPE_CHECKING:
    from streamer.order.mix import MixSpec

logger = logging.getLogger(__name__)


class RankStream:
    """One rank's batches. Used by one thread at a time; each of its sessions has its own connection to the engine.

    Attributes:
        rank_config: rank and world size.
        members: the datasets that are read.
        growth: of a growing dataset: its rounds; None: the dataset does not grow.
    """

    _recipe: SampleRecipe

    def __init__(
        self,
        connections: EngineConnections,
        recipe: SampleRecipe,
        members: Members,
        identity: Identity,
        request: OrderRequest,
    ) -> None:
        self._connections = connections
        self._last_connection: EngineClient | None = None
        self._identity = identity
        self._request = request
        self.members = members
        self.rank_config = identity.rank_config
        self.growth = (
            None if request.growing is None else Growth(request.growing, recipe, members, identity.rank_config)
        )
        self._set(recipe)

    def __repr__(self) -> str:
        rank = self.rank_config
        data = ", ".join(self.names) or self.members.each[0].manifest.digest
        growth = "" if self.growth is None else f"{self.growth!r}, "
        return (
            f"RankStream({data}, {growth}order={self.spec.order_id}, global_batch={self.global_batch}, "
            f"rank={rank.rank}/{rank.world_size})"
        )

    # ------------------------------------------------------------ order

    @property
    def spec(self) -> OrderSpec | MixSpec:
        """The order; a resumed state may replace parts of it."""
        return self._recipe.spec

    @property
    def seed(self) -> int:
        """The seed of the order and of each sample's randomness; of a mix, that of the mixing."""
        return self.spec.seed

    @property
    def global_batch(self) -> int:
        """Samples of a batch over all ranks."""
        return self._recipe.global_batch

    @property
    def local_batch(self) -> int:
        """Samples of this rank in a batch."""
        return self.global_batch // self.rank_config.world_size

    def samples_in(self, epoch: int) -> int:
        """Number of samples of an epoch, over all ranks, without repeats."""
        if self.growth is not None:
            return self.growth.epoch_samples
        return self.members.order_samples[0] if isinstance(self.spec, OrderSpec) else self.spec.samples(epoch)

    def rank_samples(self, epoch: int) -> int:
        """Samples of this rank in a whole epoch, repeats that fill the last batch included."""
        return sample_count(self.samples_in(epoch), self._recipe.split, self._recipe.last_batch)

    def plan(self, epoch: int) -> RankPlan:
        """This rank's batches of an epoch, numbered from the start of the epoch also after `resume`."""
        return self._plans.plan(epoch)

    def ordinals(self, epoch: int, batch: int) -> Integers:
        """This rank's samples of a batch, or its rows, by their codes."""
        return self._codes.of(self.plan(epoch).batch(batch).ordinals)

    @property
    def packing(self) -> Packing | Buckets | None:
        """How documents are packed into rows, which are the samples then; equal for all members of a mix."""
        rows = self.members.each[0].rows
        return None if rows is None else rows.recipe.packing

    def recipe(self) -> SampleRecipe:
        """The recipe for worker processes."""
        return self._recipe

    def maker(self) -> StreamMaker:
        """Makes samples in this process."""
        return StreamMaker(self._recipe, self.members)

    # ------------------------------------------------------------ names of samples

    @property
    def names(self) -> Sequence[str]:
        """The names of the members of a mix; empty for one dataset."""
        return [source.name for source in self._request.sources]

    def sample_key(self, ordinal: int) -> str:
        """A readable name of a sample: its path below the url of its dataset, or container and byte range."""
        number, index = self._codes.locate(ordinal)
        member = self.members.each[number]
        return sample_key(member.manifest, int(member.to_manifest(np.array([index], np.int64))[0]))

    def sample_label(self, ordinal: int) -> str:
        """The number of a sample for messages; in a mix with the name of its dataset."""
        number, index = self._codes.locate(ordinal)
        return f"{self.names[number]}/{index}" if self.names else str(index)

    def skipped(self, ordinal: int, cause: str) -> Skipped:
        """The record of a sample that was skipped."""
        number, index = self._codes.locate(ordinal)
        return Skipped(index, self.sample_key(ordinal), cause, self.names[number] if self.names else "")

    @property
    def skip_rules(self) -> SkipRules:
        """The rules for samples that cannot be made; the loader's own settings override them."""
        return self._identity.skip_rules

    def shared_budget(self) -> StoreBudget | None:
        """Counts skipped samples over all ranks; None: one rank. Every rank must call it equally often."""
        rank_config = self.rank_config
        return None if gather_for(rank_config) is None else StoreBudget.next(process_store(), rank_config.rank)

    # ------------------------------------------------------------ members of a mix

    @property
    def member_samples(self) -> Sequence[int]:
        """Number of samples, or rows, of each member."""
        return self.members.order_samples

    def quotas(self, epoch: int) -> Sequence[int]:
        """Samples of each member of a mix in an epoch, over all ranks."""
        return self._mix_spec.quotas(epoch)

    def sources(self, epoch: int, batch: int) -> npt.NDArray[np.int16]:
        """Returns the number of the member of each sample of this rank's batch: (samples,)."""
        return self._codes.members(self.ordinals(epoch, batch)).astype(np.int16)

    def drawn(self, epoch: int, batch: int) -> Integers:
        """Returns, of a mix, the samples of each member before a batch, over all epochs and ranks: (members,)."""
        position = min(self.plan(epoch).position(batch), self.samples_in(epoch))
        return np.array(self._mix_spec.drawn(epoch), np.int64) + self._plans.drawn(epoch, position)

    def follow(self, before: RankStream, epoch: int) -> None:
        """Continues a mix at `epoch` where it was before its data changed: `before` has delivered all epochs before."""
        if epoch > 0:
            self.adopt(before.state(epoch - 1, before.plan(epoch - 1).batches))

    @property
    def _mix_spec(self) -> MixSpec:
        return cast("MixSpec", self.spec)

    def growing_stats(self, epoch: int, batch: int) -> GrowingStats | None:
        """Returns, of a growing dataset, passes, uses and the samples in use at a batch."""
        return None if self.growth is None else self.growth.statistics(self.plan(epoch), batch)

    # ------------------------------------------------------------ ranks

    @property
    def place(self) -> tuple[int, int]:
        """Rank and world size."""
        return self.rank_config.rank, self.rank_config.world_size

    def check_rank(self) -> None:
        """Refuses to go on where a process group says another rank than the one that it was prepared for.

        Raises:
            StateError: it does.
        """
        if not self._identity.given and (group := process_group()) is not None and group != self.place:
            check_same_rank("This iterator", self.place, group)

    def facts(self) -> Mapping[str, Detail]:
        """The values that must be equal on all ranks."""
        return {
            **self.spec.facts(),
            "world_size": self.rank_config.world_size,
            "global_batch": self.global_batch,
            "last_batch": self._recipe.last_batch,
            "annotations": " ".join(table_digest(member.rules.joined) or "none" for member in self._recipe.members),
            "peers": self._identity.peers,
            **self.members.facts_of_joins(),
            **({} if self.growth is None else self.growth.facts()),
        }

    def share_caches(self, gather: Gather) -> None:
        """Makes the engines of all ranks share their caches; this rank then reads what its node holds. Collective.

        Raises:
            StreamerError: an engine cannot share its cache; on every rank.
        """
        # Only here: datasets that share nothing do not load it.
        from streamer.loader.rank.sharing import Shared, has_lanes, share_caches

        spec = cast("OrderSpec", self.spec)
        only = self.members.each[0]
        fixed = spec.shuffle != "none" and spec.cut != "redrawn"
        follow = fixed and has_lanes(only.manifest.chunks, self.global_batch, spec.lanes)
        shared = Shared(
            manifest=only.manifest,
            name=only.digest,
            global_batch=self.global_batch,
            lanes=self._plans.chunk_lanes() if follow else None,
            lane_count=spec.lanes,
        )
        with self._connections.for_requests() as connection:
            runs = share_caches(gather, connection, self.rank_config, shared)
        self._set(msgspec.structs.replace(self._recipe, runs=runs))

    # ------------------------------------------------------------ state

    def state(self, epoch: int, batch: int) -> dict[str, object]:
        """The state to save after `batch` batches of `epoch`."""
        position = self.position(epoch, batch)
        growth = None if self.growth is None else self.growth.saved()
        return State(self.spec, epoch, position, self.global_batch, growth).to_dict()

    def position(self, epoch: int, batch: int) -> int:
        """The position of an epoch, over all ranks, at which a batch begins."""
        return self._recipe.start(epoch) + batch * self.global_batch

    def record(self, epoch: int, batch: int) -> Record:
        """The record of what is delivered from a batch on, still empty; see `streamer.order.audit.tallies`."""
        only = self.members.each[0]
        place = (self.rank_config.rank, self.rank_config.world_size)
        every = self.packing is not None or only.samples == only.manifest.samples
        dense = every and self._request.mix is None and self.growth is None
        return Record.begin(epoch, self.position(epoch, batch), self.samples_in(epoch), place, dense=dense)

    def resume(self, state: Mapping[str, object]) -> tuple[int, int]:
        """Restores a saved state; after a finished epoch the next one begins.

        Returns:
            The epoch and the number of its next batch.

        Raises:
            StateError: the state is of another dataset, order or seed.
        """
        return self._go_on(self._checked(state))

    def adopt(self, state: Mapping[str, object]) -> tuple[int, int]:
        """Restores a saved state; a mix may be changed, and the epoch after the saved one begins.

        Raises:
            ConfigError: this is not a mix.
            StateError: the state is of another dataset.
        """
        request = self._request
        if request.mix is None:
            raise ConfigError("strict=False is for a MixedDataset; the order of one dataset is fixed", field="strict")
        from streamer.order.adopt import adopt

        adopted = adopt(state, request.mix, request.sources, self.global_batch)
        for note in adopted.notes if self.rank_config.rank == 0 else ():
            logger.warning("%s", note)
        return self._go_on(State(adopted.spec, adopted.spec.origin_epoch, 0, self.global_batch))

    def reenter(self, state: Mapping[str, object]) -> tuple[int, int]:
        """Restores a saved state; a finished epoch stays finished: its next batch is one past the last."""
        saved = self._checked(state)
        batch, start = divmod(saved.position, self.global_batch)
        return self._go_on(saved, Resume(saved.epoch, start, batch))

    def _checked(self, saved: Mapping[str, object]) -> State:
        """A state that belongs to what is read here.

        Raises:
            StateError: it does not.
        """
        request = self._request
        state = State.from_dict(saved)
        state.of_kind("growing" if self.growth is not None else "" if request.mix is None else "mix")
        if request.mix is not None:
            like = cast("MixSpec", state.spec)
            state.check(request.mix.spec(request.sources, self.global_batch, like=like))
        else:
            # Only parts that were chosen automatically may differ: those of the state replace them.
            # So does the batch that rows are balanced for: another batch size goes on with the batches of the state.
            state.check(self.spec, left_out=request.free_parts | {"balance.batch"})
        return state

    def _go_on(self, state: State, at: Resume | None = None) -> tuple[int, int]:
        """Continues with the order of a state, at its place or at another one."""
        # The runs belong to the lanes, and are found anew when the ranks compare.
        recipe = msgspec.structs.replace(self._recipe, spec=state.spec, runs=())
        if self.growth is not None:
            self.growth.restore(recipe, state)
        self._recipe = recipe
        if at is None:
            at = state.resume(self.samples_in(state.epoch), self.global_batch, recipe.last_batch)
        self._set(msgspec.structs.replace(recipe, entry=(at.epoch, at.start)))
        return at.epoch, at.batch

    def _set(self, recipe: SampleRecipe) -> None:
        """Takes over a recipe; its epochs are planned anew."""
        if self.growth is not None:
            recipe = msgspec.structs.replace(recipe, epoch_samples=self.growth.epoch_samples)
        self._recipe = recipe
        self._codes = StreamCodes(recipe.spec, self.members, growing=recipe.epoch_samples > 0)
        self._plans = Plans(recipe, self.members, None if self.growth is None else self.growth.log)

    # ------------------------------------------------------------ sessions

    def session(self, epoch: int, start_batch: int) -> StepSession:
        """Opens the rank's session, whose step 0 is that batch."""
        return self.share_session(epoch, Share(first=start_batch), endless=True)

    def share_session(self, epoch: int, share: Share, *, endless: bool) -> StepSession:
        """Opens a session for one worker's share of the rank's batches, from the share's first batch on.

        Raises:
            ConfigError: of a growing dataset, in a worker of a plain DataLoader.
        """
        if self.growth is not None:
            self.growth.check_share(share)
        self._last_connection = connection = self._connections.take(self._last_connection)
        on_close = partial(self._connections.give_back, connection)
        try:
            if self.growth is not None:
                # Without a value: what is used up leaves first, and is not kept in place of what is in use.
                spec = msgspec.structs.replace(self._session_spec(epoch, share), parts=self._parts([0.0], [0]))
                plan = self.plan(epoch)
                return GrowingSession(
                    connection, spec, self.growth, self._recipe, plan=plan, first=share.first, on_close=on_close
                )
            # Computed once for request and session: with 540 chunks it delays the first batch by 2 to 6 ms.
            begun = [self.schedule(epoch, share)]

            def schedule(epoch: int, share: Share) -> tuple[EpochSchedule, int]:
                return begun.pop() if begun else self.schedule(epoch, share)

            opened = open_bytes(begun[0][0], self.members.chunk_bytes, self.members.first_chunks_of_parts).tolist()
            return EpochSession(
                connection,
                self._with_open_bytes(self._session_spec(epoch, share), epoch, opened),
                schedule,
                (epoch, share),
                endless=endless,
                on_close=on_close,
                cache_full_hint=self.members.cache_full_hint(opened),
            )
        except BaseException:
            on_close()
            raise

    def schedule(self, epoch: int, share: Share) -> tuple[EpochSchedule, int]:
        """The chunks that a share needs in an epoch, by its steps, and the number of its steps."""
        plan = self.plan(epoch)
        steps = share.steps(plan.batches)
        whole = plan.schedule(share.first)
        first, last = share.steps_from(whole.first), np.minimum(share.steps_until(whole.last), steps - 1)
        mine = np.flatnonzero(first <= last)
        mine = mine[np.argsort(first[mine], kind="stable")]
        chunks = EpochSchedule(epoch, whole.chunk[mine], first[mine], last[mine])
        if self._request.mix is not None:
            passes = whole.passes[mine].astype(np.uint32)
            values = self._mix_spec.passes(epoch)
            chunks = msgspec.structs.replace(chunks, passes=passes, values=self.members.part_values(values))
        return self.members.with_joins(chunks), steps

    def _session_spec(self, epoch: int, share: Share) -> OpenSession:
        rank = self.rank_config
        worker = f" worker {share.worker} of {share.workers}"
        return OpenSession(
            session=0,
            job="",
            dataset=self.members.manifests[0].digest if self._request.mix is None else self.members.digest,
            consumer=f"rank {rank.rank}{worker if share.workers > 1 else ''}",
            order_id=self.spec.order_id,
            global_batch=self.global_batch,
            world_size=rank.world_size,
            # Workers of a plain DataLoader resume each at its own position: there is nothing to compare.
            start=self.plan(epoch).position(share.first) if share.workers == 1 else 0,
            stream=self._identity.stream,
            sharers=max(1, rank.world_size // max(1, rank.nodes)) * share.workers,
        )

    def _with_open_bytes(self, spec: OpenSession, epoch: int, opened: Sequence[int]) -> OpenSession:
        """Returns the same consumer with the bytes that it has open at once; in a mix, of each part."""
        if len(opened) == 1 and self._request.mix is None:
            return msgspec.structs.replace(spec, open_bytes=opened[0])
        values = [1.0] if self._request.mix is None else self._mix_spec.passes(epoch)
        return msgspec.structs.replace(spec, parts=self._parts(self.members.part_values(values), opened))

    def _parts(self, values: Sequence[float], opened: Sequence[int]) -> tuple[Part, ...]:
        """The members as parts of a session, each with its credentials."""
        names = [*(self.names or [""]), *(join.recipe.name for _, join in self.members.joins)]
        columns = (self.members.manifests, names, self._identity.options, values, opened)
        return tuple(
            Part(dataset=manifest.digest, name=name, options=options, value=value, open_bytes=open_bytes)
            for manifest, name, options, value, open_bytes in zip(*columns, strict=True)
        )
