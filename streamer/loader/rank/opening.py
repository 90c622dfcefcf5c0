"""Prepares what a rank reads, a dataset or a mix: opens its members, fixes their order, compares it over the ranks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace as with_parts

from streamer.batches.rows.options import Buckets
from streamer.batches.samples.maker import SampleRules
from streamer.batches.samples.opened import Members
from streamer.batches.samples.recipe import SampleRecipe
from streamer.client.engine_client import EngineClient
from streamer.config import Environment, RankConfig, counted
from streamer.errors import ConfigError, Detail, StreamerError
from streamer.loader.agreement.agreement import ParentRank, agree, detect, gather_for, process_group
from streamer.loader.agreement.epoch_cell import EpochCell
from streamer.loader.kinds.step_session import Identity, OrderRequest
from streamer.loader.members.connections import EngineConnections
from streamer.loader.members.member import Member
from streamer.loader.options.dataset_options import DatasetOptions, StreamOptions
from streamer.loader.rank.rank_stream import RankStream
from streamer.order.level import BalanceSpec
from streamer.order.plan import LastBatch, check_last_batch
from streamer.order.quality import check_sample_shuffle, explain, shared_lanes
from streamer.order.spec import OrderSpec, auto_lanes, shuffle_mode, together

if TYPE_CHECKING:
    from streamer.loader.kinds.mix import Mixing
    from streamer.order.mix import MixSpec

logger = logging.getLogger(__name__)


class Opening:
    """One process's view of what it reads. Used by one thread; after a fork the child connects again by itself.

    The streams that it prepares may open sessions on other threads, several at the same time.

    Args:
        options: of the whole.
        members: the datasets; one, or those of a mix in their order.
        job: name of the job if the environment has none.
        shared: the epochs, shared by all processes.
        mixing: of a mix; None: one dataset.
        parent: the rank of the process that has sent it to this one.

    Attributes:
        edition: number of changes that `refresh` has found; a stream prepared before the last one is out of date.
        begun: whether an epoch has begun: then the objects are listed again before each further one.
        requested_epoch: the last `set_epoch`; None: none since a loader has taken it.
    """

    def __init__(
        self,
        options: StreamOptions,
        members: Sequence[Member],
        job: str,
        shared: EpochCell,
        mixing: Mixing | None = None,
        *,
        parent: ParentRank | None = None,
    ) -> None:
        self.options = options
        self._parent = parent
        # As which rank this process has read, and the process.
        self._read_as: tuple[int, RankConfig] | None = None
        self.job = job
        self.shared = shared
        self.edition = 0
        self.begun = False
        self.requested_epoch: int | None = None
        self._datasets = tuple(members)
        self._mixing = mixing
        self._for_parts = None if mixing is None else _for_parts(members[0].options, job)
        self._members: Members | None = None
        self._explained: set[str] = set()
        # The first batch size of a loader is the usual one, so that ranks that begin with different sizes are refused.
        self._usual_batch = 0
        self._warned = False

    def __repr__(self) -> str:
        return f"Opening({', '.join(map(repr, self._datasets[:4]))}, opened={self._members is not None})"

    @property
    def connections(self) -> EngineConnections:
        """The connections to the engine; those of one dataset are its own."""
        return self._datasets[0].connections if self._for_parts is None else self._for_parts

    def rank_config(self) -> RankConfig:
        """Rank and world size of this process: after the end of the process group those by which it has read."""
        found = detect(self.options.rank, self.options.world_size, parent=self._parent)
        if self._read_as is not None and self._read_as[0] == os.getpid() and found.world_size == 1:
            return found if process_group() is not None else self._read_as[1]
        return found

    def place(self) -> tuple[int, int]:
        """Rank and world size, for a worker that is sent this."""
        found = self.rank_config()
        return found.rank, found.world_size

    def note_rank(self, stream: RankStream) -> None:
        """Records as which rank a stream is read; logs once what is doubtful about it."""
        found = stream.rank_config
        if found.note and self.shared.note_once():
            logger.warning("%s", found.note)
        self._read_as = os.getpid(), found

    def keep_rank(self, stream: RankStream) -> RankStream:
        """Records as which rank a stream is read, and refuses another one from now on; returns the stream.

        Raises:
            StateError: the dataset was read as another rank, in this process or in one that shares its epochs.
        """
        self.shared.keep_rank(*stream.place)
        self.note_rank(stream)
        return stream

    @property
    def members(self) -> Members:
        """The members; the first use opens them, those of a mix several at the same time."""
        if (mixing := self._mixing) is None:
            return Members([self._datasets[0].opened])
        if self._members is None:
            # Only here: one dataset alone does not load it.
            from streamer.loader.members.open_members import open_together

            self._members = Members(open_together(list(zip(mixing.names, self._datasets, strict=True))))
        return self._members

    # ------------------------------------------------------------ the stream

    def prepare(self, batch_size: int, last_batch: LastBatch | None = None, *, plain: bool = False) -> RankStream:
        """Fixes the order for batches of `batch_size` samples on each rank. Does the I/O of this rank only.

        Args:
            batch_size: of one rank.
            last_batch: what becomes of an incomplete last batch; None: short on one rank, filled on several.
            plain: for a bare loop or torch's DataLoader; otherwise for a StreamingDataLoader.

        Raises:
            StreamerError: no engine, manifest or order.
        """
        rank_config = self.rank_config()
        options = self.options
        members = self.members
        if batch_size > 1 and any(isinstance(member.options.packing, Buckets) for member in self._datasets):
            raise ConfigError(
                f"batch_size={batch_size} of a dataset with Buckets: a bucket is a batch; give batch_size=1",
                field="batch_size",
            )
        global_batch = batch_size * rank_config.world_size
        last_batch = check_last_batch(last_batch, rank_config.world_size)
        spec, request = self._order(global_batch)
        self._explain(spec, global_batch, rank_config)
        with self.connections.for_requests() as connection:
            roots = tuple(connection.roots())
        recipe = SampleRecipe(
            members=tuple(member.recipe(rules) for member, rules in zip(self._datasets, self._rules(), strict=True)),
            spec=spec,
            rank=rank_config.rank,
            world_size=rank_config.world_size,
            global_batch=global_batch,
            last_batch=last_batch,
            roots=roots,
        )
        environment = Environment.read()
        identity = Identity(
            rank_config=rank_config,
            stream=self._stream_name(batch_size, plain),
            skip_rules=options.skip_rules,
            peers=self._only.order.peers if self._mixing is None else "off",
            options=tuple(
                each.options.client_settings(environment, each.job).encoded_options() for each in self._parts()
            ),
            given=options.rank is not None,
        )
        return RankStream(self.connections, recipe, members, identity, request)

    def _parts(self) -> list[Member]:
        """The members, then what they are joined to, in their order."""
        return [*self._datasets, *(right for member in self._datasets for right in member.rights)]

    @property
    def _only(self) -> DatasetOptions:
        """The options of the only dataset."""
        return self._datasets[0].options

    def _order(self, global_batch: int) -> tuple[OrderSpec | MixSpec, OrderRequest]:
        """The order for a global batch, and what the user has asked for."""
        if (mixing := self._mixing) is not None:
            balance = self._balance(global_batch)
            sources = mixing.sources(self.members.each)
            request = with_parts(mixing.options.request, balance=balance)
            return request.spec(sources, global_batch), OrderRequest(mix=request, sources=sources)
        options = self._only
        data = self.members.each[0]
        if shuffle_mode(options.shuffle) == "sample":
            check_sample_shuffle(data.manifest.samples, data.manifest.total_bytes)
        lanes = options.order.lanes
        window = options.order.shuffle_window
        rows = data.rows
        balance = self._balance(global_batch)
        if rows is not None and shuffle_mode(options.shuffle) != "none":
            sets = np.count_nonzero(data.order_samples)
            chunks = np.count_nonzero(data.chunk_samples)
            from streamer.order.row_order import row_window

            lanes = auto_lanes(int(sets), together(global_batch, balance)) if lanes is None else lanes
            window = row_window(int(sets), int(chunks), global_batch, lanes, window)
        spec = OrderSpec.auto(
            data.digest,
            data.order_samples,
            global_batch,
            options.seed,
            options.shuffle,
            lanes=lanes,
            window=window,
            cut=options.order.cut or "fixed",
            rows=UNSET if rows is None else rows.recipe.spec,
            balance=balance,
        )
        return spec, OrderRequest(free_parts=options.order.free_parts, growing=options.growing)

    def _balance(self, global_batch: int) -> BalanceSpec | UnsetType:
        """What is made level; of a mix alike in all members."""
        if (balance := self._only.balance) is None:
            return UNSET
        lengths = [each.lengths.identity for each in self.members.each if each.lengths is not None]
        return balance.spec(global_batch, " ".join(lengths).strip())

    def _rules(self) -> list[SampleRules]:
        """The rules of making samples, of each member."""
        if (mixing := self._mixing) is None:
            return [self._datasets[0].rules()]
        key = mixing.options.source_key
        return [member.rules(name, key) for name, member in zip(mixing.names, self._datasets, strict=True)]

    def _stream_name(self, batch_size: int, plain: bool) -> str:
        """Distinguishes the loaders of one job, within which the ranks must agree: by samples, shuffle and batch."""
        name = self.options.order.stream or self._data_name()
        if plain:
            return f"{name}, sample by sample"
        self._usual_batch = self._usual_batch or batch_size
        return name if batch_size == self._usual_batch else f"{name}, by {batch_size}"

    def _data_name(self) -> str:
        each = self.members.each
        if self._mixing is None:
            chosen = "all" if each[0].selection is None else each[0].digest
            rows = each[0].rows
            balance = self._only.balance
            packed = "" if rows is None else f" in rows of {rows.recipe.spec.length}, {rows.recipe.spec.policy}"
            level = "" if balance is None else f", balance {balance.rows}"
            return f"shuffle {shuffle_mode(self._only.shuffle)} of {chosen}{packed}{level}"
        digests = " ".join(member.digest for member in each)
        chosen = blake2b(digests.encode(), digest_size=8).hexdigest()
        return f"mix of {', '.join(self._mixing.names)[:200]} ({chosen})"

    def _explain(self, spec: OrderSpec | MixSpec, global_batch: int, rank_config: RankConfig) -> None:
        """Logs once, on the first rank, the quality and cost of the order; cautions as warnings."""
        if rank_config.rank or spec.order_id in self._explained:
            return
        self._explained.add(spec.order_id)
        nodes = rank_config.nodes
        each = self.members.each
        if (mixing := self._mixing) is None:
            only = cast("OrderSpec", spec)
            data = each[0]
            if data.rows is None:
                words = explain(only, data.chunk_samples, global_batch, data.stored_bytes, nodes)
            else:
                words = f"{data.rows.in_words()}; order {only.order_id}, {counted(only.lanes, 'lanes')}"
            cautions = list(filter(None, [shared_lanes(only, global_batch, nodes)]))
        else:
            mix = cast("MixSpec", spec)
            local_batch = global_batch // rank_config.world_size
            words = mixing.in_words(mix, each, global_batch, nodes)
            cautions = mixing.cautions(mix, global_batch, local_batch, nodes)
        logger.info("%s", words)
        for member, join in self.members.joins:
            # Only here: a dataset without joins does not load it.
            from streamer.batches.samples.join_cost import in_words

            logger.info("%s", in_words(join, each[member], self._limit_bytes()))
        for caution in cautions:
            logger.warning("%s", caution)

    def explained(self, global_batch: int, nodes: int) -> str:
        """The order of a mix for a global batch in words; see `MixedDataset.explain`."""
        assert self._mixing is not None
        spec, _ = self._order(global_batch)
        limit_bytes = self._limit_bytes() or None
        return self._mixing.in_words(cast("MixSpec", spec), self.members.each, global_batch, nodes, limit_bytes)

    def _limit_bytes(self) -> int:
        """The limit of the cache."""
        with self.connections.for_requests() as connection:
            return connection.welcome.limit_bytes

    def look(self, epoch: int, member: int, index: int) -> object:
        """Makes one sample of a member, from the cache or the store; see `Member.look`."""
        return self._datasets[member].look(epoch, index, self._rules()[member])

    # ------------------------------------------------------------ loaders

    @property
    def user_code(self) -> tuple[object, ...]:
        """Transforms and decoders: they run in workers; the modules that they need are imported before these start."""
        return tuple(code for member in self._datasets for code in member.user_code)

    @property
    def last_batch(self) -> LastBatch | None:
        """The user's choice for an incomplete last batch; None: not given."""
        return self.options.order.last_batch

    def take_requested_epoch(self) -> int | None:
        """The epoch given to `set_epoch` since the last call, if any."""
        requested, self.requested_epoch = self.requested_epoch, None
        return requested

    @property
    def compares(self) -> bool:
        """Whether torch.distributed knows other ranks, for `compare`."""
        return gather_for(self.rank_config()) is not None

    def compared(self, prepare: Callable[[], RankStream], place: str) -> RankStream:
        """Prepares, with torch.distributed on all ranks together: they agree, or all of them raise. Collective.

        Args:
            prepare: the preparation of this rank; its error is raised on every rank.
            place: epoch and batch of its start; equal on all ranks.

        Raises:
            StreamerError: of the first rank that failed, on every rank.
            StateError: the ranks disagree.
        """
        if (gather := gather_for(self.rank_config())) is None:
            return prepare()
        stream: RankStream | None = None
        facts: dict[str, Detail] = {}
        failure: StreamerError | None = None
        try:
            stream = prepare()
            facts = {**stream.facts(), "resume": place}
        except StreamerError as error:
            failure = error
        agree(gather, facts, failure)
        assert stream is not None, "agree raises where this rank failed"
        return stream

    def compare(self, prepare: Callable[[], RankStream], place: str) -> None:
        """Does the same as `compared`; with peers="auto" the engines of all ranks then share their caches. Collective.

        Raises:
            StreamerError: of the first rank that failed, on every rank, also where an engine cannot share its cache.
        """
        stream = self.compared(prepare, place)
        if self._mixing is not None or self._only.order.peers != "auto":
            return
        if (gather := gather_for(self.rank_config())) is not None:
            stream.share_caches(gather)
        elif not self._warned:
            self._warned = True
            if self.options.rank is not None and process_group() is not None:
                why = (
                    "rank= and world_size= of the dataset take the place of torch.distributed, whose ranks are others "
                    "and cannot be asked"
                )
            else:
                why = (
                    "torch.distributed is not initialised, or knows one rank. Call init_process_group before the first "
                    "iter()"
                )
            logger.warning(
                'peers="auto" is off: %s; engines that run as services find each other without it ([peers] members, '
                "docs/scale-out.md)",
                why,
            )

    @property
    def refreshes(self) -> bool:
        """Whether objects are listed again before each epoch."""
        return any(member.refreshes for member in self._datasets)

    def refresh(self) -> bool:
        """Lists the objects of every member again; True: those of one have changed. Collective.

        Raises:
            StreamerError: see `Member.refresh`.
        """
        # Each of them: a change of the first must not hide one of the second.
        changed = [member.refresh() for member in self._datasets]
        if any(changed):
            self._members = None
            self.edition += 1
        return any(changed)

    def close(self) -> None:
        """Closes the connections: readers get a ClosedError. The next use connects again. Idempotent."""
        self.connections.close()
        for member in self._datasets:
            member.close()


def _for_parts(options: DatasetOptions, job: str) -> EngineConnections:
    """Connections for sessions of several parts, each of which brings its credentials."""
    return EngineConnections(
        lambda: EngineClient(replace(options.client_settings(Environment.read(), job), storage_options={}))
    )
