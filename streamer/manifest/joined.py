"""The rows of a second dataset that belong to each sample of a first one, in files that all processes map.

    <folder>/head.json        both manifests, and the counts
    <folder>/first.i64        (samples + 1,): where the rows of each sample of the left dataset begin
    <folder>/right.i64        the rows: ordinals in the right dataset's manifest
    <folder>/row.i64          the same in the manifest from which they are read, if it is another
    <folder>/use_first.i64    (chunks + 1,): where the uses of each chunk of the left dataset begin
    <folder>/use_chunk.u32    the uses: chunks of the other manifest, ascending

That other manifest has the samples arranged in the order of the left dataset (see `builder.arrange`).
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
    """What was found for the samples of the left dataset.

    Attributes:
        rows: rows of the right dataset, over all samples.
        missing: samples without a row.
        keyless: samples without a key, among them.
        several: samples with more than one row.
        first_missing, first_several: ordinals; -1: there is none.
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
        part: digest of the manifest from which the rows are read: that of the right dataset, or one arranged for it.
        samples, chunks: of the left dataset.
        uses: of chunks, over all chunks of the left dataset.
        matched: the counts.
    """

    left: str
    right: str
    part: str
    samples: int
    chunks: int
    uses: int
    matched: Matched


class JoinTable:
    """The rows of each sample. Immutable, safe to use from any thread; takes no memory per row.

    Attributes:
        first: (samples + 1,).
        right: the rows, ordinals in the right dataset's manifest.
        rows: the same in the part's manifest.
        use_first: (chunks + 1,).
        use_chunk: uint32.
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
        """Maps the table in a folder.

        Raises:
            ManifestError: there is none.
            ManifestCorruptError: a file is missing or malformed.
        """
        return cls(path, read_head(path, JoinHead, "join"))

    def __repr__(self) -> str:
        return f"JoinTable({self.path.name}, {self.head.matched})"

    @property
    def digest(self) -> str:
        """Identity of both sides and of their keys."""
        return self.path.name

    def rows_of(self, ordinals: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Returns the rows of samples of the left dataset: the place of each among `ordinals`, and its number."""
        owner, at = _ranges(self.first, ordinals)
        return owner, self.rows[at]

    @property
    def row(self) -> Int64Array:
        """The row of each sample in the right dataset's manifest, the first of several, -1 for none: (samples,)."""
        rows = np.full(self.head.samples, -1, np.int64)
        rows[self.found] = self.right[self.first[:-1][self.found]]
        return rows

    @property
    def found(self) -> NDArray[np.bool_]:
        """Whether each sample has a row: (samples,)."""
        return np.diff(self.first) > 0

    def uses_of(self, chunks: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Returns the chunks that chunks of the left dataset use: the place of each among `chunks`, and its number."""
        owner, at = _ranges(self.use_first, chunks)
        return owner, self.use_chunk[at].astype(np.int64)


def _ranges(first: Int64Array, chosen: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Returns the numbers first[i] .. first[i + 1] - 1 of each chosen i: its place among the chosen, and the number."""
    begin = first[chosen]
    counts = first[chosen + 1] - begin
    owner = np.repeat(np.arange(len(chosen)), counts)
    return owner, np.repeat(begin - (np.cumsum(counts) - counts), counts) + np.arange(len(owner))


def match(batches: Iterable[Keys], table: KeyTable, place: Path) -> Matched:
    """Writes which rows of the right dataset the samples of the left one have: `first.i64` and `right.i64`.

    Args:
        batches: the keys of the left dataset, in its order.
        table: keys of the right dataset, whose rows are its samples.
        place: the folder.

    Raises:
        ManifestError: the keys of one side are numbers, those of the other texts.
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
    """Adds the counts of the samples from number `samples` on."""
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
    """Writes which chunks of a part each chunk of the left dataset uses; returns the number of uses."""
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
