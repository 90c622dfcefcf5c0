"""Runs the batches of one rank, prepared for one batch size: their plan, schedule, sessions and state.

`opening.py` makes a `RankStream`; the loader, its feeder (`loader/feed/`) and `sample_iterator.py` read by it. A
dataset alone is a stream with one member, a mix has several. What differs between kinds is their `Ordering`
(`loader/kinds/`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.annotations.join import table_digest
from streamer.batches.rows.options import AnyPacking
from streamer.batches.samples.maker import describe_key
from streamer.batches.samples.opened import Members
from streamer.batches.samples.plans import Plans, StreamCodes
from streamer.batches.samples.recipe import SampleRecipe, StreamMaker
from streamer.batches.skipping import Skipped, SkipRules, StoreBudget
from streamer.client.engine_client import EngineClient
from streamer.errors import Detail
from streamer.loader.agreement import Gather, gather_for, process_group, process_store
from streamer.loader.epoch_cell import check_same_rank
from streamer.loader.kinds.kind import MemberCount, Ordering
from streamer.loader.kinds.step_session import Identity, Integers, Share, StepSession, open_bytes
from streamer.loader.members.connections import EngineConnections
from streamer.loader.stall.stats import GrowingStats
from streamer.order.audit import Record
from streamer.order.plan import RankPlan, sample_count
from streamer.order.state import AnySpec, Resume, State
from streamer.wire.messages import OpenSession, Part
from streamer.wire.schedule import EpochSchedule

logger = logging.getLogger(__name__)


class RankStream:
    """Plans the batches of one rank, opens their sessions, and keeps their place in a state.

    Used by one thread at a time; each of its sessions has its own connection. `StreamOpening` makes it.

    Args:
        connections: Connections to the engine.
        recipe: Recipe of the batches.
        members: The datasets that are read; an attribute, too.
        identity: Rank, name and storage options of the consumer.
        ordering: How the stream goes on, by its kind; an attribute, too.

    Attributes:
        rank_config: Rank and world size.
    """

    _recipe: SampleRecipe

    def __init__(
        self,
        connections: EngineConnections,
        recipe: SampleRecipe,
        members: Members,
        identity: Identity,
        ordering: Ordering,
    ) -> None:
        self._connections = connections
        self._last_connection: EngineClient | None = None
        self._identity = identity
        self.members = members
        self.rank_config = identity.rank_config
        self.ordering = ordering
        self._set(recipe)

    def __repr__(self) -> str:
        rank = self.rank_config
        data = ", ".join(self.names) or self.members.each[0].manifest.digest
        return (
            f"RankStream({data}, {self.ordering!r}, global_batch={self.global_batch}, "
            f"rank={rank.rank}/{rank.world_size})"
        )

    # ------------------------------------------------------------ order

    @property
    def spec(self) -> AnySpec:
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
        """Returns the number of samples of an epoch, over all ranks, without repeats."""
        return self.spec.samples_in(epoch, self.members.order_samples)

    def rank_samples(self, epoch: int) -> int:
        """Returns the samples of this rank in a whole epoch, repeats that fill the last batch included."""
        return sample_count(self.samples_in(epoch), self._recipe.split, self._recipe.last_batch)

    def plan(self, epoch: int) -> RankPlan:
        """Returns this rank's batches of an epoch, numbered from the start of the epoch also after `resume`."""
        return self._plans.plan(epoch)

    def ordinals(self, epoch: int, batch: int) -> Integers:
        """Returns the codes of this rank's samples of a batch, or of its rows: int64, (samples,)."""
        return self._codes.encode(self.plan(epoch).batch(batch).ordinals)

    @property
    def packing(self) -> AnyPacking:
        """How documents are packed into rows, or that they are not; equal for all members of a mix."""
        return self.members.each[0].rows.packing

    def recipe(self) -> SampleRecipe:
        """Returns the recipe of the batches, which worker processes get."""
        return self._recipe

    def maker(self) -> StreamMaker:
        """Returns a new maker of samples in this process."""
        return StreamMaker(self._recipe, self.members)

    # ------------------------------------------------------------ names of samples

    @property
    def names(self) -> Sequence[str]:
        """The names of the members of a mix; empty for one dataset."""
        return self.spec.names

    def sample_key(self, ordinal: int) -> str:
        """Returns a readable name of a sample: its path below the url of its dataset, or container and byte range.

        Args:
            ordinal: Code of the sample.
        """
        number, index = self._codes.locate(ordinal)
        member = self.members.each[number]
        return describe_key(member.manifest, int(member.to_manifest(np.array([index], np.int64))[0]))

    def sample_label(self, ordinal: int) -> str:
        """Returns the number of a sample for messages; in a mix behind the name of its member, "name/12".

        Args:
            ordinal: Code of the sample.
        """
        number, index = self._codes.locate(ordinal)
        return "/".join([*self._name(number), str(index)])

    def describe_skip(self, ordinal: int, cause: str) -> Skipped:
        """Returns the record of a skipped sample.

        Args:
            ordinal: Code of the sample.
            cause: Text of the error.
        """
        number, index = self._codes.locate(ordinal)
        return Skipped(index, self.sample_key(ordinal), cause, "".join(self._name(number)))

    def _name(self, member: int) -> Sequence[str]:
        """Returns the name of a member of a mix as the only item; empty for one dataset."""
        return self.names[member : member + 1]

    @property
    def skip_rules(self) -> SkipRules:
        """The rules for samples that cannot be made: `on_error=` of the dataset or mix."""
        return self._identity.skip_rules

    def open_budget(self) -> StoreBudget | None:
        """Returns the count of skipped samples over all ranks, or None if there is one rank, or no process group.

        Every rank must call it equally often.
        """
        rank_config = self.rank_config
        return None if gather_for(rank_config) is None else StoreBudget.next(process_store(), rank_config.rank)

    # ------------------------------------------------------------ members of a mix

    def check_sources(self) -> None:
        """Makes sure that this is the stream of a mix, whose samples have a member.

        Raises:
            ConfigError: this is not a mix.
        """
        self.ordering.check_sources()

    def sources(self, epoch: int, batch: int) -> npt.NDArray[np.int16]:
        """Returns the number of the member of each sample of this rank's batch: (samples,)."""
        return self._codes.members(self.ordinals(epoch, batch)).astype(np.int16)

    def quotas(self, epoch: int) -> Mapping[str, int]:
        """Returns the samples of each member of a mix in an epoch, over all ranks, by name; empty for other kinds."""
        return self.ordering.quotas(epoch)

    def count_drawn(self, epoch: int, batch: int) -> Mapping[str, MemberCount]:
        """Returns how much of each member of a mix comes before a batch, by name; empty for other kinds."""
        return self.ordering.count_drawn(self.plan, epoch, batch)

    def follow(self, before: RankStream, epoch: int) -> None:
        """Continues a mix whose data has changed (errors as of `adopt`). Other kinds begin anew: nothing is done.

        Args:
            before: Stream before the change.
            epoch: Epoch that begins; `before` has delivered all epochs before it.

        Raises:
            ConfigError, ManifestError, StateError: as `adopt`.
        """
        if epoch > 0 and self.ordering.follows:
            self.adopt(before.state(epoch - 1, before.plan(epoch - 1).batches))

    @property
    def admissions(self) -> list[int]:
        """Number of cohorts that each round of a growing dataset has added so far.

        Raises:
            ConfigError: the dataset does not grow.
        """
        return self.ordering.admissions

    def measure_growth(self, epoch: int, batch: int) -> GrowingStats | None:
        """Returns passes, uses and the samples in use at a batch of a growing dataset, or None for other kinds."""
        return self.ordering.measure_growth(self.plan, epoch, batch)

    # ------------------------------------------------------------ ranks

    @property
    def place(self) -> tuple[int, int]:
        """Rank and world size."""
        return self.rank_config.rank, self.rank_config.world_size

    def check_rank(self) -> None:
        """Refuses to go on if the process group has another rank than that for which the stream was prepared.

        Raises:
            StateError: the ranks differ, and the user has not given the rank.
        """
        if not self._identity.given and (group := process_group()) is not None and group != self.place:
            check_same_rank("This iterator", self.place, group)

    def facts(self) -> Mapping[str, Detail]:
        """Returns the values that must be equal on all ranks, by name."""
        return {
            **self.spec.facts(),
            "world_size": self.rank_config.world_size,
            "global_batch": self.global_batch,
            "last_batch": self._recipe.last_batch,
            "annotations": " ".join(table_digest(member.rules.joined) or "none" for member in self._recipe.members),
            "share_caches": self._identity.share_caches,
            **self.members.facts_of_joins(),
            **self.ordering.facts(),
        }

    def share_caches(self, gather: Gather) -> None:
        """Lets the engines of all ranks share caches. With fixed lanes a rank reads what its node has. Collective.

        Args:
            gather: Collects one text of every rank.

        Raises:
            StreamerError: an engine cannot share its cache; on every rank.
        """
        # Imported here, since datasets that share nothing do not need it.
        from streamer.loader.rank.sharing import Shared, has_lanes, share_caches

        (spec,) = self.spec.orders
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
        """Returns the state to save after `batch` batches of an epoch; raises StateError for numbers too large."""
        return State(self.ordering.spec, epoch, self.position(epoch, batch), self.global_batch).to_dict()

    def position(self, epoch: int, batch: int) -> int:
        """Returns the position in an epoch, over all ranks, at which a batch begins."""
        return self._recipe.start(epoch) + batch * self.global_batch

    def record(self, epoch: int, batch: int) -> Record:
        """Returns an empty record of what is delivered from a batch on, for `streamer audit`."""
        only = self.members.each[0]
        place = (self.rank_config.rank, self.rank_config.world_size)
        dense = self.spec.each_once and only.rows.are_dense(only)
        return Record.begin(epoch, self.position(epoch, batch), self.samples_in(epoch), place, dense=dense)

    def resume(self, state: Mapping[str, object]) -> tuple[int, int]:
        """Goes on from a saved state; after a finished epoch the next one begins.

        Returns:
            The epoch and the number of its next batch.

        Raises:
            StateError, ConfigError, ManifestError: the state is none, or of another dataset, order or mix.
        """
        return self._go_on(self._take_over(state))

    def adopt(self, state: Mapping[str, object]) -> tuple[int, int]:
        """Goes on from a saved state of a mix that has changed since; inside an epoch, the next epoch begins.

        Returns:
            The epoch and the number of its next batch.

        Raises:
            ConfigError, ManifestError, StateError: this is not a mix, or see `order.adopt.adopt`.
        """

        def note(sentence: str) -> None:
            if self.rank_config.rank == 0:
                logger.warning("%s", sentence)

        return self._go_on(self.ordering.adopt(state, self.global_batch, note))

    def reenter(self, state: Mapping[str, object]) -> tuple[int, int]:
        """Goes on from a saved state as `resume` does. But a finished epoch stays: its next batch is one past the last.

        Returns:
            The epoch and the number of its next batch.

        Raises:
            StateError, ConfigError, ManifestError: the state is none, or of another dataset, order or mix.
        """
        saved = self._take_over(state)
        batch, start = divmod(saved.position, self.global_batch)
        return self._go_on(saved, Resume(saved.epoch, start, batch))

    def _take_over(self, saved: Mapping[str, object]) -> State:
        """Reads a saved state, and replaces the order of the stream by that of the state.

        Raises:
            StateError, ConfigError, ManifestError: the state is none, or of another dataset, order or mix.
        """
        state = State.from_dict(saved)
        self.ordering.take_over(state, self.global_batch)
        return state

    def _go_on(self, state: State, at: Resume | None = None) -> tuple[int, int]:
        """Continues with the order of a state, at its place or at `at`; returns the epoch and its next batch."""
        # The runs belong to the lanes, and are found anew when the ranks compare.
        recipe = self._recipe = msgspec.structs.replace(self._recipe, spec=state.spec, runs=())
        if at is None:
            at = state.resume(self.samples_in(state.epoch), self.global_batch, recipe.last_batch)
        self._set(msgspec.structs.replace(recipe, entry=(at.epoch, at.start)))
        return at.epoch, at.batch

    def _set(self, recipe: SampleRecipe) -> None:
        """Takes over a recipe; its epochs are planned anew."""
        self._recipe = recipe
        self._codes = StreamCodes(recipe.spec, self.members)
        self._plans = Plans(recipe, self.members, self.ordering.rounds)

    # ------------------------------------------------------------ sessions

    def session(self, epoch: int, start_batch: int) -> StepSession:
        """Opens a session of all batches of the rank from one on, over all epochs; raises as `share_session`."""
        return self.share_session(epoch, Share(first=start_batch), endless=True)

    def share_session(self, epoch: int, share: Share, *, endless: bool) -> StepSession:
        """Opens a session for one worker's share of the rank's batches, from the share's first batch on.

        Args:
            epoch: Epoch in which it begins.
            share: Share of the batches.
            endless: Whether the session continues into the next epochs.

        Raises:
            ConfigError: the dataset grows, and this is a worker of a plain DataLoader.
            StreamerError: see `StepSession`.
        """
        self.ordering.check_share(share)
        rank = self.rank_config
        worker = f" worker {share.worker} of {share.workers}"
        spec = OpenSession(
            session=0,
            job="",
            dataset=self.ordering.dataset_of(self.members),
            consumer=f"rank {rank.rank}{worker if share.workers > 1 else ''}",
            order_id=self.spec.order_id,
            global_batch=self.global_batch,
            world_size=rank.world_size,
            # Workers of a plain DataLoader resume each at its own position: there is nothing to compare.
            start=self.plan(epoch).position(share.first) if share.workers == 1 else 0,
            stream=self._identity.stream,
            sharers=max(1, rank.world_size // max(1, rank.nodes)) * share.workers,
        )
        self._last_connection = connection = self._connections.take(self._last_connection)
        on_close = partial(self._connections.give_back, connection)
        try:
            return self.ordering.open_session(
                connection, spec, self, (epoch, share), endless=endless, on_close=on_close
            )
        except BaseException:
            on_close()
            raise

    def schedule(self, epoch: int, share: Share) -> tuple[EpochSchedule, int]:
        """Returns the chunks that a share of batches needs in an epoch, by its steps, and the number of its steps."""
        plan = self.plan(epoch)
        steps = share.steps(plan.batches)
        whole = plan.schedule(share.first)
        first = share.steps_from(whole.first)
        last = np.minimum(share.steps_until(whole.last), steps - 1)
        mine = np.flatnonzero(first <= last)
        mine = mine[np.argsort(first[mine], kind="stable")]
        chunks = EpochSchedule(epoch, whole.chunk[mine], first[mine], last[mine])
        chunks = self.ordering.add_values(chunks, whole.passes[mine], self.members)
        return self.members.add_joins(chunks), steps

    def add_open_bytes(self, spec: OpenSession, epoch: int, schedule: EpochSchedule) -> tuple[OpenSession, str]:
        """Returns `spec` with the bytes that it has open, of each part if it has parts, and what helps a full cache."""
        opened = open_bytes(schedule, self.members.chunk_bytes, self.members.first_chunks_of_parts).tolist()
        hint = self.members.cache_full_hint(opened)
        if not self.ordering.has_parts(self.members):
            return msgspec.structs.replace(spec, open_bytes=opened[0]), hint
        parts = self.parts(self.members.part_values(self.ordering.values(epoch)), opened)
        return msgspec.structs.replace(spec, parts=parts), hint

    def parts(self, values: Sequence[float], opened: Sequence[int]) -> tuple[Part, ...]:
        """Returns the members, then the right sides of joins, as parts of a session, each with its credentials."""
        names = [
            *(member.rules.member for member in self._recipe.members),
            *(join.recipe.name for _, join in self.members.joins),
        ]
        columns = (self.members.manifests, names, self._identity.options, values, opened)
        return tuple(
            Part(dataset=manifest.digest, name=name, options=options, value=value, open_bytes=open_bytes)
            for manifest, name, options, value, open_bytes in zip(*columns, strict=True)
        )
