"""Keeps a join on disk: the rows of a second dataset that belong to each sample of a first one, in mapped files.

`loader/members/joins.py` writes it, `batches/samples/joins.py` reads rows by it, and the engine keeps the manifests
that it names. The first dataset is the left side, the second one the right side.

    <folder>/head.json        both manifests, and the counts
    <folder>/first.i64        (samples + 1,): where the rows of each sample of the left dataset begin
    <folder>/right.i64        the rows: ordinals in the right dataset's manifest
    <folder>/row.i64          the rows as ordinals in the part, if that is another manifest
    <folder>/use_first.i64    (chunks + 1,): where the uses of each chunk of the left dataset begin
    <folder>/use_chunk.u32    the uses: chunks of the part, ascending for each chunk of the left dataset

The part is the manifest from which rows are read: that of the right dataset, or one of the same samples in the order of
the left dataset (see `indexing/arrange.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import ManifestError
from streamer.manifest.keys import Int64Array, Keys, KeyTable, map_numbers, read_head
from streamer.manifest.table import Manifest

FIRST_NAME = "first.i64"
RIGHT_NAME = "right.i64"
ROW_NAME = "row.i64"
USE_FIRST_NAME = "use_first.i64"
USE_CHUNK_NAME = "use_chunk.u32"


class Matched(msgspec.Struct, frozen=True):
    """Counts of what was found for the samples of the left dataset.

    Attributes:
        rows: rows of all samples together.
        missing: samples without a row.
        keyless: those of the missing samples that have no key.
        several: samples with more than one row.
        first_missing, first_several: ordinal of the first such sample, or -1 if there is none.
    """

    rows: int = 0
    missing: int = 0
    keyless: int = 0
    several: int = 0
    first_missing: int = -1
    first_several: int = -1


class JoinHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts about a join.

    Attributes:
        left, right: digests of the manifests.
        part: digest of the manifest from which the rows are read: that of the right dataset, or one arranged for the
            left one.
        samples, chunks: numbers of samples and chunks of the left dataset.
        uses: number of uses of the part's chunks, over all chunks of the left dataset.
        matched: the counts of rows.
    """

    left: str
    right: str
    part: str
    samples: int
    chunks: int
    uses: int
    matched: Matched


class JoinTable:
    """A mapped join: the rows of each sample of the left dataset. Immutable, safe to use from any thread.

    Takes no memory per row.

    Attributes:
        path: the folder.
        head: facts about the join.
        first: int64, (samples + 1,): place in `rows` and `right` of each sample's first row, and their number.
        right: int64: the rows, as ordinals in the right dataset's manifest.
        rows: int64: the same rows, as ordinals in the part.
        use_first: int64, (chunks + 1,): place in `use_chunk` of each chunk's first use, and their number.
        use_chunk: uint32: the chunks of the part that each chunk of the left dataset uses.

    Raises:
        ManifestCorruptError: a file is missing, or has another length.
    """

    def __init__(self, path: Path, head: JoinHead) -> None:
        self.path = path
        self.head = head
        self.first = map_numbers(path / FIRST_NAME, head.samples + 1, "<i8").view(np.int64)
        self.right = map_numbers(path / RIGHT_NAME, head.matched.rows, "<i8").view(np.int64)
        self.rows = self.right
        if head.part != head.right:
            self.rows = map_numbers(path / ROW_NAME, head.matched.rows, "<i8").view(np.int64)
        self.use_first = map_numbers(path / USE_FIRST_NAME, head.chunks + 1, "<i8").view(np.int64)
        self.use_chunk = map_numbers(path / USE_CHUNK_NAME, head.uses, "<u4").view(np.uint32)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Maps the join in a folder.

        Raises:
            ManifestError: the folder has no head.
            ManifestCorruptError: a file is missing or malformed.
        """
        return cls(path, read_head(path, JoinHead, "join"))

    def __repr__(self) -> str:
        return f"JoinTable({self.path.name}, {self.head.matched})"

    @property
    def digest(self) -> str:
        """Name of the folder, which identifies both sides and their keys."""
        return self.path.name

    def rows_of(self, ordinals: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Finds the rows of samples of the left dataset; a sample may have none, one or several.

        Returns:
            For each row found, in the order of `ordinals`: the place in `ordinals` of its sample, and its ordinal in
            the part: int64, shape (rows,) each.
        """
        owner, at = _ranges(self.first, ordinals)
        return owner, self.rows[at]

    @property
    def row(self) -> Int64Array:
        """Ordinal in the right manifest of each sample's row: int64, (samples,); the first of several, -1 for none."""
        rows = np.full(self.head.samples, -1, np.int64)
        rows[self.found] = self.right[self.first[:-1][self.found]]
        return rows

    @property
    def found(self) -> NDArray[np.bool_]:
        """Whether each sample of the left dataset has a row: bool, (samples,)."""
        return np.diff(self.first) > 0

    def uses_of(self, chunks: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Finds the chunks of the part that chunks of the left dataset use.

        Returns:
            For each use, in the order of `chunks`: the place in `chunks` of the left dataset's chunk, and the number of
            the part's chunk; int64, shape (uses,) each.
        """
        owner, at = _ranges(self.use_first, chunks)
        return owner, self.use_chunk[at].astype(np.int64)


def _ranges(first: Int64Array, chosen: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Lists the numbers first[i] .. first[i + 1] - 1 of each chosen i; returns for each the place of i, and itself."""
    begin = first[chosen]
    counts = first[chosen + 1] - begin
    owner = np.repeat(np.arange(len(chosen)), counts)
    return owner, np.repeat(begin - (np.cumsum(counts) - counts), counts) + np.arange(len(owner))


def match(batches: Iterable[Keys], table: KeyTable, place: Path) -> Matched:
    """Finds the rows of each sample of the left dataset by its key; writes `first.i64` and `right.i64`.

    Args:
        batches: the keys of all samples of the left dataset, in their order.
        table: the samples of the right dataset by key.
        place: the folder of the join, which exists.

    Returns:
        The counts of rows, and of samples without a row or with several.

    Raises:
        ManifestError: the keys of one side are numbers, those of the other texts.
        OSError: a file cannot be written.
    """
    samples = 0
    found = Matched()
    with (place / FIRST_NAME).open("wb") as firsts, (place / RIGHT_NAME).open("wb") as rows:
        firsts.write(np.zeros(1, np.int64).tobytes())
        for keys in batches:
            if keys.kind and table.head.kind and keys.kind != table.head.kind:
                raise ManifestError(
                    f"its keys are {keys.kind}s, those of the other side {table.head.kind}s; nothing is converted: "
                    "name other columns with on=, or write the keys of both sides in one way"
                )
            begin, counts = table.find(keys)
            stops = found.rows + np.cumsum(counts)
            firsts.write(stops.astype("<i8").tobytes())
            owner = np.repeat(begin - (stops - counts), counts)
            at = owner + np.arange(found.rows, found.rows + len(owner))
            rows.write(table.ordinals[at].astype("<i8").tobytes())
            found = _add_counts(found, keys, counts, samples)
            samples += len(keys)
    return found


def _add_counts(before: Matched, keys: Keys, counts: Int64Array, samples: int) -> Matched:
    """Returns the counts with those of the next samples: their keys, rows of each, and the first one's ordinal."""
    none = counts == 0
    several = counts > 1
    first_missing = before.first_missing
    first_several = before.first_several
    if first_missing < 0 and none.any():
        first_missing = samples + int(np.argmax(none))
    if first_several < 0 and several.any():
        first_several = samples + int(np.argmax(several))
    return Matched(
        rows=before.rows + int(counts.sum()),
        missing=before.missing + int(none.sum()),
        keyless=before.keyless + int(keys.missing.sum()),
        several=before.several + int(several.sum()),
        first_missing=first_missing,
        first_several=first_several,
    )


def write_uses(left: Manifest, part: Manifest, first: Int64Array, rows: Int64Array, place: Path) -> int:
    """Writes which chunks of the part each chunk of the left dataset uses: `use_first.i64` and `use_chunk.u32`.

    Args:
        left: manifest of the left dataset.
        part: manifest from which rows are read.
        first: the same as in `JoinTable`.
        rows: the same as in `JoinTable`.
        place: the folder of the join, which exists.

    Returns:
        The number of uses.

    Raises:
        OSError: a file cannot be written.
    """
    edges = first[left.chunk_first]
    counts = np.zeros(left.chunks + 1, np.int64)
    with (place / USE_CHUNK_NAME).open("wb") as file:
        for chunk in range(left.chunks):
            mine = rows[edges[chunk] : edges[chunk + 1]]
            used = np.unique(part.find_chunks(mine))
            counts[chunk + 1] = len(used)
            file.write(used.astype("<u4").tobytes())
    use_first = np.cumsum(counts)
    (place / USE_FIRST_NAME).write_bytes(use_first.astype("<i8").tobytes())
    return int(use_first[-1])
