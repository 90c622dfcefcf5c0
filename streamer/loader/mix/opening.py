"""Opens the members of a mix together: manifests, selections and order. The first use does the I/O."""

from __future__ import annotations

import logging
import resource
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import TypeVar

import msgspec

from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.config import Environment, RankConfig
from streamer.errors import StreamerError
from streamer.loader.contracts import PreparedStream
from streamer.loader.mix.options import MixOptions
from streamer.loader.mix.plans import MemberRecipe, Members, MixGeometry
from streamer.loader.mix.prepared import MixInputs, MixPrepared
from streamer.loader.mix.samples import MixRecipe
from streamer.loader.rank.agreement import compared, detect, gather_for
from streamer.loader.rank.connections import EngineConnections
from streamer.loader.rank.epoch_cell import EpochCell
from streamer.loader.rank.opening import Opening
from streamer.loader.rank.rank_stream import Identity, StreamNames
from streamer.loader.samples.maker import SampleRules
from streamer.loader.samples.opened import OpenedDataset
from streamer.loader.skipping import SkipRules
from streamer.loader.waiting import watched
from streamer.order.mix import MixSource, MixSpec
from streamer.order.mix.explain import cautions, explain
from streamer.order.plan import LastBatch, check_last_batch
from streamer.order.quality import shared_lanes
from streamer.order.spec import shuffle_mode

logger = logging.getLogger(__name__)

Stream = TypeVar("Stream", bound=PreparedStream)
Result = TypeVar("Result")

# Measured: 651 with 200 members in a rank, 53 without (2026-11-23).
_DESCRIPTORS_PER_MEMBER, _OTHER_DESCRIPTORS = 4, 512
# Stores, and then annotations of members, that are requested at the same time.
_OPENED_AT_ONCE = 8


class MixOpening:
    """One process's view of a mix. Used by one thread; after a fork the child connects again by itself.

    Args:
        options: the user's.
        openings: of the members, in order.
        job: name of the job if the environment has none.
        shared: the epochs of the mix, shared by its processes; each member shares its manifest by itself.

    Attributes:
        connections: to the engine.
    """

    def __init__(self, options: MixOptions, openings: Sequence[Opening], job: str, shared: EpochCell) -> None:
        self.options = options
        self.openings = tuple(openings)
        self.job = job
        self.shared = shared
        # Not a method: the connections are kept by open sessions, and must not keep this object.
        first = openings[0].options
        # Each part of a session brings its credentials.
        self.connections = EngineConnections(
            lambda: EngineClient(replace(first.client_settings(Environment.read(), job), storage_options={}))
        )
        self._streams = StreamNames()
        self._members: Members | None = None
        self._explained: set[str] = set()

    def __repr__(self) -> str:
        return f"MixOpening({', '.join(self.options.names)}, {self.connections!r}, opened={self._members is not None})"

    def rank_config(self) -> RankConfig:
        """Rank and world size of this process."""
        return detect(self.options.rank, self.options.world_size)

    @property
    def members(self) -> Members:
        """The members; the first use opens them, several at the same time."""
        if self._members is None:
            self._members = Members(self._open_all())
        return self._members

    def sources(self) -> tuple[MixSource, ...]:
        """The members as the order sees them."""
        in_bytes = self.options.shares.unit == "bytes"
        return tuple(
            MixSource(
                name,
                member.digest,
                member.chunk_samples,
                opening.options.seed,
                shuffle_mode(opening.options.shuffle),
                size=member.exact_bytes if in_bytes else None,
            )
            for name, member, opening in zip(self.options.names, self.members.each, self.openings, strict=True)
        )

    def prepare(self, batch_size: int, last_batch: LastBatch | None, *, plain: bool = False) -> MixPrepared:
        """Fixes the order for batches of `batch_size` samples on each rank; see `Opening.prepare`."""
        rank_config, options, members, sources = self.rank_config(), self.options, self.members, self.sources()
        global_batch = batch_size * rank_config.world_size
        geometry = MixGeometry(
            spec=options.request.spec(sources, global_batch),
            rank=rank_config.rank,
            world_size=rank_config.world_size,
            global_batch=global_batch,
            last_batch=check_last_batch(last_batch, rank_config.world_size),
        )
        with self.connections.for_requests() as connection:
            roots = tuple(connection.roots())
        identity = Identity(
            rank_config=rank_config,
            stream=self._streams.name(self._stream(), batch_size, plain),
            free_parts=frozenset(),
            skip_rules=SkipRules(options.on_error, options.error_budget),
        )
        recipe = MixRecipe(members=self._recipes(), geometry=geometry, roots=roots)
        inputs = MixInputs(request=options.request, sources=sources, part_options=self._part_options())
        prepared = MixPrepared(self.connections, recipe, members, inputs, identity)
        self._explain(prepared)
        return prepared

    def look(self, epoch: int, member: int, index: int) -> object:
        """Makes one sample of a member, from the cache or the store."""
        return self.openings[member].look(epoch, index, self._rules()[member])

    def explained(self, global_batch: int, nodes: int) -> str:
        """The order for a global batch in words; see `MixedDataset.explain`."""
        spec = self.options.request.spec(self.sources(), global_batch)
        with self.connections.for_requests() as connection:
            limit_bytes = connection.welcome.limit_bytes
        return self._in_words(spec, global_batch, nodes, limit_bytes or None)

    def _in_words(self, spec: MixSpec, global_batch: int, nodes: int, cache_bytes: int | None = None) -> str:
        unit, sizes = self.options.shares.unit, self.members.sizes
        return explain(spec, sizes, global_batch, cache_bytes=cache_bytes, nodes=nodes, unit=unit)

    def _recipes(self) -> tuple[MemberRecipe, ...]:
        return tuple(
            MemberRecipe(manifest_path=member.manifest.path, selection=member.selection_file, rules=rules)
            for member, rules in zip(self.members.each, self._rules(), strict=True)
        )

    def _rules(self) -> list[SampleRules]:
        names, key = self.options.names, self.options.source_key
        return [
            msgspec.structs.replace(opening.rules(), member=name, source_key=key)
            for name, opening in zip(names, self.openings, strict=True)
        ]

    def _part_options(self) -> tuple[bytes, ...]:
        environment = Environment.read()
        return tuple(
            opening.options.client_settings(environment, self.job).encoded_options() for opening in self.openings
        )

    def _stream(self) -> str:
        """The name of the members and their samples, or what the user calls them."""
        digests = " ".join(member.digest for member in self.members.each)
        chosen = blake2b(digests.encode(), digest_size=8).hexdigest()
        return self.options.stream or f"mix of {', '.join(self.options.names)[:200]} ({chosen})"

    @property
    def user_code(self) -> tuple[object, ...]:
        """Transforms and decoders: they run in workers."""
        return tuple(code for opening in self.openings for code in opening.user_code)

    @property
    def refreshes(self) -> bool:
        """Whether objects are listed again before each epoch."""
        return any(opening.refreshes for opening in self.openings)

    @property
    def compares(self) -> bool:
        """Whether torch.distributed knows other ranks of this mix."""
        return gather_for(self.rank_config()) is not None

    def compared(self, prepare: Callable[[], Stream], place: str) -> Stream:
        """Prepares on all ranks together; see `Opening.compared`."""
        return compared(self.rank_config(), prepare, place)

    def share(self, stream: PreparedStream) -> None:
        """Does nothing: members with peers="auto" are refused."""

    def refresh(self) -> bool:
        """Lists the objects of every member again; collective. True: those of one have changed."""
        # Each of them: a change of the first must not hide one of the second.
        changed = [opening.refresh() for opening in self.openings]
        if any(changed):
            self._members = None
        return any(changed)

    def close(self) -> None:
        """Closes the connections: readers get a ClosedError. The next use connects again. Idempotent."""
        self.connections.close()
        for opening in self.openings:
            opening.close()

    def _open_all(self) -> list[OpenedDataset]:
        _allow_descriptors(_DESCRIPTORS_PER_MEMBER * len(self.openings))
        # The same dataset may be a member twice; an opening is for one thread.
        distinct = {
            id(opening): (name, opening) for name, opening in zip(self.options.names, self.openings, strict=True)
        }
        pools = _share_connections([opening for _, opening in distinct.values()])
        try:
            with ThreadPoolExecutor(min(_OPENED_AT_ONCE, len(distinct)), "streamer-open") as threads:
                members = [[one for one in distinct.values() if one[1].connections is pool] for pool in pools]
                list(threads.map(_find, members, pools))
                # Some may still have to ask for their annotations.
                found = dict(zip(distinct, threads.map(_open, distinct.values()), strict=True))
        finally:
            for connections in pools:
                connections.close_idle()
        return [found[id(opening)] for opening in self.openings]

    def _explain(self, prepared: MixPrepared) -> None:
        """Logs the order and its cost once, on the first rank."""
        spec, batch, nodes = prepared.spec, prepared.global_batch, prepared.rank_config.nodes
        if prepared.rank_config.rank or spec.order_id in self._explained:
            return
        self._explained.add(spec.order_id)
        logger.info("%s", self._in_words(spec, batch, nodes))
        for caution in (
            *cautions(spec, batch, self.options.shares.epoch_samples),
            *_in_step(prepared),
            *_across_groups(prepared),
        ):
            logger.warning("%s", caution)
        if shared := shared_lanes(spec.members[0].order, batch, nodes):
            logger.warning("%s", shared)


def _in_step(prepared: MixPrepared) -> list[str]:
    """The members that have the same samples and the same seed."""
    first: dict[tuple[str, int], str] = {}
    found = []
    for member in prepared.spec.members:
        name = first.setdefault((member.order.manifest_digest, member.order.seed), member.name)
        if name != member.name:
            found.append(
                f"members {name} and {member.name} have the same samples and the same seed: both come in the same "
                "order; give one of them another seed"
            )
    return found


def _across_groups(prepared: MixPrepared) -> list[str]:
    """Whether a rank's batch has parts of several groups."""
    group, own = prepared.global_batch // prepared.spec.groups, prepared.local_batch
    if prepared.spec.groups == 1 or group % own == 0 or own % group == 0:
        return []
    return [f"a rank's batch of {own} samples has parts of several groups of {group}, each of one member"]


def _allow_descriptors(count: int) -> None:
    """Raises the limit of open files where many members need it: each holds its manifest and its shared memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _share_connections(openings: Sequence[Opening]) -> list[EngineConnections]:
    """Lets members with the same engine and credentials use the same connections: a thousand of them need a few."""
    environment = Environment.read()
    shared: list[tuple[ClientSettings, EngineConnections]] = []
    for opening in openings:
        settings = opening.options.client_settings(environment, opening.job)
        known = next((connections for other, connections in shared if other == settings), None)
        if known is None:
            shared.append((settings, opening.connections))
        else:
            opening.connections = known
    return [connections for _, connections in shared]


def _find(members: Sequence[tuple[str, Opening]], connections: EngineConnections) -> None:
    """Opens the manifests of members that share connections, over one of them."""
    environment = Environment.read()
    unknown = deque((name, opening) for name, opening in members if _named(name, opening.settled) is None)
    asks = [_named(name, partial(opening.ask, environment)) for name, opening in unknown]
    if not asks:
        return

    def waited_for() -> str:
        return unknown[0][1].waited_for() if unknown else ""

    with watched(logger, waited_for), connections.for_requests() as connection:
        folders = connection.manifests(asks)
        while unknown:
            name, opening = unknown[0]
            folder = _named(name, partial(next, folders))
            _named(name, partial(opening.found, folder))
            unknown.popleft()


def _open(member: tuple[str, Opening]) -> OpenedDataset:
    name, opening = member
    return _named(name, lambda: opening.opened)


def _named(name: str, work: Callable[[], Result]) -> Result:
    """An error says which member it is about."""
    try:
        return work()
    except StreamerError as error:
        raise error.of_member(name) from error
