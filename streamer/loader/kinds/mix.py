"""Implements the kind of a mix: opens its members, orders them, and goes on from a state.

`loader/mixed_dataset.py` makes a `Mix`, and `loader/rank/` asks it for what differs from a dataset alone.
"""

from __future__ import annotations

import logging
import resource
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import TypeVar, cast

import msgspec
import numpy as np

from streamer.batches.samples.maker import SampleRules
from streamer.batches.samples.opened import Members, OpenedDataset
from streamer.batches.waiting import watch_wait
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.config import Environment, RankConfig
from streamer.errors import StreamerError
from streamer.loader.kinds.kind import MemberCount, Ordering, StreamKind
from streamer.loader.kinds.step_session import Integers
from streamer.loader.members.connections import EngineConnections
from streamer.loader.members.member import DatasetMember
from streamer.loader.options.mix_options import MixOptions
from streamer.order.adopt import adopt
from streamer.order.mix import MemberSize, MixOrder, MixRequest, MixSource, MixSpec
from streamer.order.mix.explain import cautions, explain
from streamer.order.plan import RankPlan
from streamer.order.quality import describe_lane_spread
from streamer.order.spec import shuffle_mode
from streamer.order.state import State
from streamer.wire.schedule import EpochSchedule

logger = logging.getLogger(__name__)


Result = TypeVar("Result")

# Open files that a rank needs for a member, and besides: 651 were open with 200 members, 53 without (2026-11-23).
_DESCRIPTORS_PER_MEMBER = 4
_OTHER_DESCRIPTORS = 512
# Number of stores, and then of annotations of members, that are requested at the same time.
_OPENED_AT_ONCE = 8


def open_together(members: Sequence[tuple[str, DatasetMember]]) -> list[OpenedDataset]:
    """Opens the members of a mix together; returns each with its manifest, annotations and selection, in order.

    Raises this process's limit of open files if that is too low. Members with the same engine and credentials share
    their connections from then on.

    Args:
        members: Name and member, in order.

    Raises:
        StreamerError: the error of a member, which it names, or that of a connection to the engine.
    """
    # A member holds open files: its manifest and its shared memory.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _DESCRIPTORS_PER_MEMBER * len(members) + _OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    # The same dataset may be a member twice. It is opened once, since a member is for one thread.
    distinct = {id(member): (name, member) for name, member in members}
    # Members with the same engine and credentials use the same connections: a thousand of them need a few.
    environment = Environment.read()
    shared: list[tuple[ClientSettings, EngineConnections]] = []
    for _, member in distinct.values():
        settings = member.options.client_settings(environment, member.job)
        known = next((connections for other, connections in shared if other == settings), None)
        if known is None:
            shared.append((settings, member.connections))
        else:
            member.connections = known
    pools = [connections for _, connections in shared]
    try:
        with ThreadPoolExecutor(min(_OPENED_AT_ONCE, len(distinct)), "streamer-open") as threads:
            by_pool = [[one for one in distinct.values() if one[1].connections is pool] for pool in pools]
            list(threads.map(_find_manifests, by_pool, pools))
            # Some may still have to ask for their annotations.
            opened = threads.map(lambda one: _name_errors(one[0], one[1].open), distinct.values())
            found = dict(zip(distinct, opened, strict=True))
    finally:
        for connections in pools:
            connections.close_idle()
    return [found[id(member)] for _, member in members]


def _find_manifests(members: Sequence[tuple[str, DatasetMember]], connections: EngineConnections) -> None:
    """Opens the manifests of members that share connections, over one connection; raises the error of a member."""
    environment = Environment.read()
    unknown = deque((name, member) for name, member in members if _name_errors(name, member.reopen_manifest) is None)
    asks = [_name_errors(name, partial(member.ask, environment)) for name, member in unknown]
    if not asks:
        return

    def describe_wait() -> str:
        return unknown[0][1].describe_wait() if unknown else ""

    with watch_wait(logger, describe_wait), connections.for_requests() as connection:
        folders = connection.manifests(asks)
        while unknown:
            name, member = unknown[0]
            folder = _name_errors(name, partial(next, folders))
            _name_errors(name, partial(member.adopt_manifest, folder))
            unknown.popleft()


def _name_errors(name: str, work: Callable[[], Result]) -> Result:
    """Calls `work`, whose error then says which member it is about."""
    try:
        return work()
    except StreamerError as error:
        raise error.of_member(name) from error


class MixOrdering(Ordering):
    """Says how one rank's stream of a mix goes on.

    Args:
        options: Options of the mix.
        request: The order that is asked for.
        sources: Name, size and shuffle of each member, for the order.
        global_batch: Samples of a batch over all ranks.

    Raises:
        ConfigError, ManifestError: see `MixRequest.spec`.
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
        """See `Ordering`."""
        sizes = [MemberSize(int(np.count_nonzero(one.order_samples)), one.stored_bytes) for one in members.each]
        unit = self._options.shares.unit
        return explain(self.spec, sizes, global_batch, cache_bytes=cache_bytes, nodes=nodes, unit=unit)

    def cautions(self, global_batch: int, local_batch: int, nodes: int) -> Sequence[str]:
        """See `Ordering`."""
        found = [*cautions(self.spec, global_batch, self._options.shares.epoch_samples)]
        first: dict[tuple[str, int], str] = {}
        for member in self.spec.members:
            name = first.setdefault((member.order.manifest_digest, member.order.seed), member.name)
            if name != member.name:
                found.append(
                    f"members {name} and {member.name} have the same samples and the same seed: both come in the same "
                    "order; give one of them another seed"
                )
        group = global_batch // self.spec.groups
        if self.spec.groups > 1 and group % local_batch and local_batch % group:
            found.append(
                f"a rank's batch of {local_batch} samples has parts of several groups of {group}, each of one member"
            )
        if spread := describe_lane_spread(self.spec.members[0].order, global_batch, nodes):
            found.append(spread)
        return found

    # ------------------------------------------------------------ states

    def take_over(self, state: State, global_batch: int) -> None:
        """See `Ordering`."""
        like = state.spec_of(MixSpec)
        state.check(self._request.spec(self._sources, global_batch, like=like))
        self._spec = like

    def adopt(self, saved: Mapping[str, object], global_batch: int, note: Callable[[str], None]) -> State:
        """See `Ordering`; if the state is inside an epoch, the next epoch begins."""
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
    """Opens the members of a mix, and makes the orders of its streams.

    Args:
        options: Options of the mix.
        datasets: The members, in their order.
        job: Name of the job if the environment has none.

    Raises:
        ConfigError: a variable of the environment has an invalid value.
    """

    def __init__(self, options: MixOptions, datasets: Sequence[DatasetMember], job: str) -> None:
        shared = datasets[0].options

        def connect() -> EngineClient:
            """Connects for sessions of several parts, each of which brings its credentials."""
            return EngineClient(replace(shared.client_settings(Environment.read(), job), storage_options={}))

        super().__init__(options, datasets, EngineConnections(connect))
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

    def plan_stream(self, members: Members, global_batch: int, rank_config: RankConfig) -> Ordering:
        """See `StreamKind`."""
        request = msgspec.structs.replace(self._mix.request, balance=self.level(members, global_batch))
        return MixOrdering(self._mix, request, self._sources(members), global_batch)

    def _sources(self, members: Members) -> tuple[MixSource, ...]:
        """Returns name, size and shuffle of each member, for the order."""
        in_bytes = self._mix.shares.unit == "bytes"
        return tuple(
            MixSource(
                name=name,
                manifest_digest=data.digest,
                chunk_samples=data.order_samples,
                seed=member.options.seed,
                shuffle=shuffle_mode(member.options.shuffle),
                size=data.exact_bytes if in_bytes else None,
                rows=data.rows.spec,
            )
            for name, data, member in zip(self._mix.names, members.each, self.datasets, strict=True)
        )
