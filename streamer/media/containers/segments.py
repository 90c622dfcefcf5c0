"""Segments of films by a table: which film has which rows, and the frames of each. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from streamer.errors import ConfigError
from streamer.formats.base import Facts, FieldSpec
from streamer.formats.failures import check_table
from streamer.formats.names import base_name
from streamer.formats.reading import Asking
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Examine, Examined, LeftOut
from streamer.media.containers.clips import ROUNDING_TICKS, Cells, Pattern, Samples, Sampling, samples_of_cells
from streamer.media.containers.frames import Frames
from streamer.media.containers.tables import Integers, Packets

PATH = "path"
START = "start"
END = "end"
# Times in tables are rounded: frames shown for less are not of a segment.
_ROUNDING_SECONDS = 1e-3
# What the end of a segment may be behind the film: durations of containers are those of the longest track.
_MOST_BEHIND_SECONDS = 0.1


class SegmentTable(msgspec.Struct, frozen=True, array_like=True):
    """What a recoder makes of a table: columns of its rows, the names and kinds of the others, and their records."""

    paths: list[str]
    start: list[float]
    end: list[float]
    fields: list[FieldSpec]
    records: list[bytes]


class Segments(msgspec.Struct, frozen=True, array_like=True):
    """The rows of one film: their numbers in the table, seconds, and the records of their other columns."""

    table: str
    numbers: list[int]
    start: list[float]
    end: list[float]
    records: list[bytes]

    def samples(self, sampling: Sampling, packets: Packets, frames: Frames, timescale: int) -> Samples:
        """Returns the samples of a track: a clip of each segment that has room for it, all of which are in the film."""
        pattern = sampling.pattern_of(timescale)
        return samples_of_cells(sampling, pattern, self._cells(sampling, pattern, frames, timescale), packets, frames)

    def inside(self, sampling: Sampling, frames: Frames, timescale: int, film: str) -> tuple[Segments, list[LeftOut]]:
        """Returns the rows that are inside of the film, and the others."""
        length = _seconds_of(frames, timescale)
        start, end = np.array(self.start), np.array(self.end)
        behind_film = (end > length + _MOST_BEHIND_SECONDS) & (not sampling.repeats_last)
        is_outside = (start >= length) | behind_film
        if not is_outside.any():
            return self, []
        left_out = [
            LeftOut(
                f"{self.table}: row {self.numbers[row]} is of {start[row]:.3f} to {end[row]:.3f} s of {film}, which "
                f"ends at {length:.3f} s (policy='repeat_last' takes ends behind the film)"
            )
            for row in np.flatnonzero(is_outside).tolist()
        ]
        kept = np.flatnonzero(~is_outside).tolist()
        return (
            Segments(
                self.table,
                [self.numbers[row] for row in kept],
                [self.start[row] for row in kept],
                [self.end[row] for row in kept],
                [self.records[row] for row in kept],
            ),
            left_out,
        )

    def _cells(self, sampling: Sampling, pattern: Pattern, frames: Frames, timescale: int) -> Cells:
        pts = frames.pts
        length = _seconds_of(frames, timescale)
        start, end = np.array(self.start), np.array(self.end)
        first = _shown(pts, (start + _ROUNDING_SECONDS) * timescale)
        # Behind the times at which frames of a segment begin: the first one always does.
        bound = np.maximum(np.minimum(end - _ROUNDING_SECONDS, length) * timescale, pts[first] + 1)
        behind = np.searchsorted(pts, bound, "left")
        if sampling.start == "spread":
            parts = (np.arange(pattern.count) + 0.5) / pattern.count
            times = start[:, None] + (np.minimum(end, length) - start)[:, None] * parts
            chosen = np.clip(_shown(pts, times * timescale), first[:, None], behind[:, None] - 1)
            return Cells(first, behind, behind, chosen, self.records)
        stop = behind if sampling.repeats_last else _fitting(pattern, pts, behind, bound)
        cells = Cells(first, stop, behind, np.empty((len(first), 0), np.int64), self.records)
        return cells.taken(np.flatnonzero(stop > first))


def _seconds_of(frames: Frames, timescale: int) -> float:
    return float(frames.pts[-1] + frames.duration[-1]) / timescale if len(frames) else 0.0


def _shown(pts: Integers, ticks: np.ndarray) -> Integers:
    """The frames shown then, or the first one."""
    found: Integers = np.maximum(np.searchsorted(pts, ticks + ROUNDING_TICKS, "right") - 1, 0)
    return found


def _fitting(pattern: Pattern, pts: Integers, behind: Integers, bound: np.ndarray) -> Integers:
    """Behind the frames with which a clip may begin so that it is in its segment."""
    if pattern.every:
        return behind - (pattern.count - 1) * pattern.every
    found: Integers = np.searchsorted(pts, bound - (pattern.count - 1) * pattern.ticks, "left")
    return found


def read_table(name: str, segments: str, tables: Sequence[ObjectRecord]) -> Asking[tuple[ObjectRecord, SegmentTable]]:
    """Lets a recoder read the one of these objects that is meant.

    Raises:
        ConfigError: there is none, or several.
        ManifestError: it is empty.
    """
    end = f"/{segments.removeprefix('file://').lstrip('/')}"
    found = [record for record in tables if record.url == segments or record.url.endswith(end)]
    if len(found) != 1:
        raise ConfigError(
            f"segments={segments!r} names {len(found)} of the {len(tables)} objects that are no films; it is the path "
            "of a table below the url of the dataset, or a url that is given to the dataset beside that of the films",
            field="format",
        )
    check_table(found[0])
    made = yield Examine(found[0], name, {"segments": segments}, Facts(), found[0].url.encode(), reads=True)
    assert isinstance(made, Examined)
    return found[0], msgspec.msgpack.decode(made.records, type=SegmentTable)


def rows_of_films(
    url: str, table: SegmentTable, films: Sequence[ObjectRecord]
) -> tuple[dict[str, Segments], list[LeftOut]]:
    """Returns the rows of each film that has some, by its url, and the rows that are no segments of one.

    A path in the table begins in its folder, or is the end of one url alone.
    """
    known = {record.url for record in films}
    by_name: dict[str, list[str]] = {}
    for film in sorted(known):
        by_name.setdefault(base_name(film), []).append(film)
    folder = url.rpartition("/")[0]
    # By path: the url of its film, or why there is none.
    urls: dict[str, str | LeftOut] = {}
    found: dict[str, Segments] = {}
    left_out: list[LeftOut] = []
    for row, path in enumerate(table.paths):
        start, end = table.start[row], table.end[row]
        if path not in urls:
            urls[path] = _film_of(path, folder, known, by_name)
        if isinstance(url_of_film := urls[path], LeftOut):
            left_out.append(LeftOut(f"{url}: row {row} names {url_of_film.what}"))
            continue
        # Also of times that are missing, which are NaN.
        if not 0 <= start < end < math.inf:
            left_out.append(LeftOut(f"{url}: row {row} goes from {start} to {end} s; segments have 0 <= start < end"))
            continue
        rows = found.setdefault(url_of_film, Segments(url, [], [], [], []))
        rows.numbers.append(row)
        rows.start.append(start)
        rows.end.append(end)
        rows.records.append(table.records[row])
    return found, left_out


def _film_of(path: str, folder: str, known: set[str], by_name: Mapping[str, list[str]]) -> str | LeftOut:
    if path in known:
        return path
    if (beside := f"{folder}/{path.removeprefix('./')}") in known:
        return beside
    found = [film for film in by_name.get(base_name(path), ()) if film.endswith(f"/{path.lstrip('./')}")]
    if len(found) != 1:
        which = "no film" if not found else f"{len(found)} films"
        return LeftOut(
            f"{path!r}, which is {which} of the {len(known)} of the dataset; paths begin in the folder of it"
        )
    return found[0]
