"""Makes the records of LeRobot in a recoder, of rows and packets, and reads tables of meta/ there.

The format `LeRobot` names these recoders (`format.py`). They need pyarrow.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamer.errors import RecodeError
from streamer.formats.base import Records
from streamer.formats.table.writer import Column, catch_decode_errors, join, make_bytes_column, write_records
from streamer.media.containers.recode import ClipRecoder
from streamer.media.containers.tables import Integers
from streamer.media.lerobot.blocks import EpisodeHint
from streamer.media.lerobot.episodes import Run
from streamer.media.lerobot.info import EPISODE, FRAME, TASK, TIME, TOLERANCE, Notes, lengths_of
from streamer.tables.parquet.recode import ParquetRecoder

_NO_NULLS = np.empty(0, bool)


class TableRecoder:
    """Reads a Parquet table of meta/ for the survey: makes one record, with its rows as MessagePack."""

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Reads a table; see `Recoder.recode`. The hint has the names of columns, or the beginnings of these.

        Raises:
            RecodeError: the table cannot be read.
        """
        with catch_decode_errors(content, samples, "Parquet"):
            wanted = tuple(msgspec.msgpack.decode(hint, type=list[str]))
            file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(content)))
            names = [name for name in file.schema_arrow.names if name.startswith(wanted)]
            rows = msgspec.msgpack.encode(file.read(columns=names, use_threads=False).to_pylist())
        return Records([rows], np.array([len(rows)], np.int64))


class LeRobotRecoder:
    """Makes records of frames: the windows of rows, and the heads and packets of cameras. Samples share packets.

    Args:
        notes: facts about the data set.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._rows = ParquetRecoder(notes.rows)
        self._videos = ClipRecoder()

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Makes the records of a block; see `Recoder.recode`. The hint is an `EpisodeHint`.

        Raises:
            RecodeError: the hint is damaged or does not fit the bytes, rows contradict the episodes of the index, or
                packets or rows are damaged.
        """
        try:
            described = msgspec.msgpack.decode(hint, type=EpisodeHint)
        except ValueError as error:
            raise RecodeError(f"the hint of a block is damaged: {error}") from error
        pieces = []
        at = 0
        for piece in (*described.rows, *described.videos):
            pieces.append(content[at : at + piece.length])
            at += piece.length
        if at != len(content) or sum(span.stop - span.first for span in described.spans) != samples:
            raise RecodeError(f"a hint of {at} bytes, which are not {samples} samples of {len(content)} bytes")
        rows = self._windows(pieces[: len(described.rows)], described, samples)
        videos = [
            self._videos.recode(content, piece.samples, piece.hint)
            for piece, content in zip(described.videos, pieces[len(described.rows) :], strict=True)
        ]
        return _join_records(rows, videos, samples)

    def _windows(self, pieces: Sequence[memoryview], described: EpisodeHint, samples: int) -> Records:
        """Returns records of the rows of all samples, with windows, padding and task.

        Args:
            pieces: bytes of each piece of rows.
            described: hint of the block.
            samples: number of samples.

        Raises:
            RecodeError: rows are damaged or contradict the index, or have tasks that are not known.
        """
        read = [
            self._rows.columns(content, piece.samples, piece.hint)
            for content, piece in zip(pieces, described.rows, strict=True)
        ]
        columns = dict(
            zip((spec.name for spec in self._notes.rows.fields), map(_one, zip(*read, strict=True)), strict=True)
        )
        total = sum(piece.samples for piece in described.rows)
        if any(not 0 <= span.first < span.stop <= total for span in described.spans):
            raise RecodeError(f"a hint of samples outside of its {total} rows")
        self._check(columns, described.spans)
        with catch_decode_errors(memoryview(b""), samples, "LeRobot"):
            found = [self._column(name, column, described.spans) for name, column in columns.items()]
            pads = [
                Column(np.concatenate([span.pads(window) for span in described.spans]))
                for window in self._notes.windows.values()
            ]
            numbers = columns[TASK].values[_rows(described.spans)].tolist()
            if unknown := set(numbers) - self._notes.tasks.keys():
                raise RecodeError(f"rows of the tasks {sorted(unknown)}, which meta/tasks does not have")
            tasks = make_bytes_column([self._notes.tasks[number].encode() for number in numbers])
            return write_records(self._notes.fields(), [*found, *pads, tasks], samples)

    def _check(self, columns: dict[str, Column], spans: Sequence[Run]) -> None:
        """Raises RecodeError unless rows have the numbers and times that the index has for their episodes."""
        for span in spans:
            frames = np.arange(span.first - span.begin, span.stop - span.begin)
            numbers, places = (columns[name].values[span.rows] for name in (EPISODE, FRAME))
            times = columns[TIME].values[span.rows].astype(np.float64)
            # At most a quarter of a frame (or the usual tolerance) is allowed, so that the time of a row is nearer to
            # its own frame than to another one.
            tolerance = max(min(self._notes.tolerance, 0.25 / self._notes.fps), min(TOLERANCE, self._notes.tolerance))
            # Times are float32, so that later ones differ by more.
            near = np.abs(times - frames / self._notes.fps) <= tolerance + 1e-6 * frames / self._notes.fps
            if not ((numbers == span.episode) & (places == frames) & near).all():
                raise RecodeError(
                    f"rows that should be frames {frames[0]} to {frames[-1]} of episode {span.episode} at "
                    f"{self._notes.fps:g} frames a second are others: {EPISODE}, {FRAME} or {TIME} contradicts "
                    f"meta/episodes by more than {tolerance:g} s; allow more (tolerance_s=), or leave the episode out "
                    "(episodes=)"
                )

    def _column(self, name: str, column: Column, spans: Sequence[Run]) -> Column:
        """Returns the values of a feature for all samples: of their rows, or of their windows if it has a window.

        Raises:
            RecodeError: the feature has a window, and rows without a value.
        """
        if (window := self._notes.windows.get(name)) is None:
            rows = _rows(spans)
            nulls = None if column.nulls is None else column.nulls[rows]
            if column.lengths is None:
                return Column(column.values[rows], nulls=nulls)
            edges = np.append(0, np.cumsum(column.lengths))
            pairs = zip(edges[rows].tolist(), edges[rows + 1].tolist(), strict=True)
            values = [column.values[start:stop] for start, stop in pairs]
            return Column(np.concatenate(values), column.lengths[rows], nulls)
        if column.nulls is not None:
            raise RecodeError(f"feature {name!r} has rows without a value, which have no window", field=name)
        return Column(column.values[np.concatenate([span.window(window) for span in spans])])


def _rows(spans: Sequence[Run]) -> Integers:
    return np.concatenate([span.rows for span in spans])


def _one(columns: Sequence[Column]) -> Column:
    """Joins the columns of a feature from several pieces of rows."""
    # Nested values of a piece are joined to one buffer first, so that single rows can be taken.
    joined = []
    for column in columns:
        whole = column
        if column.pieces:
            _, _, content = join(column.pieces).buffers()
            whole = msgspec.structs.replace(column, values=np.frombuffer(content or b"", np.uint8), pieces=())
        joined.append(whole)
    columns = joined
    values = np.concatenate([column.values for column in columns])
    fixed = columns[0].lengths is None
    lengths = None if fixed else np.concatenate([c.lengths for c in columns if c.lengths is not None])
    if all(column.nulls is None for column in columns):
        return Column(values, lengths)
    counts = [len(c.values if c.lengths is None else c.lengths) for c in columns]
    nulls = [np.zeros(n, bool) if c.nulls is None else c.nulls for c, n in zip(columns, counts, strict=True)]
    return Column(values, lengths, np.concatenate(nulls))


def _join_records(rows: Records, videos: Sequence[Records], samples: int) -> Records:
    """Joins records of rows and of cameras to those of samples; see `LeRobotOpener` for their form.

    Args:
        rows: records of the rows.
        videos: records of each camera, whose shared parts become parts of the block one camera after the other.
        samples: number of samples.
    """
    begin = lengths_of(len(videos))
    edges = np.append(0, np.cumsum(rows.lengths)).tolist()
    content = memoryview(b"".join(bytes(part) for part in rows.parts))
    sizes = []
    for video in videos:
        ends = np.append(0, np.cumsum(video.part_lengths))
        sizes.append((ends[video.part_ranges[:, 0, 1]] - ends[video.part_ranges[:, 0, 0]]).tolist())
    heads = []
    for number in range(samples):
        row = content[edges[number] : edges[number + 1]]
        cameras = [bytes(video.parts[number]) for video in videos]
        lengths = [len(row), *map(len, cameras), *(size[number] for size in sizes)]
        heads.append(b"".join([begin.pack(*lengths), row, *cameras]))
    lengths_ = np.fromiter(map(len, heads), np.int64, samples)
    if not videos:
        return Records(heads, lengths_)
    before = np.append(0, np.cumsum([len(video.part_lengths) for video in videos])).tolist()
    return Records(
        parts=heads,
        lengths=lengths_,
        shared_parts=[part for video in videos for part in video.shared_parts],
        part_lengths=np.concatenate([video.part_lengths for video in videos]),
        part_ranges=np.concatenate(
            [video.part_ranges + at for video, at in zip(videos, before[:-1], strict=True)], axis=1
        ),
    )
