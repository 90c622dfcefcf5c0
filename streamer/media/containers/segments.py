"""Finds the segments of videos that a table names (`Video(segments=)`): the rows of each video, and their frames.

The format `Video` uses it in survey and index (`media/video/format.py`). There is no I/O here: `read_table` asks a
recoder by `yield`, which reads the table by `segment_table.py`.
"""

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
from streamer.media.containers.clips import (
    ROUNDING_TICKS,
    Cells,
    FrameTable,
    Samples,
    Sampling,
    samples_of_cells,
)
from streamer.media.containers.tables import Integers, Packets

PATH = "path"
START = "start"
END = "end"
# Times in tables are rounded, so a frame that a segment shows for less than this is not part of it.
_ROUNDING_SECONDS = 1e-3
# The end of a segment may be so far behind that of the video: durations of containers are those of the longest track.
_MAX_BEHIND_SECONDS = 0.1


class SegmentTable(msgspec.Struct, frozen=True, array_like=True):
    """A table of segments as a recoder has read it, with an entry for each row; see `segment_table.read_segments`.

    Attributes:
        paths: path of the video of each row.
        start, end: when each segment begins and ends, seconds. NaN stands for a value that is missing or no time.
        fields: names and kinds of the other columns.
        records: the values of the other columns of each row, as `formats.table.records` has them.
    """

    paths: list[str]
    start: list[float]
    end: list[float]
    fields: list[FieldSpec]
    records: list[bytes]


class Segments(msgspec.Struct, frozen=True, array_like=True):
    """The rows of a table that are segments of one video.

    Attributes:
        table: url of the table.
        numbers: numbers of the rows in the table.
        start, end: when each segment begins and ends, seconds of the video.
        records: the values of the other columns of each row.
    """

    table: str
    numbers: list[int]
    start: list[float]
    end: list[float]
    records: list[bytes]

    def samples(self, sampling: Sampling, packets: Packets, frames: FrameTable, timescale: int) -> Samples:
        """Returns the samples of a track: a clip of each segment that is long enough for one.

        Length does not count where frames are spread or the last one is repeated. With start="key" segments without a
        key frame where a clip may begin have none. They must be inside of the video, as `inside` returns them.

        Args:
            sampling: how segments are cut.
            packets: packets of the track.
            frames: frames of the track.
            timescale: number of ticks in a second.
        """
        pattern = sampling.pattern_of(timescale)
        pts = frames.pts
        length = _seconds_of(frames, timescale)
        start, end = np.array(self.start), np.array(self.end)
        first = _find_shown(pts, (start + _ROUNDING_SECONDS) * timescale)
        # Frames of a segment begin before `bound`. The first one always counts.
        bound = np.maximum(np.minimum(end - _ROUNDING_SECONDS, length) * timescale, pts[first] + 1)
        behind = np.searchsorted(pts, bound, "left")
        if sampling.start == "spread":
            parts = (np.arange(pattern.count) + 0.5) / pattern.count
            times = start[:, None] + (np.minimum(end, length) - start)[:, None] * parts
            chosen = np.clip(_find_shown(pts, times * timescale), first[:, None], behind[:, None] - 1)
            cells = Cells(first=first, stop=behind, end=behind, spread=chosen, extra=self.records)
        else:
            # Clips that begin before frame `stop` are inside of their segment.
            if sampling.repeats_last:
                stop = behind
            elif pattern.every:
                stop = behind - (pattern.count - 1) * pattern.every
            else:
                stop = np.searchsorted(pts, bound - (pattern.count - 1) * pattern.ticks, "left")
            nothing = np.empty((len(first), 0), np.int64)
            cells = Cells(first=first, stop=stop, end=behind, spread=nothing, extra=self.records)
            cells = cells.take(np.flatnonzero(stop > first))
        return samples_of_cells(sampling=sampling, pattern=pattern, cells=cells, packets=packets, frames=frames)

    def inside(
        self, sampling: Sampling, frames: FrameTable, timescale: int, video: str
    ) -> tuple[Segments, list[LeftOut]]:
        """Returns the rows that are inside of a video, and why each of the others is left out.

        Args:
            sampling: how segments are cut. If it repeats last frames, segments may end after the video.
            frames: frames of the video.
            timescale: number of ticks in a second.
            video: url of the video, for messages.
        """
        length = _seconds_of(frames, timescale)
        start, end = np.array(self.start), np.array(self.end)
        behind_video = (end > length + _MAX_BEHIND_SECONDS) & (not sampling.repeats_last)
        is_outside = (start >= length) | behind_video
        if not is_outside.any():
            return self, []
        left_out = [
            LeftOut(
                f"{self.table}: row {self.numbers[row]} is of {start[row]:.3f} to {end[row]:.3f} s of {video}, which "
                f"ends at {length:.3f} s (at_end='repeat_last' takes ends behind the video)"
            )
            for row in np.flatnonzero(is_outside).tolist()
        ]
        kept = np.flatnonzero(~is_outside).tolist()
        return (
            Segments(
                table=self.table,
                numbers=[self.numbers[row] for row in kept],
                start=[self.start[row] for row in kept],
                end=[self.end[row] for row in kept],
                records=[self.records[row] for row in kept],
            ),
            left_out,
        )


def _seconds_of(frames: FrameTable, timescale: int) -> float:
    return float(frames.pts[-1] + frames.duration[-1]) / timescale if len(frames) else 0.0


def _find_shown(pts: Integers, ticks: np.ndarray) -> Integers:
    """Returns the frame that is shown at each of these times, or the first frame for times before it."""
    found: Integers = np.maximum(np.searchsorted(pts, ticks + ROUNDING_TICKS, "right") - 1, 0)
    return found


def read_table(name: str, segments: str, tables: Sequence[ObjectRecord]) -> Asking[tuple[ObjectRecord, SegmentTable]]:
    """Finds the table of segments among the objects and lets a recoder read it; returns object and table.

    Args:
        name: name of the format, whose recoder reads it.
        segments: path of the table below the url of the dataset, or its url.
        tables: the objects of the dataset that are no videos.

    Raises:
        ConfigError: the path names none of these objects, or several, or a library is not installed.
        ManifestError: the table is empty, or cannot be read.
    """
    end = f"/{segments.removeprefix('file://').lstrip('/')}"
    found = [record for record in tables if record.url == segments or record.url.endswith(end)]
    if len(found) != 1:
        raise ConfigError(
            f"segments={segments!r} names {len(found)} of the {len(tables)} objects that are no videos; it is the path "
            "of a table below the url of the dataset, or a url that is given to the dataset beside that of the videos",
            field="format",
        )
    check_table(found[0])
    made = yield Examine(
        object=found[0],
        format=name,
        options={"segments": segments},
        facts=Facts(),
        hint=found[0].url.encode(),
        reads=True,
    )
    assert isinstance(made, Examined)
    return found[0], msgspec.msgpack.decode(made.records, type=SegmentTable)


def assign_rows(
    url: str, table: SegmentTable, videos: Sequence[ObjectRecord]
) -> tuple[dict[str, Segments], list[LeftOut]]:
    """Returns the rows of each video that has some, by its url, and for each other row why it is left out.

    A path in the table is a url, or a path below the folder of the table, or the end of the url of just one video.

    Args:
        url: url of the table.
        table: its rows.
        videos: the videos of the dataset.
    """
    known = {record.url for record in videos}
    by_name: dict[str, list[str]] = {}
    for video in sorted(known):
        by_name.setdefault(base_name(video), []).append(video)
    folder = url.rpartition("/")[0]
    # The url of the video of each path, or why there is none.
    urls: dict[str, str | LeftOut] = {}
    found: dict[str, Segments] = {}
    left_out: list[LeftOut] = []
    for row, path in enumerate(table.paths):
        start, end = table.start[row], table.end[row]
        if path not in urls:
            urls[path] = _video_of(path, folder, known, by_name)
        if isinstance(video_url := urls[path], LeftOut):
            left_out.append(LeftOut(f"{url}: row {row} names {video_url.what}"))
            continue
        # Times that are missing are NaN, and refused, too.
        if not 0 <= start < end < math.inf:
            left_out.append(LeftOut(f"{url}: row {row} goes from {start} to {end} s; segments have 0 <= start < end"))
            continue
        rows = found.setdefault(video_url, Segments(table=url, numbers=[], start=[], end=[], records=[]))
        rows.numbers.append(row)
        rows.start.append(start)
        rows.end.append(end)
        rows.records.append(table.records[row])
    return found, left_out


def _video_of(path: str, folder: str, known: set[str], by_name: Mapping[str, list[str]]) -> str | LeftOut:
    """Returns the url of the video that a path in a table names; if there is no such video, the end of a message."""
    if path in known:
        return path
    if (beside := f"{folder}/{path.removeprefix('./')}") in known:
        return beside
    found = [video for video in by_name.get(base_name(path), ()) if video.endswith(f"/{path.lstrip('./')}")]
    if len(found) != 1:
        which = "no video" if not found else f"{len(found)} videos"
        return LeftOut(
            f"{path!r}, which is {which} of the {len(known)} of the dataset; paths begin in the folder of it"
        )
    return found[0]
