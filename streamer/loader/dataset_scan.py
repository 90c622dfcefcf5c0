"""Reads samples of a dataset by their numbers, each once and in any order, in this process or in tasks.

Packs (`shards/`, by `dataset.py`) and `measure.py` use it. A `DatasetScan` has opened the dataset in the process that
asks. Its recipe travels to tasks, which open the dataset again, from what lies on their machine or from the urls, and
read their part of the samples through the engine there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import cloudpickle  # type: ignore[import-untyped]
import msgspec

from streamer.annotations.join import table_digest
from streamer.annotations.table import AnnotationTable
from streamer.batches.rows.balance import NO_BALANCE
from streamer.batches.rows.options import NO_PACKING
from streamer.batches.samples.join_cost import describe_join
from streamer.batches.samples.maker import Integers, SampleLocation, SampleMaker, Transform
from streamer.batches.samples.opened import MemberRecipe, OpenedDataset
from streamer.batches.samples.sent_code import send_main_by_value
from streamer.decode.rule import Decode, StoredFields, StoredSample
from streamer.errors import ConfigError, Discreet, ManifestError
from streamer.loader.epoch_cell import EpochCell
from streamer.loader.members.member import DatasetMember, MemberSettings
from streamer.loader.options.arguments import Order
from streamer.loader.options.dataset_options import DatasetOptions
from streamer.loader.scan_reader import Found, SampleScan, count_row_bytes
from streamer.manifest.table import Manifest
from streamer.order.growing import NOT_GROWING

logger = logging.getLogger(__name__)


class _Sent(NamedTuple):
    """Holds what a task needs to open the dataset again.

    Attributes:
        settings: Settings of the member, with which it is opened from its urls.
        annotations: Digest of the table of annotations, or "" without annotations.
        recipe: Recipe by which it is opened from the files of this machine, if they are there.
        identity: Digests that what is opened must have; see `_identify`.
        purpose: Name of the reader in statistics and logs.
    """

    settings: MemberSettings
    annotations: str
    recipe: MemberRecipe
    identity: tuple[str, ...]
    purpose: str


class DatasetScan:
    """Reads samples of a dataset for a pack or for `measure_lengths`. The first use opens the dataset in this process.

    Args:
        member: Dataset as the user has it.
        counter: Transform in place of the dataset's, whose results `make` yields, or None for a pack.

    Raises:
        ConfigError: it is for a pack, and the dataset has `packing=`, `growing=`, `on_error="skip"` or a `world_size`
            above 1.
    """

    def __init__(self, member: DatasetMember, counter: Transform | None = None) -> None:
        self._purpose = "pack" if counter is None else "measure"
        if counter is None:
            _refuse(member.options)
        # The options of a training are left out. Fields are as they are stored, unless the dataset transforms them.
        options = replace(
            member.options,
            transform=member.options.transform if counter is None else counter,
            packing=NO_PACKING,
            balance=NO_BALANCE,
            growing=NOT_GROWING,
            order=Order(last_batch="short"),
            share_caches="off",
            rank=0,
            world_size=1,
        )
        joins = member.joins
        if options.transform is None:
            stored = Decode(StoredFields())
            options = replace(options, decode=stored)
            joins = tuple(replace(join, other=replace(join.other, decode=stored)) for join in joins)
        self._member = member.change(options, member.choices, joins)

    def __repr__(self) -> str:
        return f"DatasetScan({self._member!r})"

    @property
    def manifest(self) -> Manifest:
        """Manifest of the dataset; the first use opens it."""
        return self._member.open().manifest

    @property
    def ordinals(self) -> Integers | None:
        """Ordinals of the selected samples in the manifest, ascending, or None for all."""
        selection = self._member.open().selection
        return None if selection is None else selection.ordinals

    @property
    def urls(self) -> tuple[str, ...]:
        """Urls of the dataset, and of those that it is joined to."""
        rights = [url for right in self._member.rights for url in right.options.urls]
        return (*self._member.options.urls, *rights)

    @property
    def storage_options(self) -> dict[str, object]:
        """Storage options of the dataset."""
        return dict(self._member.options.storage_options)

    @property
    def field_kinds(self) -> dict[str, str]:
        """Kinds of the fields that all samples are known to have, by name.

        Fields of joined datasets are not among them. With a transform it is empty.

        Raises:
            ConfigError, ManifestError, ManifestCorruptError: see `AnnotationTable.open`.
        """
        opened = self._member.open()
        if self.transform is not None:
            return {}
        specs = list(opened.manifest.facts.fields)
        if opened.joined is not None:
            specs += AnnotationTable.open(opened.joined.table).head.fields
        return {spec.name: spec.kind for spec in specs}

    @property
    def transform(self) -> Transform | None:
        """The counter or the transform of the dataset, or None if its fields are read as they are stored."""
        return self._member.options.transform

    def describe(self) -> dict[str, object]:
        """Describes what is read besides the manifest, as JSON values, the same in every process."""
        opened = self._member.open()
        found: dict[str, object] = {}
        if opened.selection is not None:
            found["selection"] = opened.selection.digest
        if opened.joined is not None:
            found |= opened.joined.describe()
        if self._member.joins:
            found["joins"] = [
                [
                    right.open().digest,
                    *join.on,
                    join.columns and [*map(list, join.columns)],
                    # Shards are identified by the words of the first release.
                    "null" if join.missing == "none" else join.missing,
                    "one" if join.validate == "many_to_one" else "many",
                ]
                for join, right in zip(self._member.joins, self._member.rights, strict=True)
            ]
        return found

    def count_row_bytes(self, ordinals: Integers) -> Integers:
        """Returns about how many bytes each of these n samples gets from the joins: int64, (n,)."""
        return count_row_bytes(self._member.open(), ordinals)

    def describe_costs(self) -> list[str]:
        """Returns a line for each join: what is fetched of its right side, and how often."""
        opened = self._member.open()
        with self._member.connections.for_requests() as connection:
            return [describe_join(join, opened, connection.welcome.limit_bytes) for join in opened.joins]

    def recipe(self) -> ScanRecipe:
        """Returns what a task needs to read samples. It holds storage options, and so may be secret."""
        member = self._member
        opened = member.open()
        send_main_by_value()
        sent = _Sent(
            settings=member.settings(),
            annotations=table_digest(opened.joined) or "",
            recipe=member.recipe(member.rules()),
            identity=_identify(opened),
            purpose=self._purpose,
        )
        return ScanRecipe(cloudpickle.dumps(sent))

    def make(self, ordinals: Integers, read: Callable[[SampleMaker, SampleLocation], Found]) -> Generator[Found]:
        """Yields what `read` returns for each sample; reads them in this process.

        Args:
            ordinals: Numbers of the samples in the manifest, in the order in which they are read.
            read: Reads one sample with a maker.

        Raises:
            StreamerError: the dataset, or one of the samples, cannot be read.
            Exception: what else `read` raises.
        """
        member = self._member
        return SampleScan(member, member.open(), member.rules(), self._purpose).make(ordinals, read)

    def close(self) -> None:
        """Closes the connections; idempotent."""
        self._member.close()


class ScanRecipe(Discreet, msgspec.Struct, frozen=True):
    """Holds all that a task needs to read samples of a dataset; can be pickled.

    Attributes:
        options: A pickled `_Sent`. It holds storage options, so it is not shown.
    """

    options: bytes

    def read(self, ordinals: Integers) -> Generator[StoredSample]:
        """Opens the dataset in this process, and yields its samples in the order of `ordinals`, those of the manifest.

        Raises:
            ManifestError: this process finds other data than the one that has made the recipe.
            StreamerError: the dataset cannot be opened; else as `SampleScan.read`.
            FileNotFoundError: see `SampleScan.read`.
        """
        with self._open() as scan:
            yield from scan.read(ordinals)

    def make(self, ordinals: Integers, read: Callable[[SampleMaker, SampleLocation], Found]) -> Generator[Found]:
        """Opens the dataset in this process; see `DatasetScan.make`."""
        with self._open() as scan:
            yield from scan.make(ordinals, read)

    @contextmanager
    def _open(self) -> Iterator[SampleScan]:
        """Opens the dataset while the block runs.

        Raises:
            ManifestError: this process finds other data than the one that has made the recipe.
            StreamerError: the dataset cannot be opened.
        """
        sent: _Sent = cloudpickle.loads(self.options)
        options, _, job, joins, rights, began = sent.settings
        known = EpochCell(manifest=sent.recipe.manifest_path.name, annotations=sent.annotations)
        # The samples are named by their ordinals, so that the selections need not be made again.
        member = DatasetMember.from_settings((options, (), job, joins, rights, began), known, None)
        try:
            recipe = msgspec.structs.replace(sent.recipe, selection=None)
            with member.connections.for_requests() as connection:
                is_own = recipe.manifest_path.parent == connection.roots()[0] / "manifests"
            if is_own and all(path.exists() for path in recipe.paths):
                opened = recipe.open()
                opened.joined = recipe.rules.joined
                rules = recipe.rules
            else:
                # The engine of this machine has not opened it before: listing the urls takes longer.
                opened = member.open()
                rules = member.rules()
            _check_same_data(member.options.place, found=_identify(opened), expected=sent.identity)
            yield SampleScan(member, opened, rules, sent.purpose)
        finally:
            member.close()


def _check_same_data(place: str, *, found: Sequence[str], expected: Sequence[str]) -> None:
    """Makes sure that a task has opened the same data as the process that has sent it.

    Args:
        place: Url of the dataset, for the error.
        found: Digests of what the task has opened; see `_identify`.
        expected: Digests of what the sending process has opened.

    Raises:
        ManifestError: the digests differ.
    """
    if tuple(found) != tuple(expected):
        raise ManifestError(
            f"a task has found manifest {' '.join(found)} below {place}, the process that has begun "
            f"{' '.join(expected)}: the objects change, or other ones are there; give a manifest= that all machines "
            "can read"
        )


def _identify(opened: OpenedDataset) -> tuple[str, ...]:
    """Returns the digests of the manifest, of the annotations if there are any, and of each right side of a join."""
    joins = (join.table.head for join in opened.joins)
    return (
        opened.manifest.digest,
        *([opened.joined.digest] if opened.joined is not None else []),
        *(head.right for head in joins),
    )


def _refuse(options: DatasetOptions) -> None:
    """Refuses to pack datasets whose samples are not those that are stored, each once.

    Raises:
        ConfigError: the dataset has such an option; the message says what to write instead.
    """
    for name, refused in (("packing", not options.packing.joins), ("growing", not options.growing.joins)):
        if refused:
            raise ConfigError(
                f"pack() of a dataset with {name}=: its rows or uses are not samples that could be written; leave it "
                f"out, and give {name}= to the dataset that reads the shards",
                field=name,
            )
    if options.skip_rules.on_error == "skip":
        raise ConfigError(
            "pack() of a dataset with on_error='skip': another sample would be written in the place of a damaged one. "
            "Leave it out: the pack ends with the name of that sample, which select() leaves out",
            field="on_error",
        )
    if (options.world_size or 1) > 1:
        raise ConfigError(
            f"pack() of a dataset with world_size={options.world_size}: all samples are written, not those of a rank; "
            "leave rank= and world_size= out, and give on= for several processes",
            field="world_size",
        )
