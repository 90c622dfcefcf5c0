"""Opens a dataset: engine, manifest, selection and order. The first use does the I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
from torch.utils.data import get_worker_info

from streamer.annotations.join import JoinRules, annotations_of, table_digest
from streamer.annotations.options import Annotations
from streamer.annotations.table import AnnotationTable
from streamer.client.engine_client import EngineClient
from streamer.client.launcher import log_of
from streamer.client.manifest_asks import ManifestAsk
from streamer.config import Environment, RankConfig
from streamer.decode.dispatch import SampleDecoder
from streamer.decode.transforms import as_transform
from streamer.errors import ConfigError, StreamerError
from streamer.loader.contracts import PreparedStream
from streamer.loader.rank.agreement import agree, compared, detect, gather_for
from streamer.loader.rank.connections import EngineConnections
from streamer.loader.rank.dataset_options import DatasetOptions
from streamer.loader.rank.epoch_cell import EpochCell
from streamer.loader.rank.growing.prepared import GrowingPrepared
from streamer.loader.rank.index_progress import Announcer
from streamer.loader.rank.joining import both_digests, find_table, kept
from streamer.loader.rank.prepared import Prepared
from streamer.loader.rank.rank_stream import Identity, RankStream, StreamNames
from streamer.loader.rank.selections import Choice, choose
from streamer.loader.rank.single_reads import StreamedBytes, find_key
from streamer.loader.samples.maker import SampleMaker, SampleRules
from streamer.loader.samples.opened import OpenedDataset
from streamer.loader.samples.recipe import SampleRecipe
from streamer.loader.skipping import SkipRules
from streamer.loader.waiting import watched
from streamer.manifest.reader_lock import open_held
from streamer.manifest.table import Manifest
from streamer.order.plan import LastBatch, check_last_batch
from streamer.order.quality import check_sample_shuffle, explain, shared_lanes
from streamer.order.spec import OrderSpec, shuffle_mode

logger = logging.getLogger(__name__)

Stream = TypeVar("Stream", bound=PreparedStream)


class Opening:
    """One process's view of a dataset. Used by one thread; after a fork the child connects again by itself.

    The streams that it prepares may open sessions on other threads, several at the same time.

    Args:
        options: the user's.
        choices: selections, in order.
        job: name of the job if the environment has none.
        shared: the state shared by all processes of the dataset.

    Attributes:
        connections: to the engine; members of a mix may share them.
    """

    def __init__(self, options: DatasetOptions, choices: tuple[Choice, ...], job: str, shared: EpochCell) -> None:
        self.options = options
        self.choices = choices
        self.job = job
        self.shared = shared
        # Not a method: the connections are kept by open sessions, and must not keep this object.
        self.connections = EngineConnections(lambda: EngineClient(options.client_settings(Environment.read(), job)))
        self._streams = StreamNames()
        self._found: Manifest | None = None
        self._opened: OpenedDataset | None = None
        self._explained: set[str] = set()
        self._announcer = Announcer(0)
        self._warned = False

    def __repr__(self) -> str:
        return f"Opening({self.options.urls}, {self.connections!r}, opened={self._opened!r})"

    def part(self, choice: Choice | None, options: DatasetOptions) -> Opening:
        """The opening of a part of this dataset, which shares what is known of it; None: of all of it."""
        choices = self.choices if choice is None else (*self.choices, choice)
        known = EpochCell(manifest=self.shared.manifest, annotations=self.shared.annotations)
        return Opening(options, choices, self.job, known)

    def settings(self) -> tuple[DatasetOptions, tuple[Choice, ...], str]:
        """The arguments for the same opening in another process, which cannot detect its rank."""
        return self.options.with_rank(self.rank_config()), self.choices, self.job

    def rank_config(self) -> RankConfig:
        """Rank and world size of this process."""
        return detect(self.options.rank, self.options.world_size)

    @property
    def manifest(self) -> Manifest:
        """The manifest."""
        return self.opened.manifest

    @property
    def samples(self) -> int:
        """Number of selected samples."""
        return self.opened.samples

    @property
    def opened(self) -> OpenedDataset:
        """The manifest and the selected samples; the first use does the I/O."""
        if self._opened is None:
            if (manifest := self._found) is None:
                with watched(logger, self.waited_for):
                    manifest = self.settled() or self.found(self._listed())
            joined = self._join(manifest)
            with self.connections.for_requests() as connection:
                place = connection.settings.runtime_dir / "selections"
            SampleDecoder(self.options.decode, allow_pickle=self.options.allow_pickle).check(manifest.facts.fields)
            choices = (*kept(manifest, joined), *self.choices)
            self._opened = OpenedDataset(manifest, choose(manifest, choices, place), joined)
        return self._opened

    def prepare(self, batch_size: int, last_batch: LastBatch | None, *, plain: bool = False) -> RankStream:
        """Fixes the order for batches of `batch_size` samples on each rank.

        Args:
            batch_size: of one rank.
            last_batch: what becomes of an incomplete last batch; None: short on one rank, filled on several.
            plain: for a bare loop or torch's DataLoader; otherwise for a StreamingDataLoader.
        """
        rank_config = self.rank_config()
        last_batch = check_last_batch(last_batch, rank_config.world_size)
        options, data = self.options, self.opened
        spec = self._order(batch_size * rank_config.world_size)
        self._explain(spec, batch_size * rank_config.world_size, rank_config)
        with self.connections.for_requests() as connection:
            roots = tuple(connection.roots())
        recipe = SampleRecipe(
            manifest_path=data.manifest.path,
            spec=spec,
            rank=rank_config.rank,
            world_size=rank_config.world_size,
            global_batch=batch_size * rank_config.world_size,
            last_batch=last_batch,
            roots=roots,
            rules=self.rules(),
            selection=data.selection_file,
        )
        stream = self._streams.name(self._stream(), batch_size, plain)
        skip_rules = SkipRules(options.on_error, options.error_budget)
        free = options.free_parts
        identity = Identity(
            rank_config=rank_config, stream=stream, free_parts=free, skip_rules=skip_rules, peers=options.peers
        )
        if (growing := options.growing) is None:
            return Prepared(self.connections, recipe, data, identity)
        return GrowingPrepared(self.connections, recipe, data, identity, growing)

    def _stream(self) -> str:
        """The name of the samples and their shuffle, or what the user calls them."""
        chosen = "all" if self.opened.selection is None else self.opened.digest
        return self.options.stream or f"shuffle {shuffle_mode(self.options.shuffle)} of {chosen}"

    @property
    def user_code(self) -> tuple[object, ...]:
        """Transforms and decoders: they run in workers."""
        return self.options.transform, self.options.decode

    @property
    def refreshes(self) -> bool:
        """Whether objects are listed again before each epoch."""
        return self.options.on_change == "refresh"

    @property
    def compares(self) -> bool:
        """Whether torch.distributed knows other ranks of this dataset."""
        return gather_for(self.rank_config()) is not None

    def compared(self, prepare: Callable[[], Stream], place: str) -> Stream:
        """Prepares, with torch.distributed on all ranks together: they agree, or all of them raise.

        Args:
            prepare: the preparation of this rank.
            place: epoch and batch of its start.

        Raises:
            StreamerError: of the first rank that failed, on every rank.
            StateError: the ranks disagree.
        """
        return compared(self.rank_config(), prepare, place)

    def share(self, stream: PreparedStream) -> None:
        """With peers="auto", makes the engines of all ranks share their caches. Collective, after `compared`.

        Raises:
            StreamerError: an engine cannot share its cache; on every rank.
        """
        if self.options.peers != "auto" or not isinstance(stream, Prepared):
            return
        gather = gather_for(self.rank_config())
        if gather is not None:
            stream.share_caches(gather)
        elif not self._warned:
            self._warned = True
            logger.warning(
                'peers="auto" is off: torch.distributed is not initialised, or knows one rank. Call init_process_group '
                "before the first iter(); engines that run as services find each other without it ([peers] members, "
                "docs/scale-out.md)"
            )

    def refresh(self) -> bool:
        """Lists the objects again; collective. True: they have changed, and the new manifest is used from now on.

        All ranks change together. If they found different listings (objects are being written), all of them keep the
        current manifest until the next call.

        Raises:
            StreamerError: of the first rank whose listing failed, on every rank.
            ConfigError: the dataset is growing.
        """
        if self.options.growing is not None:
            raise ConfigError(
                "a growing dataset cannot change: the uses of its samples would not be level", field="growing"
            )
        digest, failure = "", None
        try:
            # A rank that has not opened the manifest takes part too: another one may have opened it for len().
            with watched(logger, self.waited_for):
                digest = self._digests() if self._opened is None else self._current()
        except StreamerError as error:
            failure = error
        digest = self._common(digest, failure)
        if digest in ("", self._digests()):
            return False
        manifest, _, annotations = digest.partition("+")
        self.shared.replace(manifest, annotations)
        self._opened = self._found = None
        logger.info("%s changed: %d samples now", self.options.place, self.samples)
        return True

    def _common(self, digest: str, failure: StreamerError | None) -> str:
        """The digest that all ranks have found; "" if they differ."""
        gather = gather_for(self.rank_config())
        if gather is None:
            if failure is not None:
                raise failure
            return digest
        agree(gather, {}, failure)
        found = set(gather(digest))
        if len(found) > 1:
            logger.warning("the ranks found %d different listings; this epoch keeps the last manifest", len(found))
            return ""
        return digest

    def look(self, epoch: int, index: int, rules: SampleRules | None = None) -> object:
        """Makes sample number `index` of the selection, from the cache or the store; negative: from the end.

        Args:
            epoch: of its random numbers.
            index: of the sample.
            rules: instead of the dataset's.

        Raises:
            IndexError: no such sample.
        """
        if not -self.samples <= index < self.samples:
            raise IndexError(f"sample {index} of {self.samples}")
        index %= self.samples
        chosen = self.opened.to_manifest(np.array([index], np.int64))
        with self._streamed() as content:
            maker = SampleMaker(self.manifest, content, rules or self.rules(), lambda _: index)
            return maker.make(epoch, maker.places(chosen)[0])

    def find(self, key: str) -> int:
        """The number in the selection of the first sample of that key.

        Raises:
            KeyError: there is none.
        """
        with self._streamed() as content:
            ordinal = find_key(self.manifest, self.opened.selection, content, key)
        return self.opened.number(ordinal)

    def close(self) -> None:
        """Closes the connections: readers get a ClosedError. The next use connects again. Idempotent."""
        self.connections.close()

    def found(self, folder: Path) -> Manifest:
        """Opens the manifest that the engine has answered with; if another process was faster, its result counts."""
        self._found = open_held(folder.parent / self.shared.settle_manifest(folder.name))
        return self._found

    def _digests(self) -> str:
        """Of the manifest and of the annotations in use."""
        return both_digests(self.manifest.digest, table_digest(self.opened.joined))

    def _current(self) -> str:
        """The same of what is there now."""
        path = self._listed()
        given = annotations_of(Manifest.open(path), self.options.annotations, self.options.urls)
        return both_digests(path.name, None if given is None else self._table(given).name)

    def _join(self, manifest: Manifest) -> JoinRules | None:
        """What is joined to samples."""
        given = annotations_of(manifest, self.options.annotations, self.options.urls)
        if given is None:
            return None
        folder = manifest.path.parent / self.shared.annotations
        if not self.shared.annotations or not folder.is_dir():
            with watched(logger, self.waited_for):
                table = self._table(given)
            folder = table.with_name(self.shared.settle_annotations(table.name))
        return JoinRules(folder, given.missing, given.on)

    def _table(self, annotations: Annotations) -> Path:
        """The folder of the current table."""
        with self.connections.for_requests() as connection:
            return find_table(connection, annotations, self._announcer)

    def annotation_classes(self) -> list[str]:
        """Names of the labels of the annotations."""
        joined = self.opened.joined
        return [] if joined is None else list(AnnotationTable.open(joined.table).head.classes)

    def _listed(self) -> Path:
        """The folder of the current manifest."""
        with self.connections.for_requests() as connection:
            return connection.manifest(*self.ask(Environment.read()))

    def ask(self, environment: Environment) -> ManifestAsk:
        """The request for the manifest."""
        rank_config = detect(self.options.rank, self.options.world_size, environment)
        self._announcer = Announcer(rank_config.rank)
        return ManifestAsk(self.options.manifest_request(rank_config), self._announcer, self._announcer.note)

    def waited_for(self) -> str:
        """What the opening waits for, in words; any thread. "": another process says it."""
        options, rank, worker = self.options, self.rank_config(), get_worker_info()
        if rank.rank % max(1, rank.world_size // rank.nodes) or (worker is not None and worker.id):
            return ""
        if not self.connections.connected:
            settings = options.client_settings(Environment.read(), self.job)
            # The client says itself that an external engine does not answer.
            return "" if settings.external else f"the engine of {settings.cache_dir} to start; log {log_of(settings)}"
        return (
            f"the engine to list and index {options.place}{self._announcer.so_far}; an index that would take "
            f"longer than index_limit={options.index_limit:g} s is refused"
        )

    def settled(self) -> Manifest | None:
        """The manifest that another process of this dataset has found; None: there is none, or its folder is gone."""
        if not self.shared.manifest:
            return None
        with self.connections.for_requests() as connection:
            path = connection.roots()[0] / "manifests" / self.shared.manifest
        self._found = open_held(path) if path.is_dir() else None
        return self._found

    def _order(self, global_batch: int) -> OrderSpec:
        options = self.options
        if shuffle_mode(options.shuffle) == "sample":
            check_sample_shuffle(self.manifest.samples, self.manifest.total_bytes)
        return OrderSpec.auto(
            self.opened.digest,
            self.opened.chunk_samples,
            global_batch,
            options.seed,
            options.shuffle,
            lanes=options.lanes,
            window=options.shuffle_window,
            cut=options.cut or "fixed",
        )

    def _explain(self, spec: OrderSpec, global_batch: int, rank_config: RankConfig) -> None:
        """Logs once, on the first rank, the quality and cost of the order; as a warning if nodes fetch chunks twice."""
        if rank_config.rank or spec.order_id in self._explained:
            return
        self._explained.add(spec.order_id)
        data = self.opened
        logger.info("%s", explain(spec, data.chunk_samples, global_batch, data.stored_bytes, rank_config.nodes))
        if shared := shared_lanes(spec, global_batch, rank_config.nodes):
            logger.warning("%s", shared)

    def rules(self) -> SampleRules:
        """The rules of making samples."""
        options = self.options
        return SampleRules(
            decode=options.decode,
            transform=as_transform(options.transform),
            allow_pickle=options.allow_pickle,
            seed=options.seed,
            joined=self.opened.joined,
        )

    @contextmanager
    def _streamed(self) -> Iterator[StreamedBytes]:
        manifest = self.manifest
        with self.connections.for_requests() as connection:
            yield StreamedBytes(lambda: connection, manifest)
