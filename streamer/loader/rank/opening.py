"""Prepares what a rank reads, a dataset or a mix: opens its members, fixes their order, compares it over the ranks.

`loader/dataset.py` and `loader/mixed_dataset.py` make a `StreamOpening` each; `loader/epoch_dataset.py` and
`loader/dataloader.py` prepare their streams by it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from streamer.batches.samples.recipe import SampleRecipe
from streamer.config import Environment, RankConfig
from streamer.errors import Detail
from streamer.loader.agreement import ParentRank, agree, detect, gather_for, process_group
from streamer.loader.epoch_cell import EpochCell
from streamer.loader.kinds.kind import Ordering, StreamKind
from streamer.loader.kinds.step_session import Identity
from streamer.loader.members.connections import EngineConnections
from streamer.loader.options.dataset_options import StreamOptions
from streamer.loader.rank.rank_stream import RankStream
from streamer.order.plan import LastBatch, check_last_batch

logger = logging.getLogger(__name__)


class StreamOpening:
    """Prepares streams of what one process reads. Used by one thread; after a fork the child connects again by itself.

    The streams that it prepares may open sessions on other threads, several at the same time.

    Args:
        options: Options of the whole.
        kind: Kind of what is read: one dataset, a mix, or a growing dataset.
        job: Name of the job if the environment has none.
        shared: The next epoch and the rank, shared by all processes of the dataset.
        parent: Rank of the process that has sent it to this one, or None if none has.

    Attributes:
        options: Options of the whole.
        job: Name of the job if the environment has none.
        shared: The next epoch and the rank, shared by all processes of the dataset.
        edition: Number of changes that `refresh` has found; a stream prepared before the last one is out of date.
        begun: Whether a loader has begun an epoch, so that later epochs list the objects again if they are to.
        requested_epoch: Epoch of the last `set_epoch`, or None if there was none since a loader has taken it.
    """

    def __init__(
        self,
        options: StreamOptions,
        kind: StreamKind,
        job: str,
        shared: EpochCell,
        *,
        parent: ParentRank | None = None,
    ) -> None:
        self.options = options
        self._parent = parent
        # Id of the process, and the rank as which it has read.
        self._read_as: tuple[int, RankConfig] | None = None
        self.job = job
        self.shared = shared
        self.edition = 0
        self.begun = False
        self.requested_epoch: int | None = None
        self._kind = kind
        self._datasets = kind.datasets
        self._explained: set[str] = set()
        # The batch size of the first loader, or 0. It is not in the stream's name: ranks that begin with different
        # sizes then have one stream, and are refused.
        self._usual_batch = 0
        self._warned = False

    def __repr__(self) -> str:
        return f"StreamOpening({', '.join(map(repr, self._datasets[:4]))})"

    @property
    def connections(self) -> EngineConnections:
        """The connections to the engine; for one dataset they are those of its member."""
        return self._kind.connections

    def rank_config(self) -> RankConfig:
        """Returns rank and world size of this process; once the process group has ended, those with which it read.

        Raises:
            ConfigError: see `detect`.
        """
        found = detect(self.options.rank, self.options.world_size, parent=self._parent)
        if self._read_as is not None and self._read_as[0] == os.getpid() and found.world_size == 1:
            return found if process_group() is not None else self._read_as[1]
        return found

    def place(self) -> tuple[int, int]:
        """Returns rank and world size, which are sent to workers of a plain DataLoader.

        Raises:
            ConfigError: see `rank_config`.
        """
        found = self.rank_config()
        return found.rank, found.world_size

    def note_rank(self, stream: RankStream) -> None:
        """Records the rank of a stream that is read; logs once if that rank is doubtful (`RankConfig.note`)."""
        found = stream.rank_config
        if found.note and self.shared.note_once():
            logger.warning("%s", found.note)
        self._read_as = os.getpid(), found

    def keep_rank(self, stream: RankStream) -> RankStream:
        """Records as which rank a stream is read, and refuses it if another one was recorded; returns the stream.

        Raises:
            StateError: the dataset was read as another rank, in this process or in one that shares its epochs.
        """
        self.shared.keep_rank(*stream.place)
        self.note_rank(stream)
        return stream

    # ------------------------------------------------------------ the stream

    def prepare(self, batch_size: int, last_batch: LastBatch | None = None, *, plain: bool = False) -> RankStream:
        """Fixes the order for batches of `batch_size` samples on each rank. Does the I/O of this rank only.

        Args:
            batch_size: Samples of a batch of one rank.
            last_batch: What becomes of an incomplete last batch. With None it is short on one rank, filled on several.
            plain: Whether it is for a bare loop or a plain DataLoader, not for a StreamingDataLoader.

        Raises:
            StreamerError: the engine, the manifest or such an order cannot be had.
        """
        rank_config = self.rank_config()
        members = self._kind.members()
        for member in self._datasets:
            member.options.packing.check_batch(batch_size)
        global_batch = batch_size * rank_config.world_size
        last_batch = check_last_batch(last_batch, rank_config.world_size)
        ordering = self._kind.plan_stream(members, global_batch, rank_config)
        self._explain(ordering, global_batch, rank_config)
        with self.connections.for_requests() as connection:
            roots = tuple(connection.roots())
        recipe = SampleRecipe(
            members=tuple(
                member.recipe(rules) for member, rules in zip(self._datasets, self._kind.rules(), strict=True)
            ),
            spec=ordering.spec,
            rank=rank_config.rank,
            world_size=rank_config.world_size,
            global_batch=global_batch,
            last_batch=last_batch,
            roots=roots,
        )
        # The members, then what they are joined to, in their order.
        parts = [*self._datasets, *(right for member in self._datasets for right in member.rights)]
        environment = Environment.read()
        identity = Identity(
            rank_config=rank_config,
            stream=self._stream_name(batch_size, plain),
            skip_rules=self.options.skip_rules,
            share_caches=self._kind.share_caches,
            options=tuple(each.options.client_settings(environment, each.job).encode_options() for each in parts),
            given=self.options.rank is not None,
        )
        return RankStream(self.connections, recipe, members, identity=identity, ordering=ordering)

    def _stream_name(self, batch_size: int, plain: bool) -> str:
        """Returns a name of samples, shuffle and batch size, by which loaders of one job differ, and ranks agree."""
        name = self.options.order.name or self._kind.data_name(self._kind.members())
        if plain:
            return f"{name}, sample by sample"
        self._usual_batch = self._usual_batch or batch_size
        return name if batch_size == self._usual_batch else f"{name}, by {batch_size}"

    def _explain(self, ordering: Ordering, global_batch: int, rank_config: RankConfig) -> None:
        """Logs quality and cost of an order, and its cautions as warnings: once, on rank 0."""
        order_id = ordering.spec.order_id
        if rank_config.rank or order_id in self._explained:
            return
        self._explained.add(order_id)
        nodes = rank_config.nodes
        members = self._kind.members()
        cautions = ordering.cautions(global_batch, global_batch // rank_config.world_size, nodes)
        logger.info("%s", ordering.describe(members, global_batch, nodes))
        for member, join in members.joins:
            # Imported here, since a dataset without joins does not need it.
            from streamer.batches.samples.join_cost import describe_join

            logger.info("%s", describe_join(join, members.each[member], self._limit_bytes()))
        for caution in cautions:
            logger.warning("%s", caution)

    def explain(self, global_batch: int, nodes: int) -> str:
        """Returns a text on the order and its cost, for batches of `global_batch` samples on `nodes` machines.

        Raises:
            StreamerError: there is no such order; ConfigError if the machines cannot share a batch equally.
        """
        members = self._kind.members()
        ordering = self._kind.plan_stream(members, global_batch, self.rank_config())
        return ordering.describe(members, global_batch, nodes, self._limit_bytes() or None)

    def _limit_bytes(self) -> int:
        """Returns the limit of the cache in bytes."""
        with self.connections.for_requests() as connection:
            return connection.welcome.limit_bytes

    def look(self, epoch: int, member: int, index: int) -> object:
        """Makes one sample, from the cache or the store; see `DatasetMember.look`.

        Args:
            epoch: Epoch of its random numbers.
            member: Number of the member.
            index: Number of the sample in the member.

        Raises:
            IndexError: there is no such sample. Errors of reading, of decoders and of the transform pass.
        """
        return self._datasets[member].look(epoch, index, self._kind.rules()[member])

    # ------------------------------------------------------------ loaders

    @property
    def user_code(self) -> tuple[object, ...]:
        """Transforms and decoders of the members. The modules that they need are imported before workers start."""
        return tuple(code for member in self._datasets for code in member.user_code)

    @property
    def last_batch(self) -> LastBatch | None:
        """Choice of the user for an incomplete last batch, or None if the user has made none."""
        return self.options.order.last_batch

    def take_epoch(self) -> int | None:
        """Returns the epoch that `set_epoch` was given since the last call, or None."""
        requested = self.requested_epoch
        self.requested_epoch = None
        return requested

    @property
    def compares(self) -> bool:
        """Whether torch.distributed knows other ranks, with which this one compares what it reads.

        Raises:
            ConfigError: see `rank_config`.
        """
        return gather_for(self.rank_config()) is not None

    def prepare_together(self, prepare: Callable[[], RankStream], place: str) -> RankStream:
        """Returns a stream that is prepared on all ranks together: they agree, or all of them raise. Collective.

        Without torch.distributed, or with one rank, it only prepares.

        Args:
            prepare: Prepares the stream of this rank.
            place: Text on where the stream begins, which must be equal on all ranks.

        Raises:
            StreamerError: a rank failed. It raises its own error, the others that of the lowest rank that failed, or a
                BrokenError that names it if it is of another type.
            StateError: the ranks disagree.
            Exception: an error of `prepare` of another type, on this rank.
        """
        if (gather := gather_for(self.rank_config())) is None:
            return prepare()
        stream: RankStream | None = None
        facts: dict[str, Detail] = {}
        failure: Exception | None = None
        try:
            stream = prepare()
            facts = {**stream.facts(), "resume": place}
        except Exception as error:  # noqa: BLE001 - the other ranks are told
            failure = error
        agree(gather, facts, failure)
        assert stream is not None, "agree raises where this rank failed"
        return stream

    def prepare_and_share(self, prepare: Callable[[], RankStream], place: str) -> None:
        """Prepares a stream on all ranks, whose engines then share their caches with share_caches="auto". Collective.

        Args:
            prepare: See `prepare_together`.
            place: See `prepare_together`.

        Raises:
            StreamerError: the error of the first rank that failed, or whose engine cannot share its cache; on every
                rank.
            StateError: the ranks disagree.
        """
        stream = self.prepare_together(prepare, place)
        if self._kind.share_caches != "auto":
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
                'share_caches="auto" is off: %s; engines that run as services find each other without it '
                "([peers] members, docs/scale-out.md)",
                why,
            )

    @property
    def refreshes(self) -> bool:
        """Whether objects are listed again before each epoch."""
        return any(member.refreshes for member in self._datasets)

    def refresh(self) -> bool:
        """Lists the objects of every member again. Returns whether those of one have changed. Collective.

        Raises:
            StreamerError: see `DatasetMember.refresh`.
        """
        # All of them are asked: a change of the first must not hide one of the second.
        changed = [member.refresh() for member in self._datasets]
        if any(changed):
            self._kind.forget()
            self.edition += 1
        return any(changed)

    def close(self) -> None:
        """Closes the connections: readers get a ClosedError. The next use connects again. Idempotent."""
        self.connections.close()
        for member in self._datasets:
            member.close()
