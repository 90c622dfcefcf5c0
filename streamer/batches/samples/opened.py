"""The datasets of a stream as one process has opened them: a dataset alone is its only member, a mix has several."""

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

# Samples that are located at once: 50 MB.
_BLOCK = 1 << 20


class OpenedDataset:
    """The selected samples of a manifest, or all, numbered through.

    Attributes:
        rows: what an order counts: the samples, or the rows that they are packed into.
        lengths: of the samples of the manifest, where samples that are not packed are balanced.
        joins: the datasets that samples are joined to.
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
        """Opens a manifest's folder, and a selection by its digest and the folder of its file, if there is one.

        Raises:
            ManifestError: there is no manifest.
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
        """Plans the rows of the samples, which are the samples of the order from then on; returns them.

        Args:
            packing: how samples are packed.
            fallback_dir: Where files are written if the manifest's folder is read-only for this process.
            shuffle: whether the rows are shuffled.

        Raises:
            ConfigError: nothing says how many tokens a sample has, or a sample is longer than a row and must not be.
            ManifestError: no sample has a token, or the table cannot be written.
        """
        # Imported here and below: without packing nothing of this is loaded (14 ms with -X importtime, 2026-11-26).
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
        """Opens the lengths of samples that are balanced and not packed, and sets `lengths`.

        Raises:
            ConfigError: nothing says how long a sample is.
        """
        from streamer.batches.rows.costs import DocumentCosts

        self.lengths = DocumentCosts(self.manifest, lengths)

    def costs(self, numbers: Integers, seed: int, epoch: int, coefficients: tuple[int, int]) -> Integers:
        """Returns the cost of some rows, or samples, (N,); see `OrderRows.costs_of`."""
        return self.rows.costs_of(self, numbers, seed=seed, epoch=epoch, coefficients=coefficients)

    def documents(self, packing: RowOption, *, shuffle: bool) -> tuple[Documents, DocumentCosts]:
        """Returns the samples as documents, and how many tokens each has."""
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
        """What the index says of decoding the samples; None if it says nothing."""
        return restore_format(self.manifest).find_decode_cost(self.manifest)

    @property
    def samples(self) -> int:
        """Number of selected samples."""
        return self.manifest.samples if self.selection is None else self.selection.samples

    @property
    def digest(self) -> str:
        """Identity of the selected samples."""
        return self.manifest.digest if self.selection is None else self.selection.digest

    @property
    def chunk_samples(self) -> Integers:
        """(M,) selected samples per chunk."""
        return self.manifest.chunk_samples if self.selection is None else self.selection.chunk_samples

    @cached_property
    def chunk_first(self) -> Integers:
        """(M+1,) selected samples before each chunk."""
        return self.manifest.chunk_first if self.selection is None else np.append(0, np.cumsum(self.chunk_samples))

    @property
    def order_samples(self) -> Integers:
        """What an order counts: (M,) selected samples per chunk, or (S,) rows per set of chunks."""
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
        """The cohorts in which a growing dataset admits its samples, or rows.

        Raises:
            ConfigError: see `Cohorts`.
        """
        # Imported here, since other datasets do not load it.
        from streamer.order.growing import Cohorts

        return Cohorts(spec, self.order_samples, self.rows.sets)

    @property
    def stored_bytes(self) -> int:
        """The bytes of the selected samples, by their share of all."""
        return int(self.manifest.chunk_local_bytes.sum() * (self.samples / max(1, self.manifest.samples)))

    @cached_property
    def exact_bytes(self) -> int:
        """The bytes of the selected samples, in 0.1 us each; if recoded (without offsets), by their share of all."""
        if self.selection is None or self.manifest.recoded:
            return self.stored_bytes
        blocks = (self.selection.ordinals[first : first + _BLOCK] for first in range(0, self.samples, _BLOCK))
        located = (self.manifest.locate(block) for block in blocks)
        return sum(int((stop - start).sum()) for _, start, stop in located)

    def number(self, ordinal: int) -> int:
        """Returns the number in the selection, which `dataset[i]` takes, of an ordinal in the manifest."""
        return ordinal if self.selection is None else self.selection.number(ordinal)

    def to_manifest(self, ordinals: Integers) -> Integers:
        """Returns the ordinals in the manifest of ordinals in the selection."""
        return ordinals if self.selection is None else self.selection.to_base(ordinals)


class MemberRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker process needs to make the samples of one member.

    Attributes:
        manifest_path: the manifest's folder.
        selection: digest of the selection, and the folder of its file; None: all samples.
        rules: of making samples.
        rows: the rows that the samples are packed into.
        balance: of rows or samples.
        joins: the datasets that samples are joined to.
    """

    manifest_path: Path
    selection: tuple[str, Path] | None
    rules: SampleRules
    rows: RowRecipe = NO_ROWS
    balance: AnyBalance = NO_BALANCE
    joins: tuple[JoinRecipe, ...] = ()

    def open(self) -> OpenedDataset:
        """Opens the manifest in this process.

        Raises:
            ManifestError: there is none.
        """
        opened = OpenedDataset.open(self.manifest_path, self.selection, self.rows, self.joins)
        opened.rows.measure(opened, self.balance)
        return opened

    @property
    def paths(self) -> list[Path]:
        """Files and folders that `open` reads, and the samples are made with."""
        found = [self.manifest_path]
        if self.selection is not None:
            digest, folder = self.selection
            found.append(folder / selection_name(self.manifest_path.name, digest))
        found += self.rows.paths
        if self.rules.joined is not None:
            found.append(self.rules.joined.table)
        return found + [path for join in self.joins for path in (join.table, join.part)]


class Members:
    """The members in their order. The chunks of each are numbered after those of the members before it.

    The chunks of the datasets that they are joined to follow, in the order of the members and of their joins.
    """

    def __init__(self, members: Sequence[OpenedDataset]) -> None:
        self.each = list(members)

    def __repr__(self) -> str:
        return f"Members({self.each})"

    @property
    def samples(self) -> list[int]:
        """Number of selected samples of each."""
        return [member.samples for member in self.each]

    @property
    def order_samples(self) -> list[int]:
        """Samples of each that an order counts: selected samples, or rows."""
        return [int(member.order_first[-1]) for member in self.each]

    def map_to_chunks(self, order: SampleOrder) -> SampleOrder:
        """Returns an order of the chunks of all members, from one of what is counted of them."""
        rows = [member.rows for member in self.each]
        return rows[0].map_to_chunks(order, rows, self.first_chunks)

    @property
    def left_out(self) -> int:
        """Tokens that `overflow` leaves out of every epoch; of a mix, of a pass over each member."""
        return sum(member.rows.left_out for member in self.each)

    @cached_property
    def first_chunks(self) -> list[int]:
        """(members + 1,) number of the first chunk of each."""
        counts = [member.manifest.chunks for member in self.each]
        return [0, *np.cumsum(counts).tolist()]

    @cached_property
    def joins(self) -> list[tuple[int, OpenedJoin]]:
        """The joins, each with the number of its member."""
        return [(number, join) for number, member in enumerate(self.each) for join in member.joins]

    @cached_property
    def first_chunks_of_parts(self) -> list[int]:
        """(parts + 1,) number of the first chunk of each member, then of each join."""
        counts = [join.manifest.chunks for _, join in self.joins]
        return [*self.first_chunks, *(self.first_chunks[-1] + np.cumsum(counts)).tolist()]

    @cached_property
    def chunk_bytes(self) -> Integers:
        """Bytes of each chunk, over all members and joins."""
        return np.concatenate([manifest.chunk_local_bytes for manifest in self.manifests])

    @property
    def manifests(self) -> list[Manifest]:
        """The manifests of the members, then of the joins."""
        return [*(member.manifest for member in self.each), *(join.manifest for _, join in self.joins)]

    @property
    def digest(self) -> str:
        """A name for the data of all members together, the same on every rank."""
        digests = [member.manifest.digest for member in self.each]
        return blake2b(" ".join(digests).encode(), digest_size=16).hexdigest()

    def facts_of_joins(self) -> dict[str, str]:
        """What must be equal on all ranks besides the members."""
        return {"joins": " ".join(join.table.digest for _, join in self.joins)} if self.joins else {}

    def part_values(self, values: Sequence[float]) -> tuple[float, ...]:
        """The values of the members, then of the joins, of which a kept chunk serves all its uses."""
        return (*values, *(values[number] * join.mean_uses for number, join in self.joins))

    def cache_full_hint(self, opened: Sequence[int]) -> str:
        """Returns what helps where the cache has no room for the chunks of the joins, or "" if they have none open.

        Args:
            opened: bytes that are open at once, of the members and then of the joins.
        """
        if not (rows := sum(opened[len(self.each) :])):
            return ""
        return (
            f"{format_bytes(rows)} of them are chunks with the rows of joins: where the two sides lie in unlike order, "
            "`streamer pack --join` writes them side by side, once (docs/joins.md)"
        )

    def add_joins(self, schedule: EpochSchedule) -> EpochSchedule:
        """Adds what the joins need to the schedule of the members."""
        if not self.joins:
            return schedule
        from streamer.batches.samples.joins import join_schedule

        first = self.first_chunks
        starts = self.first_chunks_of_parts[len(self.each) :]
        spans = [(first[number], first[number + 1]) for number, _ in self.joins]
        return join_schedule(schedule, list(zip([join for _, join in self.joins], spans, starts, strict=False)))


def _documents_of(path: Path, selection: tuple[str, Path] | None, packing: RowOption, shuffle: bool) -> Documents:
    """Opens the documents of a dataset in another process."""
    return OpenedDataset.open(path, selection).documents(packing, shuffle=shuffle)[0]
