"""Opens the datasets of a stream in one process: their manifests, selections, rows and joins.

One dataset is the only member of its stream, and a mix has several. The loader opens datasets
(`loader/members/member.py`) and sends recipes of them to workers, which open them again (`batches/samples/recipe.py`).
The commands `plan`, `explain` and `audit` (`streamer/tools`) open datasets without a loader.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.annotations.join import JoinRules
from streamer.batches.rows.balance import NO_BALANCE, AnyBalance
from streamer.batches.rows.order_rows import NO_ROWS, OrderRows, RowRecipe, SampleRows, Words
from streamer.batches.samples.maker import SampleRules
from streamer.config import format_bytes
from streamer.formats.registry import restore_format
from streamer.manifest.layout import selection_name
from streamer.manifest.reader_lock import open_held
from streamer.manifest.table import Manifest
from streamer.order.protocol import SampleOrder

if TYPE_CHECKING:
    from streamer.batches.rows.costs import DocumentCosts
    from streamer.batches.rows.options import Estimate, RowOption
    from streamer.batches.rows.planned import PlannedRows
    from streamer.batches.rows.table import Documents
    from streamer.batches.samples.joins import JoinRecipe, OpenedJoin
    from streamer.formats.base import DecodeCost
    from streamer.manifest.selection import Selection
    from streamer.order.growing import Cohorts
    from streamer.order.spec import OrderSpec
    from streamer.wire.schedule import EpochSchedule

Integers = npt.NDArray[np.int64]

# Number of samples that `exact_bytes` locates at once: 50 MB.
_BLOCK = 1 << 20


class OpenedDataset:
    """One dataset, opened: the selected samples of a manifest, or all of them, numbered through from 0.

    Args:
        manifest: manifest of the dataset.
        selection: the selected samples, or None for all.
        joined: options of the annotations that samples are joined to, or None.
        joins: joins to other datasets.

    Attributes:
        rows: what an order counts: the samples, or the rows that they are packed into.
        lengths: lengths of the samples of the manifest, or None if they are not needed to make batches level.
        joins: joins to other datasets.
    """

    rows: OrderRows = SampleRows()
    lengths: DocumentCosts | None = None

    def __init__(
        self,
        manifest: Manifest,
        selection: Selection | None,
        joined: JoinRules | None = None,
        joins: Sequence[OpenedJoin] = (),
    ) -> None:
        self.manifest = manifest
        self.selection = selection
        self.joined = joined
        self.joins = tuple(joins)

    @classmethod
    def open(
        cls,
        path: Path,
        selection_file: tuple[str, Path] | None,
        rows: RowRecipe = NO_ROWS,
        joins: Sequence[JoinRecipe] = (),
    ) -> Self:
        """Opens a dataset from files of this machine.

        Args:
            path: Folder of the manifest.
            selection_file: Digest of the selection and the folder of its file, or None for all samples.
            rows: Recipe of what an order counts.
            joins: Recipes of the joins.

        Raises:
            ManifestError: a manifest, the selection or a table of a join is missing.
            ManifestCorruptError: one of the files is damaged.
            ConfigError: samples are packed, and the file with their lengths has changed.
        """
        manifest = open_held(path)
        selection = None
        if selection_file is not None:
            # Imported here: it imports the manifest's builder and asyncio, 40 ms of a worker's start (2026-11-20).
            from streamer.manifest.selection import Selection

            selection = Selection.open(manifest, *selection_file)
        opened = cls(manifest, selection, joins=[join.open() for join in joins])
        opened.rows = rows.open(opened)
        return opened

    def plan_rows(self, packing: RowOption, fallback_dir: Path, *, shuffle: bool) -> PlannedRows:
        """Plans the rows of the samples, and returns them. The order counts these rows from then on (`rows`).

        The table of rows is made and written to a file, if no process has made it before.

        Args:
            packing: how samples are packed.
            fallback_dir: Folder for files if the manifest's folder is read-only for this process.
            shuffle: whether the rows are shuffled.

        Raises:
            ConfigError: nothing says how many tokens a sample has, the file of lengths is not one of this dataset, a
                sample is longer than a row and must not be, or all are left out.
            ManifestError: no sample has a token, or the table cannot be written.
            OSError: a lock file cannot be written.
        """
        # Imported here and below, since samples without packing need none of it (14 ms of imports, 2026-11-26).
        from streamer.batches.rows.planned import PlannedRows, RowsRecipe
        from streamer.batches.rows.table import find_table
        from streamer.manifest.kept import KeptFiles

        documents, costs = self.documents(packing, shuffle=shuffle)
        spec = packing.spec(costs.identity)
        path, table = find_table(KeptFiles(self.manifest.path.parent, fallback_dir), spec, documents)
        recipe = RowsRecipe(packing=packing, spec=spec, shuffle=shuffle, table=path)
        self.rows = planned = PlannedRows(recipe, documents, table)
        return planned

    def measure(self, lengths: str | Estimate | None) -> None:
        """Opens the lengths of samples that are not packed, for batches that are made level. Sets `lengths`.

        Args:
            lengths: Path of an .npy file, an estimate, or None if the format knows them.

        Raises:
            ConfigError: nothing says how long a sample is, or the file is not one of this dataset.
        """
        from streamer.batches.rows.costs import DocumentCosts

        self.lengths = DocumentCosts(self.manifest, lengths)

    def costs(self, numbers: Integers, seed: int, epoch: int, coefficients: tuple[int, int]) -> Integers:
        """Returns the cost of some rows, or samples, (N,); see `OrderRows.costs_of`."""
        return self.rows.costs_of(self, numbers, seed=seed, epoch=epoch, coefficients=coefficients)

    def documents(self, packing: RowOption, *, shuffle: bool) -> tuple[Documents, DocumentCosts]:
        """Returns the samples as documents, and how many tokens each has; errors as of `measure`."""
        from streamer.batches.rows.costs import DocumentCosts
        from streamer.batches.rows.table import Documents

        costs = DocumentCosts(self.manifest, packing.lengths, tuple(packing.fields or ()))
        documents = Documents(
            manifest_digest=self.manifest.digest,
            digest=self.digest,
            chunk_samples=self.chunk_samples,
            chunk_first=self.chunk_first,
            costs=lambda numbers: costs.count_tokens(self.to_manifest(numbers)),
            shuffle=shuffle,
            reopen=partial(_documents_of, self.manifest.path, self.selection_file, packing, shuffle=shuffle),
        )
        return documents, costs

    def __repr__(self) -> str:
        return f"OpenedDataset({self.manifest!r}, {self.selection!r})"

    @property
    def selection_file(self) -> tuple[str, Path] | None:
        """The digest of the selection, and the folder of its file, or None if all samples are selected."""
        return None if self.selection is None else (self.selection.digest, self.selection.path.parent)

    @cached_property
    def decode_cost(self) -> DecodeCost | None:
        """What the manifest says of the cost of decoding the samples, or None if it says nothing."""
        return restore_format(self.manifest).find_decode_cost(self.manifest)

    @property
    def samples(self) -> int:
        """Number of selected samples."""
        return self.manifest.samples if self.selection is None else self.selection.samples

    @property
    def digest(self) -> str:
        """Digest that identifies the selected samples."""
        return self.manifest.digest if self.selection is None else self.selection.digest

    @property
    def chunk_samples(self) -> Integers:
        """Number of selected samples of each of the M chunks: (M,)."""
        return self.manifest.chunk_samples if self.selection is None else self.selection.chunk_samples

    @cached_property
    def chunk_first(self) -> Integers:
        """Number of selected samples before each chunk, and of all: (M+1,)."""
        return self.manifest.chunk_first if self.selection is None else np.append(0, np.cumsum(self.chunk_samples))

    @property
    def order_samples(self) -> Integers:
        """Number of selected samples of each chunk, (M,), or of rows of each set of chunks, (S,)."""
        return self.rows.counts_of(self)

    @property
    def order_first(self) -> Integers:
        """Prefix sum of `order_samples`, from 0 on: (M+1,) or (S+1,)."""
        return self.rows.first_of(self)

    @property
    def order_words(self) -> Words:
        """The first 8 bytes of the key of each chunk, (M,), or of the first chunk of each set, (S,)."""
        return self.rows.words_of(self)

    def cohorts(self, spec: OrderSpec) -> Cohorts:
        """Returns the cohorts in which a growing dataset admits its samples, or rows.

        Raises:
            ConfigError: the errors of `Cohorts`.
        """
        # Imported here, since other datasets do not load it.
        from streamer.order.growing import Cohorts

        return Cohorts(spec, self.order_samples, self.rows.sets)

    @property
    def stored_bytes(self) -> int:
        """Number of stored bytes of the selected samples, as their share of the bytes of all samples."""
        return int(self.manifest.chunk_local_bytes.sum() * (self.samples / max(1, self.manifest.samples)))

    @cached_property
    def exact_bytes(self) -> int:
        """Exact number of stored bytes of the selected samples, in 0.1 us for each.

        Of a recoded dataset it is `stored_bytes`, since its manifest does not have the samples' offsets.
        """
        if self.selection is None or self.manifest.recoded:
            return self.stored_bytes
        blocks = (self.selection.ordinals[first : first + _BLOCK] for first in range(0, self.samples, _BLOCK))
        located = (self.manifest.locate(block) for block in blocks)
        return sum(int((stop - start).sum()) for _, start, stop in located)

    def number(self, ordinal: int) -> int:
        """Returns the number in the selection, as `dataset[i]` takes it, of an ordinal in the manifest."""
        return ordinal if self.selection is None else self.selection.number(ordinal)

    def to_manifest(self, ordinals: Integers) -> Integers:
        """Returns the ordinals in the manifest of ordinals in the selection."""
        return ordinals if self.selection is None else self.selection.to_base(ordinals)


class MemberRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker process needs to make the samples of one member.

    Attributes:
        manifest_path: folder of the manifest.
        selection: digest of the selection and the folder of its file, or None if all samples are selected.
        rules: rules of making samples.
        rows: recipe of what an order counts: samples, or rows that they are packed into.
        balance: how batches are made level.
        joins: recipes of the joins to other datasets.
    """

    manifest_path: Path
    selection: tuple[str, Path] | None
    rules: SampleRules
    rows: RowRecipe = NO_ROWS
    balance: AnyBalance = NO_BALANCE
    joins: tuple[JoinRecipe, ...] = ()

    def open(self) -> OpenedDataset:
        """Opens the dataset in this process, and its lengths if batches are made level.

        Raises:
            ManifestError: a file is missing or damaged.
            ConfigError: the file with the lengths of samples has changed.
        """
        opened = OpenedDataset.open(self.manifest_path, self.selection, self.rows, self.joins)
        opened.rows.measure(opened, self.balance)
        return opened

    @property
    def paths(self) -> list[Path]:
        """Files and folders that `open` reads, and that of the annotations with which samples are made.

        The user's files of lengths are not among them.
        """
        found = [self.manifest_path]
        if self.selection is not None:
            digest, folder = self.selection
            found.append(folder / selection_name(self.manifest_path.name, digest))
        found += self.rows.paths
        if self.rules.joined is not None:
            found.append(self.rules.joined.table)
        return found + [path for join in self.joins for path in (join.table, join.part)]


class Members:
    """The opened datasets of a stream, and the numbers of their chunks in the session with the engine.

    The chunks of each member are numbered after those of the members before it. The chunks of the right sides of joins
    follow, in the order of the members and of their joins.

    Attributes:
        each: the members in their order.
    """

    def __init__(self, members: Sequence[OpenedDataset]) -> None:
        self.each = list(members)

    def __repr__(self) -> str:
        return f"Members({self.each})"

    @property
    def samples(self) -> list[int]:
        """Number of selected samples of each member."""
        return [member.samples for member in self.each]

    @property
    def order_samples(self) -> list[int]:
        """Number of what an order counts of each member: selected samples, or rows."""
        return [int(member.order_first[-1]) for member in self.each]

    def map_to_chunks(self, order: SampleOrder) -> SampleOrder:
        """Returns an order that says which chunks of the members it needs, from one that counts samples or rows."""
        rows = [member.rows for member in self.each]
        return rows[0].map_to_chunks(order, rows, self.first_chunks)

    @property
    def left_out(self) -> int:
        """Number of tokens that `overflow` leaves out of an epoch. For a mix, out of one pass over each member."""
        return sum(member.rows.left_out for member in self.each)

    @cached_property
    def first_chunks(self) -> list[int]:
        """Number of the first chunk of each member, and after the last: (members + 1,)."""
        counts = [member.manifest.chunks for member in self.each]
        return [0, *np.cumsum(counts).tolist()]

    @cached_property
    def joins(self) -> list[tuple[int, OpenedJoin]]:
        """The joins, each with the number of its member."""
        return [(number, join) for number, member in enumerate(self.each) for join in member.joins]

    @cached_property
    def first_chunks_of_parts(self) -> list[int]:
        """Number of the first chunk of each member, then of each join, and after the last: (parts + 1,)."""
        counts = [join.manifest.chunks for _, join in self.joins]
        return [*self.first_chunks, *(self.first_chunks[-1] + np.cumsum(counts)).tolist()]

    @cached_property
    def chunk_bytes(self) -> Integers:
        """Number of bytes of each chunk in the cache, over all members and joins."""
        return np.concatenate([manifest.chunk_local_bytes for manifest in self.manifests])

    @property
    def manifests(self) -> list[Manifest]:
        """The manifests of the members, then of the joins."""
        return [*(member.manifest for member in self.each), *(join.manifest for _, join in self.joins)]

    @property
    def digest(self) -> str:
        """Digest of the manifests of all members, the same on every rank."""
        digests = [member.manifest.digest for member in self.each]
        return blake2b(" ".join(digests).encode(), digest_size=16).hexdigest()

    def facts_of_joins(self) -> dict[str, str]:
        """Returns what else must be equal on all ranks: the digests of the joins, or an empty dict without joins."""
        return {"joins": " ".join(join.table.digest for _, join in self.joins)} if self.joins else {}

    def part_values(self, values: Sequence[float]) -> tuple[float, ...]:
        """Returns the values of the members, then of the joins, for the engine's choice of what to keep.

        The value of a join is that of its member, times the mean uses of a chunk of its right side.

        Args:
            values: value of each member: its passes in an epoch.
        """
        return (*values, *(values[number] * join.mean_uses for number, join in self.joins))

    def cache_full_hint(self, opened: Sequence[int]) -> str:
        """Returns an advice for a cache that is too small for the open chunks, or "" if none are of joins.

        Args:
            opened: number of bytes that are open at once, of each member and then of each join.
        """
        if not (rows := sum(opened[len(self.each) :])):
            return ""
        return (
            f"{format_bytes(rows)} of them are chunks with the rows of joins: where the two sides lie in unlike order, "
            "`streamer pack --join` writes them side by side, once (docs/joins.md)"
        )

    def add_joins(self, schedule: EpochSchedule) -> EpochSchedule:
        """Returns the schedule of an epoch with the chunks of the joins added, or the same one without joins."""
        if not self.joins:
            return schedule
        from streamer.batches.samples.joins import join_schedule

        first = self.first_chunks
        starts = self.first_chunks_of_parts[len(self.each) :]
        spans = [(first[number], first[number + 1]) for number, _ in self.joins]
        return join_schedule(schedule, list(zip([join for _, join in self.joins], spans, starts, strict=False)))


def _documents_of(path: Path, selection: tuple[str, Path] | None, packing: RowOption, shuffle: bool) -> Documents:
    """Opens a dataset and returns its documents: `Documents.reopen`, which runs in another process."""
    return OpenedDataset.open(path, selection).documents(packing, shuffle=shuffle)[0]
