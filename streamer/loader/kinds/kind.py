"""Defines the base classes of kinds: one dataset, a mix, a growing dataset.

`one.py`, `mix.py` and `growing/` implement them. `loader/rank/opening.py` and `loader/rank/rank_stream.py` ask them,
whatever the kind is. A `StreamKind` is made with the dataset, and knows its members. For each loader it makes an
`Ordering`: the order of one rank's stream, how it goes on from a state, and what its sessions need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from msgspec import UnsetType

from streamer.batches.samples.maker import SampleRules
from streamer.batches.samples.opened import Members
from streamer.batches.samples.recipe import SampleRecipe
from streamer.client.engine_client import EngineClient
from streamer.config import RankConfig
from streamer.errors import ConfigError, Detail
from streamer.loader.kinds.step_session import EpochSession, Integers, Share, StepSession
from streamer.loader.members.connections import EngineConnections
from streamer.loader.members.member import DatasetMember
from streamer.loader.options.dataset_options import DatasetOptions, StreamOptions
from streamer.loader.stall.stats import GrowingStats
from streamer.order.kinds.kind import NO_ROUNDS, NoRounds
from streamer.order.level import BalanceSpec
from streamer.order.plan import RankPlan
from streamer.order.state import AnySpec, State
from streamer.wire.messages import OpenSession, Part
from streamer.wire.schedule import EpochSchedule

if TYPE_CHECKING:
    from streamer.order.growing.log import Rounds


class MemberCount(NamedTuple):
    """Says how much of a member of a mix has been read.

    Attributes:
        drawn: Number of its samples that were read, over all epochs and ranks.
        samples: Number of samples of one pass.
    """

    drawn: int
    samples: int


class SessionSource(Protocol):
    """Says what `Ordering.open_session` needs of a `RankStream`, which would be imported in a circle."""

    def plan(self, epoch: int) -> RankPlan:
        """Returns this rank's batches of an epoch."""
        ...

    def recipe(self) -> SampleRecipe:
        """Returns the recipe of the batches: all that a worker process needs to make them."""
        ...

    def schedule(self, epoch: int, share: Share) -> tuple[EpochSchedule, int]:
        """Returns the chunks that a share of batches needs in an epoch, by its steps, and the number of its steps."""
        ...

    def add_open_bytes(self, spec: OpenSession, epoch: int, schedule: EpochSchedule) -> tuple[OpenSession, str]:
        """Returns `spec` with the bytes that this schedule has open at once, and what helps a full cache, as a text."""
        ...

    def parts(self, values: Sequence[float], opened: Sequence[int]) -> tuple[Part, ...]:
        """Returns the members, then the right sides of joins, as parts of a session.

        Args:
            values: Value of each part: passes over it in an epoch.
            opened: Bytes of each part that are open at once.
        """
        ...


class Ordering(ABC):
    """Says how one rank's stream goes on: its order, states and sessions. Used by one thread at a time."""

    # If True, a stream whose data have changed goes on where it was (a mix); otherwise it begins anew.
    follows: ClassVar[bool] = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}(order={self.spec.order_id})"

    @property
    @abstractmethod
    def spec(self) -> AnySpec:
        """The order as it is now; a state keeps it."""

    @property
    def rounds(self) -> Rounds | NoRounds:
        """The rounds that are decided so far; `NO_ROUNDS` unless the dataset grows."""
        return NO_ROUNDS

    def facts(self) -> Mapping[str, Detail]:
        """Returns the values, by name, that must be equal on all ranks besides those of the order."""
        return {}

    # ------------------------------------------------------------ words

    @abstractmethod
    def describe(self, members: Members, global_batch: int, nodes: int, cache_bytes: int | None = None) -> str:
        """Returns a text on the order and its cost.

        Args:
            members: The datasets that are read.
            global_batch: Samples of a batch over all ranks.
            nodes: Number of machines.
            cache_bytes: Limit of the cache, or None if it is not known.

        Raises:
            ConfigError: the machines cannot share a batch equally.
        """

    @abstractmethod
    def cautions(self, global_batch: int, local_batch: int, nodes: int) -> Sequence[str]:
        """Returns sentences about effects that the user may not expect.

        Args:
            global_batch: Samples of a batch over all ranks.
            local_batch: Samples of a batch of one rank.
            nodes: Number of machines.
        """

    # ------------------------------------------------------------ states

    @abstractmethod
    def take_over(self, state: State, global_batch: int) -> None:
        """Replaces the order by that of a saved state.

        Args:
            state: State of an earlier run.
            global_batch: Samples of a batch over all ranks.

        Raises:
            StateError: the state is of another dataset, order or seed.
            ConfigError, ManifestError: the members of a mix cannot be mixed so.
        """

    def adopt(self, saved: Mapping[str, object], global_batch: int, note: Callable[[str], None]) -> State:
        """Goes on with a saved state although what is read has changed; returns the state at which the stream begins.

        Args:
            saved: State of an earlier run.
            global_batch: Samples of a batch over all ranks.
            note: Called with what was taken over and what was not, one sentence each.

        Raises:
            ConfigError, ManifestError: this is not a mix, or its members cannot be mixed.
            StateError: see `order.adopt.adopt`.
        """
        raise ConfigError("strict=False is for a MixedDataset; the order of one dataset is fixed", field="strict")

    # ------------------------------------------------------------ sessions

    def dataset_of(self, members: Members) -> str:
        """Returns the name of the data in a session: the digest of the manifest, or of all members."""
        return members.manifests[0].digest

    def values(self, epoch: int) -> Sequence[float]:
        """Returns the passes over each member in an epoch: the number of fetches that a cached byte of it saves."""
        return (1.0,)

    def has_parts(self, members: Members) -> bool:
        """Returns whether a session names its members as parts; that of a dataset without joins does not."""
        return len(members.manifests) > 1

    def add_values(self, chunks: EpochSchedule, passes: Integers, members: Members) -> EpochSchedule:
        """Returns the schedule of an epoch, in a mix with the pass of each chunk and the value of each part.

        Args:
            chunks: Schedule of the epoch.
            passes: Number of the pass that uses each chunk of the schedule.
            members: The datasets that are read.
        """
        return chunks

    def check_share(self, share: Share) -> None:  # noqa: B027
        """Makes sure that this process can read a share of the rank's batches.

        Raises:
            ConfigError: the dataset grows, and this is a worker of a plain DataLoader.
        """

    def open_session(
        self,
        client: EngineClient,
        spec: OpenSession,
        stream: SessionSource,
        start: tuple[int, Share],
        *,
        endless: bool,
        on_close: Callable[[], None],
    ) -> StepSession:
        """Opens a session of the stream.

        Args:
            client: Connection that only the session uses.
            spec: The consumer, as the engine is told; the bytes that it has open are added.
            stream: Stream that is read.
            start: Epoch in which the session begins, and the share of the rank's batches that it reads.
            endless: Whether the session continues into the next epochs.
            on_close: Called once, when the session is closed, but not if it cannot begin.

        Raises:
            StreamerError: see `StepSession`.
        """
        # Computed once for request and session: with 540 chunks it delays the first batch by 2 to 6 ms.
        begun = [stream.schedule(*start)]

        def schedule(epoch: int, share: Share) -> tuple[EpochSchedule, int]:
            return begun.pop() if begun else stream.schedule(epoch, share)

        spec, hint = stream.add_open_bytes(spec, start[0], begun[0][0])
        return EpochSession(client, spec, schedule, start, endless=endless, on_close=on_close, cache_full_hint=hint)

    # ------------------------------------------------------------ views

    def check_sources(self) -> None:
        """Makes sure that the stream is that of a mix, whose samples have a member.

        Raises:
            ConfigError: this is not a mix.
        """
        raise ConfigError("sources is for a MixedDataset; this loader has one dataset", field="sources")

    def quotas(self, epoch: int) -> Mapping[str, int]:
        """Returns the samples of each member of a mix in an epoch, over all ranks, by name; empty for other kinds."""
        return {}

    def count_drawn(self, plans: Callable[[int], RankPlan], epoch: int, batch: int) -> Mapping[str, MemberCount]:
        """Returns how much of each member of a mix comes before a batch, by name; empty for other kinds.

        Args:
            plans: Returns the plan of an epoch.
            epoch: Epoch of the batch.
            batch: Number of the batch in the epoch.
        """
        return {}

    @property
    def admissions(self) -> list[int]:
        """Number of cohorts that each round of a growing dataset has added so far.

        Raises:
            ConfigError: the dataset does not grow.
        """
        raise ConfigError("admissions is for a dataset with growing=", field="admissions")

    def measure_growth(self, plans: Callable[[int], RankPlan], epoch: int, batch: int) -> GrowingStats | None:
        """Returns passes, uses and the samples in use at a batch of a growing dataset, or None for other kinds.

        Args:
            plans: Returns the plan of an epoch.
            epoch: Epoch of the batch.
            batch: Number of the batch in the epoch.
        """
        return None


class StreamKind(ABC):
    """Opens the members of what is read, and makes the orders of its streams.

    Attributes:
        options: Options of the whole.
        datasets: The members, in their order.
        connections: Connections to the engine.
    """

    def __init__(
        self, options: StreamOptions, datasets: Sequence[DatasetMember], connections: EngineConnections
    ) -> None:
        self.options = options
        self.datasets = tuple(datasets)
        self.connections = connections

    @property
    def share_caches(self) -> str:
        """The argument `share_caches` of the user: "auto" if the ranks' engines share their caches, else "off"."""
        return "off"

    @abstractmethod
    def members(self) -> Members:
        """Returns the members; the first use opens them, and may raise a StreamerError."""

    @abstractmethod
    def forget(self) -> None:
        """Forgets the opened members, because one of them has changed; the next use opens them again."""

    @abstractmethod
    def rules(self) -> list[SampleRules]:
        """Returns the rules of making samples, one for each member."""

    @abstractmethod
    def data_name(self, members: Members) -> str:
        """Returns a name of the data and their order, the same on all ranks; it tells streams of a job apart."""

    @abstractmethod
    def plan_stream(self, members: Members, global_batch: int, rank_config: RankConfig) -> Ordering:
        """Returns a new order of a stream through the data, in batches of `global_batch` samples over all ranks.

        Raises:
            StreamerError: there is no such order.
        """

    def level(self, members: Members, global_batch: int) -> BalanceSpec | UnsetType:
        """Returns the rule of `balance=` for batches of `global_batch` samples, or UNSET without `balance=`."""
        lengths = [each.lengths.identity for each in members.each if each.lengths is not None]
        return self._first.balance.spec(global_batch, " ".join(lengths).strip())

    @property
    def _first(self) -> DatasetOptions:
        """The options of the first dataset."""
        return self.datasets[0].options
