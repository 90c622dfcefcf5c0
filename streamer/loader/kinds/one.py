"""Implements the kind of one dataset: its order, and how a stream goes on from a state.

`loader/kinds/__init__.py` makes a `OneDataset` for each dataset that is read alone; `loader/kinds/growing/ordering.py`
extends it.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamer.batches.rows.order_rows import Geometry
from streamer.batches.samples.maker import SampleRules
from streamer.batches.samples.opened import Members
from streamer.config import RankConfig
from streamer.loader.kinds.kind import Ordering, StreamKind
from streamer.loader.members.member import DatasetMember
from streamer.order.quality import check_sample_shuffle, describe_lane_spread
from streamer.order.spec import CUTS, OrderSpec, shuffle_mode
from streamer.order.state import State


class OneOrdering(Ordering):
    """Says how one rank's stream of a dataset goes on.

    Args:
        spec: The order that is asked for.
        free_parts: Names of the parts of the order that were chosen automatically; a state may have others.
    """

    def __init__(self, spec: OrderSpec, free_parts: frozenset[str]) -> None:
        self._spec = spec
        self._free_parts = free_parts

    @property
    def spec(self) -> OrderSpec:
        """See `Ordering`."""
        return self._spec

    def describe(self, members: Members, global_batch: int, nodes: int, cache_bytes: int | None = None) -> str:
        """See `Ordering`."""
        (only,) = members.each
        return only.rows.explain(self.spec, only, global_batch, nodes)

    def cautions(self, global_batch: int, local_batch: int, nodes: int) -> Sequence[str]:
        """See `Ordering`."""
        return list(filter(None, [describe_lane_spread(self.spec, global_batch, nodes)]))

    def take_over(self, state: State, global_batch: int) -> None:
        """See `Ordering`."""
        spec = state.spec_of(OrderSpec)
        # Parts of the order that were chosen automatically may differ, and so may the batch that rows are balanced for:
        # another batch size goes on with the batches of the state.
        state.check(self._spec, left_out=self._free_parts | {"balance.batch"})
        self._spec = spec


class OneDataset(StreamKind):
    """Opens a dataset that is read alone, and makes the orders of its streams."""

    def __init__(self, member: DatasetMember) -> None:
        super().__init__(member.options, [member], member.connections)

    @property
    def share_caches(self) -> str:
        """See `StreamKind`."""
        return self._first.share_caches

    def members(self) -> Members:
        """See `StreamKind`."""
        return Members([self.datasets[0].open()])

    def forget(self) -> None:
        """See `StreamKind`. Does nothing, since the member itself opens what is there now."""

    def rules(self) -> list[SampleRules]:
        """See `StreamKind`."""
        return [self.datasets[0].rules()]

    def data_name(self, members: Members) -> str:
        """See `StreamKind`."""
        (only,) = members.each
        chosen = "all" if only.selection is None else only.digest
        return f"shuffle {shuffle_mode(self._first.shuffle)} of {chosen}{only.rows.name}{self._first.balance.name}"

    def plan_stream(self, members: Members, global_batch: int, rank_config: RankConfig) -> Ordering:
        """See `StreamKind`."""
        return OneOrdering(self.order(members, global_batch), self._first.order.free_parts)

    def order(self, members: Members, global_batch: int) -> OrderSpec:
        """Returns the order for batches of `global_batch` samples over all ranks.

        Raises:
            ConfigError: shuffle="sample" with samples that are too small for it, or another order that is impossible.
            ManifestError: there are no samples.
        """
        options = self._first
        (data,) = members.each
        mode = shuffle_mode(options.shuffle)
        if mode == "sample":
            check_sample_shuffle(data.manifest.samples, data.manifest.total_bytes)
        level = self.level(members, global_batch)
        given = Geometry(options.order.lanes, options.order.shuffle_window)
        geometry = given if mode == "none" else data.rows.geometry(data, global_batch, level, given)
        return OrderSpec.auto(
            data.digest,
            data.order_samples,
            global_batch,
            seed=options.seed,
            shuffle=options.shuffle,
            lanes=geometry.lanes,
            window=geometry.window,
            cut=CUTS[options.order.lanes_by or "seed"],
            rows=data.rows.spec,
            balance=level,
        )
