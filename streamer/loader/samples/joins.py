"""Joins samples to rows of a second dataset: what a worker opens, what its samples get, and which chunks a rank needs.

The rows of the second dataset, the right side, come from a manifest of their own, which is a part of the rank's session
as a member of a mix is. While a chunk of the left side is open, so are those that have its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.client.session import EpochSchedule
from streamer.decode.dispatch import SampleDecoder
from streamer.decode.rule import DecodeRule
from streamer.errors import DecodeError
from streamer.formats.base import Field
from streamer.formats.registry import open_format
from streamer.loader.samples.maker import ByteSource, SampleLocation, located
from streamer.manifest.joined import JoinTable
from streamer.manifest.reader_lock import open_held
from streamer.manifest.table import Manifest

Integers = npt.NDArray[np.int64]
How = Literal["one", "many"]
_KEY = "__key__"


class JoinRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """All that a process needs to join samples.

    Attributes:
        table: folder of the rows of each sample.
        part: folder of the manifest from which they are read.
        name: the right side, for messages.
        columns: name in the right side, and in the samples; None: all fields, but for the key.
        key: the field of the right side with its key.
        how: "one": its fields; "many": lists of them.
        decode, allow_pickle: of the right side.
    """

    table: Path
    part: Path
    name: str
    columns: tuple[tuple[str, str], ...] | None
    key: str
    how: How
    decode: DecodeRule = "auto"
    allow_pickle: bool = False

    def open(self) -> OpenedJoin:
        """Opens table and manifest in this process.

        Raises:
            ManifestError: one of them is gone.
        """
        return OpenedJoin(self, JoinTable.open(self.table), open_held(self.part))


class OpenedJoin:
    """One join, opened in this process.

    Attributes:
        recipe: its options.
        table: the rows of each sample.
        manifest: from which they are read.
    """

    def __init__(self, recipe: JoinRecipe, table: JoinTable, manifest: Manifest) -> None:
        self.recipe, self.table, self.manifest = recipe, table, manifest

    def __repr__(self) -> str:
        return f"OpenedJoin({self.recipe.name}, {self.table!r}, {self.manifest!r})"

    @property
    def mean_uses(self) -> float:
        """How often an epoch uses a chunk of the right side, in the mean of those that it uses."""
        used = len(np.unique(self.table.use_chunk))
        return self.table.head.uses / max(1, used)

    def field_of(self, name: str) -> str | None:
        """The field of the right side, or its part, that samples have by a name; None: they have none of that name.

        It may not exist where the samples name their own fields.
        """
        for field, to in self.recipe.columns or ():
            if name == to or name.startswith(f"{to}."):
                return field + name.removeprefix(to)
        known = {spec.name for spec in self.manifest.facts.fields}
        given = self.recipe.columns is not None or name in (_KEY, self.recipe.key)
        return None if given or (known and name not in known and name.partition(".")[0] not in known) else name

    def reader(self, content: ByteSource) -> JoinReader:
        """What reads the rows of samples."""
        return JoinReader(self, content)


class JoinReader:
    """Reads the rows of samples. Used by one thread."""

    def __init__(self, joined: OpenedJoin, content: ByteSource) -> None:
        recipe = joined.recipe
        self._joined, self._content = joined, content
        self._table, self._manifest = joined.table, joined.manifest
        self._columns = None if recipe.columns is None else dict(recipe.columns)
        self._opener = open_format(joined.manifest)
        self._decoder = SampleDecoder(recipe.decode, allow_pickle=recipe.allow_pickle)
        names = [spec.name for spec in joined.manifest.facts.fields]
        self._names = [to for _, to in recipe.columns] if recipe.columns is not None else self._kept(names)

    def __repr__(self) -> str:
        return f"JoinReader({self._joined!r})"

    def values(self, ordinal: int) -> Mapping[str, object]:
        """Returns the fields that a sample gets.

        Args:
            ordinal: of the sample in the manifest of the left side.

        Raises:
            ChunkUnreadableError: bytes of a row are missing or wrong.
            DecodeError: a row cannot be decoded, or lacks a column.
        """
        numbers = np.array(self._table.rows_of(ordinal), np.int64)
        columns = located(self._manifest, self._content, numbers)
        rows = [self._row(SampleLocation(*place)) for place in zip(*columns, strict=True)]
        if self._joined.recipe.how == "one":
            return rows[0] if rows else dict.fromkeys(self._names)
        names = self._names or list(dict.fromkeys(name for row in rows for name in row))
        return {name: [row.get(name) for row in rows] for name in names}

    def _row(self, place: SampleLocation) -> dict[str, object]:
        row = place.ordinal
        name = self._manifest.name(row)
        try:
            key, fields = self._opener.open(self._content.read(place), name)
            wanted = self._wanted(str(row) if key is None else key, fields)
            sample = self._decoder(str(key), [field for field, _ in wanted])
        except DecodeError as error:
            raise DecodeError(f"{error.message} (row {row} of the join with {self._joined.recipe.name})") from error
        found = {to: sample[field.name] for field, to in wanted}
        if self._columns is not None and _KEY in self._columns:
            found[self._columns[_KEY]] = str(row) if key is None else key
        return found

    def _wanted(self, key: str, fields: Sequence[Field]) -> list[tuple[Field, str]]:
        """The fields of a row that samples get, with their names there."""
        if self._columns is None:
            kept = set(self._kept([field.name for field in fields]))
            return [(field, field.name) for field in fields if field.name in kept]
        by_name = {field.name: field for field in fields}
        lacking = [name for name in self._columns if name not in by_name and name != _KEY]
        if lacking:
            raise DecodeError(
                f"columns={lacking[0]!r} is not a field of sample {key!r} of the right side, which has "
                f"{', '.join(by_name)}"
            )
        return [(by_name[name], to) for name, to in self._columns.items() if name != _KEY]

    def _kept(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in (_KEY, self._joined.recipe.key)]


def joined_schedule(schedule: EpochSchedule, joins: Sequence[tuple[OpenedJoin, tuple[int, int], int]]) -> EpochSchedule:
    """Adds the chunks of the right sides to a schedule.

    Args:
        schedule: of the left sides.
        joins: of each join, the range of chunk numbers of its left side, and the first one of its right side.
    """
    chunks, firsts, lasts = [schedule.chunk], [schedule.first], [schedule.last]
    passes = [] if schedule.passes is None else [schedule.passes]
    for joined, (start, stop), base in joins:
        mine = np.flatnonzero((schedule.chunk >= start) & (schedule.chunk < stop))
        owner, used = joined.table.uses_of(schedule.chunk[mine].astype(np.int64) - start)
        entry = mine[owner]
        number = np.zeros(len(entry), np.uint32) if schedule.passes is None else schedule.passes[entry]
        chunk, first, last, number = merged(used + base, schedule.first[entry], schedule.last[entry], number)
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


def merged(
    chunk: Integers, first: Integers, last: Integers, passes: npt.NDArray[np.uint32]
) -> tuple[Integers, Integers, Integers, npt.NDArray[np.uint32]]:
    """Joins uses of one chunk whose steps overlap to one use; the others stay apart, so that it may leave meanwhile."""
    if not len(chunk):
        return chunk, first, last, passes
    order = np.lexsort((first, chunk))
    chunk, first, last, passes = chunk[order], first[order], last[order], passes[order]
    # The last step of all uses before, of the same chunk: chunks are kept apart by more than there are steps.
    apart = chunk * (int(last.max()) + 2)
    until = np.maximum.accumulate(apart + last)
    opens = np.append(True, (apart + first)[1:] > until[:-1])
    begins = np.flatnonzero(opens)
    return chunk[begins], first[begins], np.maximum.reduceat(last, begins), passes[begins]
