"""Joins samples to rows of a second dataset: what a worker opens, what its samples get, and which chunks a rank needs.

The rows of the second dataset, the right side, come from a manifest of their own, which is a part of the rank's session
as a member of a mix is. While a chunk of the left side is open, so are those that have its rows.

Opened datasets have the joins (`batches/samples/opened.py`), and the loader makes their recipes
(`loader/members/joins.py`). Readers of batches and scans read rows with `JoinReader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, islice, starmap, takewhile
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.batches.samples.maker import ByteSource, SampleLocation, locate_samples
from streamer.decode.dispatch import SampleDecoder
from streamer.decode.rule import DecodeRule
from streamer.errors import DecodeError, StoreError
from streamer.formats.base import SampleName
from streamer.formats.registry import open_format
from streamer.manifest.joined import JoinTable
from streamer.manifest.reader_lock import open_held
from streamer.manifest.table import Manifest
from streamer.wire.schedule import EpochSchedule

Integers = npt.NDArray[np.int64]
Validate = Literal["many_to_one", "many_to_many"]
_KEY = "__key__"
_NO_NAME = SampleName()
# Bytes of rows of a batch that are read together: thousands of short rows, but not two large ones at a time.
_AHEAD_BYTES = 4 << 20


class JoinRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """All that a process needs to join samples.

    Attributes:
        table: folder of the join table, which has the rows of each sample.
        part: folder of the manifest of the right side, from which the rows are read.
        name: name of the right side, for messages.
        columns: pairs of a field's name in the right side and in the samples, or None for all fields but the key.
        key: name of the field of the right side that is its key.
        validate: "many_to_one" gives a sample the fields of its one row. "many_to_many" gives it lists, with the values
            of all its rows.
        decode: how fields of the right side are decoded.
        allow_pickle: whether fields of the right side are read that run code when they are read.
    """

    table: Path
    part: Path
    name: str
    columns: tuple[tuple[str, str], ...] | None
    key: str
    validate: Validate
    decode: DecodeRule = "auto"
    allow_pickle: bool = False

    def open(self) -> OpenedJoin:
        """Opens table and manifest in this process.

        Raises:
            ManifestError: one of them is missing or damaged.
            ConfigError: this process may have no more descriptors.
        """
        return OpenedJoin(self, JoinTable.open(self.table), open_held(self.part))


class OpenedJoin:
    """One join, opened in this process.

    Attributes:
        recipe: options of the join.
        table: the rows of each sample.
        manifest: manifest of the right side, from which the rows are read.
    """

    def __init__(self, recipe: JoinRecipe, table: JoinTable, manifest: Manifest) -> None:
        self.recipe = recipe
        self.table = table
        self.manifest = manifest

    def __repr__(self) -> str:
        return f"OpenedJoin({self.recipe.name}, {self.table!r}, {self.manifest!r})"

    @property
    def mean_uses(self) -> float:
        """Mean number of uses in an epoch of a chunk of the right side that is used at all."""
        used = len(np.unique(self.table.use_chunk))
        return self.table.head.uses / max(1, used)

    def field_of(self, name: str) -> str | None:
        """Returns which field of the right side, or part of one, samples have as `name`.

        For columns {"a": "b"}, "b" is "a" and "b.c" is "a.c". The result is None if the join gives no such field. If
        the manifest does not list its fields, it is the name itself, which may not exist.
        """
        for field, to in self.recipe.columns or ():
            if name == to or name.startswith(f"{to}."):
                return field + name.removeprefix(to)
        known = {spec.name for spec in self.manifest.facts.fields}
        given = self.recipe.columns is not None or name in (_KEY, self.recipe.key)
        return None if given or (known and name not in known and name.partition(".")[0] not in known) else name

    def reader(self, content: ByteSource) -> JoinReader:
        """Returns a reader of the rows of samples; `content` reads the bytes of the right side.

        Raises:
            ConfigError, ManifestVersionError: see `JoinReader`.
        """
        return JoinReader(self, content)


class JoinReader:
    """Reads the rows of samples for `SampleMaker` and `StoredReader`, a batch at a time. Used by one thread.

    Args:
        joined: the join.
        content: reads the bytes of the right side.

    Raises:
        ConfigError: the rule of decoding is invalid, or the format is not installed or lacks an option.
        ManifestVersionError: the right side was indexed by another revision of the format.
    """

    def __init__(self, joined: OpenedJoin, content: ByteSource) -> None:
        recipe = joined.recipe
        self._joined = joined
        self._content = content
        self._table = joined.table
        self._manifest = joined.manifest
        self._columns = None if recipe.columns is None else dict(recipe.columns)
        self._opener = open_format(joined.manifest)
        self._decoder = SampleDecoder(recipe.decode, allow_pickle=recipe.allow_pickle)
        names = [spec.name for spec in joined.manifest.facts.fields if spec.name not in (_KEY, recipe.key)]
        self._names = names if recipe.columns is None else [to for _, to in recipe.columns]
        # The running batch: the rows of its samples, the place of each sample in it, and the rows that are read.
        self._batch: list[tuple[int, list[SampleLocation]]] = []
        self._index: dict[int, int] = {}
        self._read: dict[int, list[tuple[SampleLocation, memoryview]]] = {}

    def __repr__(self) -> str:
        return f"JoinReader({self._joined!r}, {len(self._batch)} samples)"

    def begin(self, ordinals: Integers) -> None:
        """Begins a batch: locates the rows of all its samples.

        Args:
            ordinals: Ordinals of the samples in the manifest of the left side, in the order of the calls of `values`.

        Raises:
            ChunkUnreadableError: a recoded chunk of the right side is missing or wrong.
            StreamerError: see `ByteSource`.
        """
        self._batch = list(zip(ordinals.tolist(), self._locate_rows(ordinals), strict=True))
        self._index = {ordinal: at for at, (ordinal, _) in enumerate(self._batch)}
        self._read = {}

    def values(self, ordinal: int, raw: Callable[[memoryview], object] = bytes) -> Mapping[str, object]:
        """Returns the fields that a sample gets from its rows, by their names in the samples.

        A sample without rows gets None for each field that `columns` or else the manifest names, or with "many_to_many"
        empty lists. Rows of the next samples of the batch are read in advance. A second call for the same sample reads
        again.

        Args:
            ordinal: Ordinal of the sample in the manifest of the left side.
            raw: function that converts the bytes of fields without a decoder.

        Raises:
            ChunkUnreadableError: bytes of a row are missing or wrong.
            DecodeError: a row cannot be decoded, or lacks a column.
            ConfigError: a pickle is not allowed, or a library is missing.
            StreamerError: bytes of a row cannot be read for another reason, see `ByteSource`.
        """
        if ordinal not in self._read:
            at = self._index.get(ordinal)
            if at is None:
                self._take([(ordinal, next(self._locate_rows(np.array([ordinal], np.int64))))])
            else:
                # The rows of the next samples of the batch are read as well, up to `_AHEAD_BYTES`.
                lengths = (
                    sum(place.stop - place.start for place in places) for _, places in islice(self._batch, at, None)
                )
                short = sum(1 for _ in takewhile(_AHEAD_BYTES.__ge__, accumulate(lengths)))
                try:
                    self._take(self._batch[at : at + max(1, short)])
                except (OSError, StoreError):
                    # It may be an error of the next samples, which are read again when they are asked for.
                    self._take(self._batch[at : at + 1])
        rows = [self._row(place.ordinal, content, raw) for place, content in self._read.pop(ordinal)]
        if self._joined.recipe.validate == "many_to_one":
            return rows[0] if rows else dict.fromkeys(self._names)
        names = self._names or list(dict.fromkeys(name for row in rows for name in row))
        return {name: [row.get(name) for row in rows] for name in names}

    def field_of(self, name: str) -> str:
        """Returns the name in the right side of a field that samples have. It is another one only with columns."""
        return next((field for field, to in self._joined.recipe.columns or () if to == name), name)

    def _locate_rows(self, ordinals: Integers) -> Iterator[list[SampleLocation]]:
        """Yields for each sample the locations of its rows, in the order of `ordinals`."""
        owner, rows = self._table.rows_of(ordinals)
        places = iter(starmap(SampleLocation, zip(*locate_samples(self._manifest, self._content, rows), strict=True)))
        return (list(islice(places, count)) for count in np.bincount(owner, minlength=len(ordinals)).tolist())

    def _take(self, samples: Sequence[tuple[int, list[SampleLocation]]]) -> None:
        contents = iter(self._content.read_each([place for _, places in samples for place in places]))
        self._read |= {ordinal: list(zip(places, contents, strict=False)) for ordinal, places in samples}

    def _row(self, row: int, content: memoryview, raw: Callable[[memoryview], object]) -> dict[str, object]:
        """Returns the fields of one row, by their names in the samples; raises a DecodeError as `values` does."""
        name = self._manifest.name(row) if self._manifest.whole_objects else _NO_NAME
        try:
            found, fields = self._opener.open(content, name)
            key = str(row) if found is None else found
            if self._columns is None:
                chosen = [field for field in fields if field.name not in (_KEY, self._joined.recipe.key)]
            else:
                chosen = [field for field in fields if field.name in self._columns]
                if len(chosen) < len(self._columns) - (_KEY in self._columns):
                    names = [field.name for field in fields]
                    lacking = next(name for name in self._columns if name not in names and name != _KEY)
                    raise DecodeError(
                        f"columns={lacking!r} is not a field of sample {key!r} of the right side, which has "
                        f"{', '.join(names)}"
                    )
            sample = self._decoder(key, chosen, raw=raw)
        except DecodeError as error:
            raise DecodeError(f"{error.message} (row {row} of the join with {self._joined.recipe.name})") from error
        if self._columns is not None:
            return {to: sample[name] for name, to in self._columns.items()}
        del sample[_KEY]
        return sample


def join_schedule(schedule: EpochSchedule, joins: Sequence[tuple[OpenedJoin, tuple[int, int], int]]) -> EpochSchedule:
    """Returns a schedule with the chunks of the right sides added, which are open as long as samples need their rows.

    Args:
        schedule: Schedule of the left sides.
        joins: Joins, each with the half-open range of its left side's chunk numbers in the schedule, and the number of
            its right side's first chunk.
    """
    chunks = [schedule.chunk]
    firsts = [schedule.first]
    lasts = [schedule.last]
    passes = [] if schedule.passes is None else [schedule.passes]
    for joined, (start, stop), base in joins:
        mine = np.flatnonzero((schedule.chunk >= start) & (schedule.chunk < stop))
        owner, used = joined.table.uses_of(schedule.chunk[mine].astype(np.int64) - start)
        entry = mine[owner]
        number = np.zeros(len(entry), np.uint32) if schedule.passes is None else schedule.passes[entry]
        chunk, first, last, number = merge_uses(used + base, schedule.first[entry], schedule.last[entry], number)
        chunks.append(chunk.astype(np.uint32))
        firsts.append(first)
        lasts.append(last)
        if schedule.passes is not None:
            passes.append(number)
    first = np.concatenate(firsts)
    order = np.argsort(first, kind="stable")
    return msgspec.structs.replace(
        schedule,
        chunk=np.concatenate(chunks)[order],
        first=first[order],
        last=np.concatenate(lasts)[order],
        passes=np.concatenate(passes)[order] if passes else None,
    )


def merge_uses(
    chunk: Integers, first: Integers, last: Integers, passes: npt.NDArray[np.uint32]
) -> tuple[Integers, Integers, Integers, npt.NDArray[np.uint32]]:
    """Joins uses of the same chunk whose steps overlap to one use. Between separate uses the chunk may be evicted.

    Args:
        chunk: (N,) chunk of each use.
        first: (N,) first step of each use.
        last: (N,) last step of each use.
        passes: (N,) pass of each use; a joined use has that of its first one.

    Returns:
        The same four arrays, sorted by chunk and first step.
    """
    if not len(chunk):
        return chunk, first, last, passes
    order = np.lexsort((first, chunk))
    chunk = chunk[order]
    first = first[order]
    last = last[order]
    passes = passes[order]
    # The last step of all uses before, of the same chunk: chunks are kept apart by more than there are steps.
    apart = chunk * (int(last.max()) + 2)
    until = np.maximum.accumulate(apart + last)
    opens = np.append(True, (apart + first)[1:] > until[:-1])
    begins = np.flatnonzero(opens)
    return chunk[begins], first[begins], np.maximum.reduceat(last, begins), passes[begins]
