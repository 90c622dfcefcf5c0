"""Opens one dataset of a stream: engine, manifest, annotations, selection. The first use does the I/O.

`loader/dataset.py` and `loader/dataset_scan.py` make a `DatasetMember`; `loader/kinds/` and packs read by it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np

from streamer.annotations.join import JoinRules, annotations_of, pass_over, table_digest
from streamer.annotations.options import Annotations
from streamer.annotations.table import AnnotationTable
from streamer.batches.samples.maker import SampleMaker, SampleRules
from streamer.batches.samples.opened import MemberRecipe, OpenedDataset
from streamer.batches.scan import KEY
from streamer.batches.torch_arguments import get_worker_info
from streamer.batches.waiting import Announcer, watch_wait
from streamer.client.engine_client import EngineClient
from streamer.client.launcher import find_log
from streamer.client.pending_requests import ManifestAsk
from streamer.config import Environment, RankConfig
from streamer.decode.dispatch import SampleDecoder
from streamer.decode.transforms import make_transform
from streamer.errors import ConfigError, ManifestError, StreamerError, printable
from streamer.formats.registry import find_codecs
from streamer.loader.agreement import ParentRank, agree, detect, gather_for
from streamer.loader.epoch_cell import EpochCell
from streamer.loader.members.connections import EngineConnections
from streamer.loader.members.selections import Choice, Names, add_joined, choose, new_fields, select_by_annotations
from streamer.loader.members.single_reads import StreamedBytes, stream_bytes
from streamer.loader.options.dataset_options import DatasetOptions, table_request
from streamer.manifest.kept import remove_orphans
from streamer.manifest.reader_lock import open_held
from streamer.manifest.table import Manifest
from streamer.order.spec import shuffle_mode

if TYPE_CHECKING:
    from streamer.batches.samples.joins import OpenedJoin
    from streamer.loader.members.columns import SampleColumns
    from streamer.loader.members.joins import Join
    from streamer.loader.members.keys import KeyReader
    from streamer.manifest.condition import ColumnValues
    from streamer.manifest.selection import Selection

logger = logging.getLogger(__name__)
# Options, choices, job, joins, manifests of their right sides, and the fields with which the job has begun.
MemberSettings: TypeAlias = "tuple[DatasetOptions, tuple[Choice, ...], str, tuple[Join, ...], Names, Names]"


class DatasetMember:
    """Opens a dataset in one process. Used by one thread; after a fork the child connects again by itself.

    Args:
        options: Options of the user.
        choices: Selections, in order.
        job: Name of the job if the environment has none.
        shared: The next epoch and the manifest, shared by all processes of the dataset.
        joins: Datasets that its samples are joined to.
        parent: Rank of the process that has sent it to this one, or None if none has.

    Attributes:
        connections: Connections to the engine; members of a mix may share them.
        rights: The right side of each join.
    """

    def __init__(
        self,
        options: DatasetOptions,
        choices: tuple[Choice, ...],
        job: str,
        shared: EpochCell,
        joins: tuple[Join, ...] = (),
        *,
        parent: ParentRank | None = None,
    ) -> None:
        self.options = options
        self.parent = parent
        self.choices = choices
        self.job = job
        self.shared = shared
        self.joins = joins
        self.rights = [DatasetMember(join.other, join.choices, job, EpochCell()) for join in joins]
        # It is no method, because open sessions keep the connections, which must not keep this object.
        self.connections = EngineConnections(lambda: EngineClient(options.client_settings(Environment.read(), job)))
        self._found: Manifest | None = None
        self._opened: OpenedDataset | None = None
        # The fields of the first manifest, which the samples of a job keep.
        self._began: Names = ()
        self._announcer = Announcer(0)

    def __repr__(self) -> str:
        return f"DatasetMember({self.options.urls}, {self.connections!r}, opened={self._opened!r})"

    def part(self, choice: Choice | None, options: DatasetOptions, joins: tuple[Join, ...] = ()) -> DatasetMember:
        """Returns this dataset with other options, one more selection unless that is None, and further `joins`."""
        choices = self.choices if choice is None else (*self.choices, choice)
        return self.change(options, choices, (*self.joins, *joins))

    def change(self, options: DatasetOptions, choices: tuple[Choice, ...], joins: tuple[Join, ...]) -> DatasetMember:
        """Returns this dataset, changed: keeps manifests that are found, not the fields with which the job began."""
        known = EpochCell(manifest=self.shared.manifest, annotations=self.shared.annotations)
        changed = DatasetMember(options, choices, self.job, shared=known, joins=joins, parent=self.parent)
        return changed.take_over_rights(self._list_right_manifests())

    def settings(self) -> MemberSettings:
        """Returns what makes the same member in another process; see `from_settings`."""
        return self.options, self.choices, self.job, self.joins, self._list_right_manifests(), self._began

    @classmethod
    def from_settings(cls, settings: MemberSettings, shared: EpochCell, parent: ParentRank | None) -> Self:
        """Makes the member of another process, from its `settings`."""
        options, choices, job, joins, known, began = settings
        member = cls(options, choices, job, shared=shared, joins=joins, parent=parent)
        member._began = began
        return member.take_over_rights(known)

    def take_over_rights(self, manifests: Sequence[str]) -> Self:
        """Uses these manifests of the right sides, by their digests; returns itself."""
        for right, digest in zip(self.rights, manifests, strict=False):
            right.shared.replace(digest, "")
        return self

    def _list_right_manifests(self) -> tuple[str, ...]:
        return tuple(right.shared.manifest for right in self.rights)

    def rank_config(self) -> RankConfig:
        """Returns rank and world size of this process; raises ConfigError (see `detect`)."""
        return detect(self.options.rank, self.options.world_size, parent=self.parent)

    def open(self) -> OpenedDataset:
        """Returns the manifest and what belongs to it. The first call does the I/O, and may raise a StreamerError."""
        if self._opened is None:
            if (manifest := self._found) is None:
                with watch_wait(logger, self.describe_wait):
                    manifest = self.reopen_manifest() or self.adopt_manifest(self._list_manifest())
            self._began = self._began or tuple(spec.name for spec in manifest.facts.fields)
            if added := ", ".join(sorted(new_fields(manifest, self._began))):
                text = "%s has new fields (%s), left out until the job begins anew"
                logger.warning(text, self.options.place, printable(added))
            joined = self._join_annotations(manifest)
            place = self._fallback_dir
            if place.is_dir():
                try:
                    remove_orphans(place, {path.name for path in manifest.path.parent.iterdir()})
                except OSError as error:  # it takes space, which is no reason not to train
                    logger.warning("what was made of earlier manifests stays in %s: %s", place, error)
            decode = self.options.decode
            decoder = SampleDecoder(decode.rule, allow_pickle=decode.allow_pickle)
            decoder.check(manifest.facts.fields, find_codecs(manifest))
            joins = [self._open_join(number, manifest) for number in range(len(self.joins))]
            columns = partial(self._get_columns, manifest, joined, joins)
            own = select_by_annotations(manifest, joined)
            pairs = zip(self.joins, joins, strict=True)
            dropping = [(len(own) + join.after, opened) for join, opened in pairs if join.missing == "drop"]
            choices = add_joined([*own, *self.choices], dropping, lambda some: choose(manifest, some, place, columns))
            opened = OpenedDataset(manifest, choose(manifest, choices, place, columns), joined, joins)
            options = self.options
            options.packing.plan_rows(opened, place, shuffle=shuffle_mode(options.shuffle) != "none")
            opened.rows.measure(opened, options.balance)
            self._opened = opened
        return self._opened

    @property
    def user_code(self) -> tuple[object, ...]:
        """The transform and the decoders of the user, which run in workers."""
        return self.options.transform, self.options.decode.rule

    @property
    def refreshes(self) -> bool:
        """Whether objects are listed again before each epoch."""
        return self.options.manifest.on_change == "refresh"

    def refresh(self) -> bool:
        """Lists the objects again. Returns True if they have changed: the next use opens the new manifest. Collective.

        All ranks change together. If they found different listings (objects are being written), all of them keep the
        current manifest until the next call.

        Raises:
            StreamerError: the error of the first rank whose listing failed, on every rank.
            ConfigError: the dataset is growing.
        """
        self.options.growing.check_refresh()
        digest = ""
        failure = None
        try:
            # A rank that has not opened the manifest takes part too: another one may have opened it for len().
            with watch_wait(logger, self.describe_wait):
                digest = self._list_digests() if self._opened is None else self._find_digests()
        except StreamerError as error:
            failure = error
        gather = gather_for(self.rank_config())
        if gather is not None:
            agree(gather, {}, failure)
            found = set(gather(digest))
            if len(found) > 1:
                logger.warning("the ranks found %d different listings; this epoch keeps the last manifest", len(found))
                return False
        elif failure is not None:
            raise failure
        if digest in ("", self._list_digests()):
            return False
        own, *rights = digest.split(" ")
        manifest, _, annotations = own.partition("+")
        self.shared.replace(manifest, annotations)
        self.take_over_rights(rights)
        for member in (self, *self.rights):
            member._opened = member._found = None
        # The next epoch opens it: what does not fit it, such as the costs of rows, is then an error of all ranks.
        logger.info("%s changed: the next epoch has what is there now", self.options.place)
        return True

    def look(self, epoch: int, index: int, rules: SampleRules | None = None) -> object:
        """Makes one sample of the selection, from the cache or the store.

        Args:
            epoch: Epoch of its random numbers.
            index: Number of the sample in the selection, or a negative one from its end.
            rules: Rules of making samples, or None for those of the dataset.

        Raises:
            IndexError: there is no such sample. Errors of reading, decoders, the transform and of `SampleMaker` pass.
        """
        if not -self.open().samples <= index < self.open().samples:
            raise IndexError(f"sample {index} of {self.open().samples}")
        index %= self.open().samples
        chosen = self.open().to_manifest(np.array([index], np.int64))
        with self.stream_bytes(self.open().manifest) as content, ExitStack() as held:
            joins = [
                join.reader(held.enter_context(right.stream_bytes(join.manifest)))
                for join, right in zip(self.open().joins, self.rights, strict=True)
            ]
            maker = SampleMaker(
                self.open().manifest, content, rules=rules or self.rules(), number=lambda _: index, joins=joins
            )
            return maker.make(maker.places(chosen, runs=(epoch,))[0])

    def find(self, key: str, *, reads: bool = True) -> int:
        """Returns the number in the selection of the first sample with a key.

        Args:
            key: "__key__" of the sample.
            reads: Whether the samples are read if the keys are only there.

        Raises:
            KeyError: no sample has the key.
            ConfigError: the samples would have to be read. See `KeyReader.batches`, too.
        """
        from streamer.loader.members.keys import find_key

        keys = self.key_reader(self.open().manifest, self.open().selection, KEY)
        return self.open().number(find_key(keys, key, reads=reads))

    def close(self) -> None:
        """Closes the connections: readers get a ClosedError. The next use connects again. Idempotent."""
        self.connections.close()
        for right in self.rights:
            right.close()

    def adopt_manifest(self, folder: Path) -> Manifest:
        """Opens the manifest that the engine or another process has named; errors as of `open_held`."""
        path = folder.parent / self.shared.settle_manifest(folder.name)
        try:
            self._found = open_held(path)
        except ManifestError as error:
            # A cleaner of temporary files may have removed it since the engine has answered.
            logger.info("%s; the engine is asked for it again", error)
            if self._list_manifest() != path:
                raise
            self._found = open_held(path)
        return self._found

    def _list_digests(self) -> str:
        """Returns the digests of the manifest and the annotations in use, and of the manifests of the right sides."""
        own = _add_digest(self.open().manifest.digest, table_digest(self.open().joined))
        return " ".join([own, *(right.open().manifest.digest for right in self.rights)])

    def _find_digests(self) -> str:
        """Returns what `_list_digests` does, of what the store has now; the engine lists the objects."""
        path = self._list_manifest()
        given = annotations_of(Manifest.open(path), self.options.annotations, self.options.urls)
        table = None if given is None else self._find_table(given)
        own = _add_digest(path.name, None if table is None else table.name)
        return " ".join([own, *(right._list_manifest().name for right in self.rights)])

    def _join_annotations(self, manifest: Manifest) -> JoinRules | None:
        """Returns the rules by which annotations are joined to samples, or None if none are."""
        given = annotations_of(manifest, self.options.annotations, self.options.urls)
        if given is None:
            return None
        folder = manifest.path.parent / self.shared.annotations
        if not self.shared.annotations or not folder.is_dir():
            with watch_wait(logger, self.describe_wait):
                if (table := self._find_table(given)) is None:
                    return None
            folder = table.with_name(self.shared.settle_annotations(table.name))
        return JoinRules.make(folder, given, manifest)

    def _find_table(self, annotations: Annotations) -> Path | None:
        """Returns the folder of the table, or None if a file that lies beside the samples does not name them."""
        try:
            with self.connections.for_requests() as connection:
                return connection.manifest(table_request(annotations), self._announcer)
        except ConfigError as error:
            pass_over(error, self.options.annotations, annotations)
            return None

    @contextmanager
    def _columns(self, manifest: Manifest, joined: JoinRules | None) -> Iterator[SampleColumns]:
        """Gives the columns of the samples, for conditions, and logs a long wait."""
        from streamer.loader.members.columns import SampleColumns

        request = self.options.manifest_request(self.rank_config())
        fallback_dir = self._fallback_dir
        with watch_wait(logger, lambda: "columns to be read"):
            yield SampleColumns(manifest, joined, fallback_dir, connections=self.connections, request=request)

    def find_columns(self, names: Sequence[str]) -> list[ColumnValues | None]:
        """Returns columns of this dataset without annotations, None for each that is not found; see `SampleColumns`."""
        with self._columns(self.open().manifest, None) as columns:
            return columns.find(names)

    def _get_columns(
        self, manifest: Manifest, joined: JoinRules | None, joins: Sequence[OpenedJoin], names: Sequence[str]
    ) -> list[ColumnValues]:
        finds = [right.find_columns for right in self.rights]
        with self._columns(manifest, joined) as columns:
            return columns.get(names, list(zip(joins, finds, strict=True)))

    def annotation_classes(self) -> list[str]:
        """Returns the names of the labels of the annotations, by number, or none; raises errors of `open`."""
        joined = self.open().joined
        return [] if joined is None else list(AnnotationTable.open(joined.table).head.classes)

    def _list_manifest(self) -> Path:
        """Asks the engine for the current manifest, and returns its folder."""
        with self.connections.for_requests() as connection:
            return connection.manifest(*self.ask(Environment.read()))

    def ask(self, environment: Environment) -> ManifestAsk:
        """Returns the request for the manifest, with what reports its progress; raises ConfigError."""
        rank_config = detect(self.options.rank, self.options.world_size, environment, self.parent)
        self._announcer = Announcer(rank_config.rank)
        return ManifestAsk(self.options.manifest_request(rank_config), self._announcer, self._announcer.note)

    def describe_wait(self) -> str:
        """Returns what the opening waits for, or "" if others log it. Raises ConfigError. Any thread may call it."""
        options = self.options
        rank = self.rank_config()
        worker = get_worker_info()
        if rank.rank % max(1, rank.world_size // rank.nodes) or (worker is not None and worker.id):
            return ""
        if not self.connections.connected:
            settings = options.client_settings(Environment.read(), self.job)
            # The client says itself that an external engine does not answer.
            return "" if settings.external else f"the engine of {settings.cache_dir} to start; log {find_log(settings)}"
        return (
            f"the engine to list and index {options.place}{self._announcer.so_far}; an index that would take "
            f"longer than Index(max_seconds={options.manifest.max_seconds:g}) is refused"
        )

    def reopen_manifest(self) -> Manifest | None:
        """Returns the manifest that another process has found, or None. Raises ManifestError, ConfigError."""
        if not self.shared.manifest:
            return None
        with self.connections.for_requests() as connection:
            path = connection.roots()[0] / "manifests" / self.shared.manifest
        self._found = open_held(path) if path.is_dir() else None
        return self._found

    def rules(self, name: str = "", source_key: str | None = None) -> SampleRules:
        """Returns the rules of making samples; errors as of `make_transform`.

        Args:
            name: Name of the dataset in a mix, or "".
            source_key: Field of a sample that gets that name, or None if none does.
        """
        options = self.options
        return SampleRules(
            decode=options.decode.rule,
            transform=make_transform(options.transform),
            allow_pickle=options.decode.allow_pickle,
            seed=options.seed,
            member=name,
            source_key=source_key,
            joined=self.open().joined,
            leave_out=new_fields(self.open().manifest, self._began),
        )

    def recipe(self, rules: SampleRules) -> MemberRecipe:
        """Returns all that a worker process needs to make samples by these rules."""
        data = self.open()
        return MemberRecipe(
            manifest_path=data.manifest.path,
            selection=data.selection_file,
            rules=rules,
            rows=data.rows.recipe,
            balance=self.options.balance,
            joins=tuple(join.recipe for join in data.joins),
        )

    def stream_bytes(self, manifest: Manifest) -> AbstractContextManager[StreamedBytes]:
        """Opens the bytes of a manifest with the credentials of this dataset."""
        return stream_bytes(self.connections, manifest)

    @property
    def _fallback_dir(self) -> Path:
        """Folder for tables, if the folder of the manifests is read-only for this process."""
        with self.connections.for_requests() as connection:
            return connection.fallback_dir

    def _open_join(self, number: int, manifest: Manifest) -> OpenedJoin:
        """Opens a join, and makes its table if it is not there. The right side may get finer chunks before."""
        # Imported here, since a dataset without joins does not need it.
        from streamer.loader.members.joins import JoinMaker, finer_chunks

        join = self.joins[number]
        right = self.rights[number]
        if right.options.manifest.url_text is None and (chunk_bytes := finer_chunks(manifest, right.open().manifest)):
            right.options = replace(right.options, chunk_bytes=chunk_bytes)
            right.shared.replace("", "")
            right._opened = right._found = None
        left = self.key_reader(manifest, None, join.on[0])
        return JoinMaker(join, left, right.key_reader(right.open().manifest, right.open().selection, join.on[1])).open()

    def key_reader(self, manifest: Manifest, selection: Selection | None, on: str) -> KeyReader:
        """Returns a reader of the keys `on`; it reads no other field where the format has columns. See `KeyReader`."""
        from streamer.loader.members.columns import find_field, narrow_manifest
        from streamer.loader.members.keys import KeyReader

        read_from = manifest
        if field := find_field(manifest, on):
            request = self.options.manifest_request(self.rank_config())
            with self.connections.for_requests() as connection:
                read_from = narrow_manifest(manifest, [field], connection, request)
        place = self._fallback_dir
        return KeyReader(read_from, self.connections, on, fallback_dir=place, whole=manifest, selection=selection)


def _add_digest(manifest: str, table: str | None) -> str:
    """Returns one text for a manifest and a table of annotations; that of the manifest alone if there is no table."""
    return manifest if table is None else f"{manifest}+{table}"
