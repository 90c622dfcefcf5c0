"""Implements the kind of a growing dataset: a dataset alone whose stream goes in rounds.

`loader/kinds/__init__.py` makes a `GrowingDataset`; `loader/rank/` asks it and its `GrowingOrdering`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from streamer.batches.samples.opened import Members
from streamer.client.engine_client import EngineClient
from streamer.config import RankConfig
from streamer.errors import Detail
from streamer.loader.kinds.growing.growth import Growth
from streamer.loader.kinds.growing.session import GrowingSession
from streamer.loader.kinds.kind import Ordering, SessionSource
from streamer.loader.kinds.one import OneDataset, OneOrdering
from streamer.loader.kinds.step_session import Share, StepSession
from streamer.loader.members.member import DatasetMember
from streamer.loader.stall.stats import GrowingStats
from streamer.order.growing import AdmissionLog, Growing, GrowingSpec
from streamer.order.plan import RankPlan
from streamer.order.state import State
from streamer.wire.messages import OpenSession


class GrowingOrdering(Ordering):
    """Says how one rank's stream of a growing dataset goes on.

    Args:
        growth: The rounds.
        free_parts: Names of the parts of the order that were chosen automatically; a state may have others.
    """

    def __init__(self, growth: Growth, free_parts: frozenset[str] = frozenset()) -> None:
        self.growth = growth
        self._free_parts = free_parts

    def __repr__(self) -> str:
        return f"GrowingOrdering({self.growth!r})"

    @property
    def spec(self) -> GrowingSpec:
        """See `Ordering`; with the rounds that are known so far."""
        return self.growth.spec

    @property
    def rounds(self) -> AdmissionLog:
        """See `Ordering`."""
        return self.growth.log

    def facts(self) -> Mapping[str, Detail]:
        """See `Ordering`."""
        return self.growth.facts()

    def describe(self, members: Members, global_batch: int, nodes: int, cache_bytes: int | None = None) -> str:
        """See `Ordering`; describes the order within which samples are admitted."""
        return self._within.describe(members, global_batch, nodes, cache_bytes)

    def cautions(self, global_batch: int, local_batch: int, nodes: int) -> Sequence[str]:
        """See `Ordering`."""
        return self._within.cautions(global_batch, local_batch, nodes)

    @property
    def _within(self) -> OneOrdering:
        """The order within which samples are admitted."""
        return OneOrdering(self.growth.order, self._free_parts)

    def take_over(self, state: State, global_batch: int) -> None:
        """See `Ordering`; the log of the state replaces the one that was begun."""
        state.spec_of(GrowingSpec)
        state.check(self.spec, left_out=self._free_parts | {"balance.batch"})
        self.growth.restore(state)

    def check_share(self, share: Share) -> None:
        """See `Ordering`."""
        self.growth.check_share(share)

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
        """See `Ordering`; the session asks for cohorts, not for epochs, and is endless in any case."""
        epoch, share = start
        # Parts without a value leave first when they are used up, and are not kept in place of what is in use.
        spec = msgspec.structs.replace(spec, parts=stream.parts([0.0], [0]))
        plan = stream.plan(epoch)
        return GrowingSession(
            client, spec, self.growth, stream.recipe(), plan=plan, first=share.first, on_close=on_close
        )

    @property
    def admissions(self) -> list[int]:
        """See `Ordering`."""
        return self.growth.log.admitted

    def measure_growth(self, plans: Callable[[int], RankPlan], epoch: int, batch: int) -> GrowingStats:
        """See `Ordering`."""
        return self.growth.statistics(plans(epoch), batch)


class GrowingDataset(OneDataset):
    """Opens a dataset that is trained on while it arrives, and makes the orders of its streams."""

    def __init__(self, member: DatasetMember, growing: Growing) -> None:
        super().__init__(member)
        self._growing = growing

    def plan_stream(self, members: Members, global_batch: int, rank_config: RankConfig) -> GrowingOrdering:
        """See `StreamKind`."""
        order = self.order(members, global_batch)
        growth = Growth(self._growing, order, members, rank_config, global_batch=global_batch)
        return GrowingOrdering(growth, self._first.order.free_parts)
