"""A mix: the order of its members, how it is explained and checked, and how it goes on from a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import cast

import msgspec
import numpy as np

from streamer.batches.samples.maker import SampleRules
from streamer.batches.samples.opened import Members
from streamer.client.engine_client import EngineClient
from streamer.config import Environment, RankConfig
from streamer.loader.kinds.kind import MemberCount, Ordering, StreamKind
from streamer.loader.kinds.step_session import Integers
from streamer.loader.members.connections import EngineConnections
from streamer.loader.members.member import Member
from streamer.loader.members.open_members import open_together
from streamer.loader.options.dataset_options import DatasetOptions
from streamer.loader.options.mix_options import MixOptions
from streamer.order.adopt import adopt
from streamer.order.mix import MemberSize, MixOrder, MixRequest, MixSource, MixSpec
from streamer.order.mix.explain import cautions, explain
from streamer.order.plan import RankPlan
from streamer.order.quality import describe_sharing
from streamer.order.spec import shuffle_mode
from streamer.order.state import State
from streamer.wire.schedule import EpochSchedule


class MixOrdering(Ordering):
    """The epochs of a mix.

    Args:
        options: of the mix.
        request: the order that is asked for.
        sources: the members as the order sees them.
        global_batch: B, over all ranks.
    """

    follows = True

    def __init__(
        self, options: MixOptions, request: MixRequest, sources: Sequence[MixSource], global_batch: int
    ) -> None:
        self._options = options
        self._request = request
        self._sources = sources
        self._spec = request.spec(sources, global_batch)

    @property
    def spec(self) -> MixSpec:
        """See `Ordering`."""
        return self._spec

    def describe(self, members: Members, global_batch: int, nodes: int, cache_bytes: int | None = None) -> str:
        """See `Ordering` and `MixedDataset.explain`."""
        sizes = [MemberSize(int(np.count_nonzero(one.order_samples)), one.stored_bytes) for one in members.each]
        unit = self._options.shares.unit
        return explain(self.spec, sizes, global_batch, cache_bytes=cache_bytes, nodes=nodes, unit=unit)

    def cautions(self, global_batch: int, local_batch: int, nodes: int) -> Sequence[str]:
        """See `Ordering`."""
        return [
            *cautions(self.spec, global_batch, self._options.shares.epoch_samples),
            *_in_step(self.spec),
            *_across_groups(self.spec, global_batch, local_batch),
            *filter(None, [describe_sharing(self.spec.members[0].order, global_batch, nodes)]),
        ]

    # ------------------------------------------------------------ states

    def take_over(self, state: State, global_batch: int) -> None:
        """See `Ordering`."""
        like = state.spec_of(MixSpec)
        state.check(self._request.spec(self._sources, global_batch, like=like))
        self._spec = like

    def adopt(self, saved: Mapping[str, object], global_batch: int, note: Callable[[str], None]) -> State:
        """See `Ordering`; the epoch after the saved one begins."""
        adopted = adopt(saved, self._request, self._sources, global_batch)
        for sentence in adopted.notes:
            note(sentence)
        self._spec = adopted.spec
        return State(adopted.spec, adopted.spec.origin_epoch, 0, global_batch)

    # ------------------------------------------------------------ sessions

    def dataset_of(self, members: Members) -> str:
        """See `Ordering`."""
        return members.digest

    def values(self, epoch: int) -> Sequence[float]:
        """See `Ordering`."""
        return self.spec.passes(epoch)

    def has_parts(self, members: Members) -> bool:
        """See `Ordering`."""
        return True

    def add_values(self, chunks: EpochSchedule, passes: Integers, members: Members) -> EpochSchedule:
        """See `Ordering`."""
        values = members.part_values(self.values(chunks.epoch))
        return msgspec.structs.replace(chunks, passes=passes.astype(np.uint32), values=values)

    # ------------------------------------------------------------ views

    def check_sources(self) -> None:
        """See `Ordering`."""

    def quotas(self, epoch: int) -> Mapping[str, int]:
        """See `Ordering`."""
        return dict(zip(self.spec.names, self.spec.quotas(epoch), strict=True))

    def count_drawn(self, plans: Callable[[int], RankPlan], epoch: int, batch: int) -> Mapping[str, MemberCount]:
        """See `Ordering`."""
        plan = plans(epoch)
        position = min(plan.position(batch), self.spec.samples(epoch))
        # Whatever is wrapped around it, it is the order of a mix.
        counts = np.array(self.spec.stream_starts(epoch), np.int64) + cast("MixOrder", plan.order).count_drawn(position)
        return {
            member.name: MemberCount(count, member.samples)
            for member, count in zip(self.spec.members, counts.tolist(), strict=True)
        }


class Mix(StreamKind):
    """A mix of several datasets.

    Args:
        options: of the mix.
        datasets: the members, in their order.
        job: name of the job if the environment has none.
    """

    def __init__(self, options: MixOptions, datasets: Sequence[Member], job: str) -> None:
        super().__init__(options, datasets, _connections_for_parts(datasets[0].options, job))
        self._mix = options
        self._opened: Members | None = None

    def members(self) -> Members:
        """See `StreamKind`: several are opened at the same time."""
        if self._opened is None:
            self._opened = Members(open_together(list(zip(self._mix.names, self.datasets, strict=True))))
        return self._opened

    def forget(self) -> None:
        """See `StreamKind`."""
        self._opened = None

    def rules(self) -> list[SampleRules]:
        """See `StreamKind`."""
        return [
            member.rules(name, self._mix.source_key)
            for name, member in zip(self._mix.names, self.datasets, strict=True)
        ]

    def data_name(self, members: Members) -> str:
        """See `StreamKind`."""
        digests = " ".join(member.digest for member in members.each)
        chosen = blake2b(digests.encode(), digest_size=8).hexdigest()
        return f"mix of {', '.join(self._mix.names)[:200]} ({chosen})"

    def make_ordering(self, members: Members, global_batch: int, rank_config: RankConfig) -> Ordering:
        """See `StreamKind`."""
        request = msgspec.structs.replace(self._mix.request, balance=self.level(members, global_batch))
        return MixOrdering(self._mix, request, self._sources(members), global_batch)

    def _sources(self, members: Members) -> tuple[MixSource, ...]:
        """The members as the order sees them."""
        in_bytes = self._mix.shares.unit == "bytes"
        return tuple(
            MixSource(
                name,
                data.digest,
                data.order_samples,
                member.options.seed,
                shuffle_mode(member.options.shuffle),
                size=data.exact_bytes if in_bytes else None,
                rows=data.rows.spec,
            )
            for name, data, member in zip(self._mix.names, members.each, self.datasets, strict=True)
        )


def _connections_for_parts(options: DatasetOptions, job: str) -> EngineConnections:
    """Connections for sessions of several parts, each of which brings its credentials."""
    return EngineConnections(
        lambda: EngineClient(replace(options.client_settings(Environment.read(), job), storage_options={}))
    )


def _in_step(spec: MixSpec) -> list[str]:
    """The members that have the same samples and the same seed."""
    first: dict[tuple[str, int], str] = {}
    found = []
    for member in spec.members:
        name = first.setdefault((member.order.manifest_digest, member.order.seed), member.name)
        if name != member.name:
            found.append(
                f"members {name} and {member.name} have the same samples and the same seed: both come in the same "
                "order; give one of them another seed"
            )
    return found


def _across_groups(spec: MixSpec, global_batch: int, own: int) -> list[str]:
    """Whether a rank's batch has parts of several groups."""
    group = global_batch // spec.groups
    if spec.groups == 1 or group % own == 0 or own % group == 0:
        return []
    return [f"a rank's batch of {own} samples has parts of several groups of {group}, each of one member"]
