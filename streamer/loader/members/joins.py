"""Joins a dataset to a second one: checks the options, and makes the table of rows at the first use.

`loader/dataset.py` makes a `Join` of the arguments of `StreamingDataset.join`, and `member.py` opens it. The left side
is the dataset that is joined; the right side has the further fields.

keys of the right side --> table of keys (sorted, kept) --+
                                                          +--> rows of each sample --> chunks that are used
keys of the left side, in its order ----------------------+
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, Self, get_args

import msgspec
import numpy as np

from streamer.batches import checks
from streamer.batches.samples.joins import JoinRecipe, OpenedJoin, Validate
from streamer.errors import ConfigError, ManifestError
from streamer.formats.registry import find_format, restore_format
from streamer.loader.members.keys import KeyReader, keep, keep_keys, name_table
from streamer.loader.members.selections import Choice
from streamer.loader.options.dataset_options import DatasetOptions
from streamer.manifest.chunking import LEAST_CHUNK_BYTES, TOO_MANY_CHUNKS
from streamer.manifest.joined import (
    FIRST_NAME,
    RIGHT_NAME,
    ROW_NAME,
    JoinHead,
    JoinTable,
    Matched,
    match,
    write_uses,
)
from streamer.manifest.keys import HEAD_NAME, map_numbers, read_keys, write_keys
from streamer.manifest.table import Manifest

logger = logging.getLogger(__name__)


# The word says what becomes of a sample without a row; see `StreamingDataset.join`.
MissingRows = Literal["error", "drop", "none"]


class JoinArguments(NamedTuple):
    """Holds the arguments of `StreamingDataset.join`, unchecked."""

    on: str | tuple[str, str]
    columns: Sequence[str] | Mapping[str, str] | None
    missing: MissingRows
    validate: Validate


@dataclass(frozen=True, kw_only=True)
class Join:
    """Holds the checked options of a join; see `StreamingDataset.join`.

    Attributes:
        other, choices: Options of the right side, and its selections.
        on: Key in the left side, and in the right one.
        columns: Name of each column in the right side, and in the samples, or None for all.
        missing, validate: What `StreamingDataset.join` was given.
        after: Number of selections of the left side that come before the join.
    """

    other: DatasetOptions
    choices: tuple[Choice, ...]
    on: tuple[str, str]
    columns: tuple[tuple[str, str], ...] | None
    missing: MissingRows
    validate: Validate
    after: int

    @property
    def name(self) -> str:
        """Url of the right side, for messages."""
        return self.other.place

    @classmethod
    def from_arguments(
        cls, left: DatasetOptions, right: tuple[DatasetOptions, tuple[Choice, ...]], given: JoinArguments, after: int
    ) -> Self:
        """Makes a join of the arguments of `StreamingDataset.join`.

        Args:
            left: Options of the left side, whose engine reads both.
            right: Options and selections of the right side.
            given: The arguments.
            after: Number of selections of the left side so far.

        Raises:
            ConfigError: an invalid argument, or datasets that cannot be joined.
        """
        checks.one_of("missing", given.missing, get_args(MissingRows))
        checks.one_of("validate", given.validate, get_args(Validate))
        _check_sides(left, right[0])
        on: object = given.on
        pair = (on, on) if isinstance(on, str) else on
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(k, str) and k for k in pair):
            raise ConfigError(
                f"on={on!r}: give the name of a field, or a pair: in this dataset, in the other", field="on"
            )
        return cls(
            # The engine is that of the left side, since one engine fetches both.
            other=replace(right[0], engine=left.engine, cache_dir=left.cache_dir, cache_bytes=left.cache_bytes),
            choices=right[1],
            on=(str(pair[0]), str(pair[1])),
            columns=_check_columns(given.columns),
            missing=given.missing,
            validate=given.validate,
            after=after,
        )


def _check_columns(columns: object) -> tuple[tuple[str, str], ...] | None:
    """Returns pairs: a field of the right side and the name that samples get; None for all. Raises ConfigError."""
    if columns is None:
        return None
    # The order of a set differs between processes.
    if isinstance(columns, str | set | frozenset) or not isinstance(columns, Iterable):
        raise ConfigError(f"columns={columns!r}: give a sequence of names, or new names by name", field="columns")
    pairs = list(columns.items()) if isinstance(columns, Mapping) else [(name, name) for name in columns]
    names = [name for pair in pairs for name in pair]
    if not pairs or not all(isinstance(name, str) for name in names) or len({to for _, to in pairs}) < len(pairs):
        raise ConfigError(f"columns={columns!r}: names must be texts, at least one, each once", field="columns")
    return tuple(pairs)


def _check_sides(left: DatasetOptions, right: DatasetOptions) -> None:
    """Raises ConfigError for datasets with options that cannot be joined."""
    if not (left.growing.joins and left.packing.joins and left.share_caches == "off"):
        raise ConfigError(
            'join() of a dataset with growing=, packing= or share_caches="auto": leave it out, or join before with '
            "streamer.pack",
            field="join",
        )
    default = DatasetOptions(urls=right.urls)
    names = ("transform", "growing", "packing", "annotations")
    given = [name for name in names if getattr(right, name) != getattr(default, name)]
    if given:
        raise ConfigError(
            f"join() with a dataset that has {given[0]}=: give it to the dataset that is joined, whose samples have "
            "the fields of both",
            field="join",
        )


class JoinMaker:
    """Finds or makes the table of rows of one join.

    Args:
        join: Options of the join.
        left, right: Keys of both sides.
    """

    def __init__(self, join: Join, left: KeyReader, right: KeyReader) -> None:
        self._join = join
        self._left = left
        self._right = right
        self._arranges = left.kept.is_writable and not right.manifest.recoded

    def open(self) -> OpenedJoin:
        """Returns the opened join. Its table is made if no process of this machine has made it.

        Raises:
            ManifestError: a sample lacks a row, or has several, where it must not, or keys cannot be compared, or the
                table cannot be written.
            StreamerError: the keys cannot be read.
            ConfigError: the names of the fields are needed and not known.
        """
        left = self._left
        right = self._right
        name = name_table("join", left, right, arranged=self._arranges)
        table = left.kept.open_or_make(name, self._open_table, self._make)
        self._check(table)
        may_be_none = self._join.validate == "many_to_many" or self._join.missing == "none"
        if self._join.columns is None and not right.manifest.facts.fields and may_be_none:
            raise ConfigError(
                f"the samples of {self._join.name} name their own fields (format {right.manifest.format!r}): with "
                "validate='many_to_many' and missing='none' columns= says which of them samples get",
                field="columns",
            )
        recipe = JoinRecipe(
            table=table.path,
            part=self._part(table.head),
            name=self._join.name,
            columns=self._join.columns,
            key=self._join.on[1],
            validate=self._join.validate,
            decode=self._join.other.decode.rule,
            allow_pickle=self._join.other.decode.allow_pickle,
        )
        return recipe.open()

    def _part(self, head: JoinHead) -> Path:
        return self._left.manifest.path.parent / head.part

    def _open_table(self, path: Path) -> JoinTable:
        table = JoinTable.open(path)
        part = self._part(table.head)
        if not part.is_dir():
            raise ManifestError(f"{path}: the arranged manifest {part.name} was not used for long, and was removed")
        return table

    def _make(self, folder: Path) -> None:
        """Writes the table into a new folder: reads the keys of both sides, matches them, and arranges the rows."""
        left = self._left
        table = keep_keys(self._right)
        listed = keep(
            "listed-keys",
            left,
            lambda path: read_keys(path, left.manifest.samples),
            lambda path: write_keys((keys for _, keys in left.batches()), path),
        )
        folder.mkdir()
        with left.name_errors():
            matched = match(listed, table, folder)
        self._write(folder, matched)

    def _write(self, place: Path, matched: Matched) -> None:
        """Writes the rest of a table after `match`; arranges the right side in the order of use, if possible."""
        left = self._left.manifest
        right = self._right.manifest
        first = map_numbers(place / FIRST_NAME, left.samples + 1, "<i8").view(np.int64)
        rows = map_numbers(place / RIGHT_NAME, matched.rows, "<i8").view(np.int64)
        part = right
        if self._arranges and matched.rows:
            # Imported here, since processes that find the table do not need what writes manifests.
            from streamer.indexing.arrange import arrange

            indexer = find_format(right.format, right.content.options)
            folder, rows = arrange(left, right, (first, rows), indexer=indexer, root=left.path.parent)
            part = Manifest.open(folder)
            (place / ROW_NAME).write_bytes(rows.astype("<i8").tobytes())
        uses = write_uses(left=left, part=part, first=first, rows=rows, place=place)
        head = JoinHead(
            left=left.digest,
            right=right.digest,
            part=part.digest,
            samples=left.samples,
            chunks=left.chunks,
            uses=uses,
            matched=matched,
        )
        (place / HEAD_NAME).write_bytes(msgspec.json.encode(head))

    def _check(self, table: JoinTable) -> None:
        """Raises ManifestError if samples have no row or several rows, and the user has not allowed it."""
        found = table.head.matched
        left = self._join.on[0]
        right = self._join.on[1]
        samples = self._left.manifest.samples
        if found.several and self._join.validate == "many_to_one":
            raise ManifestError(
                f"{found.several:,} of {samples:,} samples have more than one row of {self._join.name}, up to "
                f"{int(np.diff(table.first).max()):,}, the first is "
                f"{self._left.key_text(found.first_several)}; validate='many_to_many' makes lists of them",
                samples=found.several,
            )
        if not found.missing:
            return
        without = (
            f"{found.missing:,} of {samples:,} samples have no row of {self._join.name} ({found.keyless:,} of them no "
            f"key {left!r}), the first is {self._left.key_text(found.first_missing)}"
        )
        if not found.rows or self._join.missing == "error":
            raise ManifestError(
                f"{without}; keys {right!r} of the right side are like {self._right.key_text(0)}. missing='none' gives "
                "such samples None, missing='drop' leaves them out, on= names other keys",
                samples=found.missing,
            )
        logger.info("%s", without)


def finer_chunks(left: Manifest, right: Manifest) -> int:
    """Returns the bytes of finer chunks for a right side whose chunks have more rows than those of the left side.

    A chunk with many rows is used by many chunks of the left side, at times that the shuffle decides: unless it stays
    in the cache, it is fetched as often. Only formats whose blocks can be cut anew get finer chunks (`Format.recuts`).

    Args:
        left: Manifest of the left side.
        right: Manifest of the right side.

    Returns:
        Bytes of a chunk, a power of 2, or 0 if the chunks of the right side stay as they are.
    """
    if right.samples * left.chunks <= left.samples * right.chunks or not restore_format(right).recuts:
        return 0
    stored = int(right.column("chunks", "fetch_bytes").sum())
    found = 1 << (max(LEAST_CHUNK_BYTES, stored // TOO_MANY_CHUNKS) - 1).bit_length()
    return found if found < right.chunk_bytes else 0
