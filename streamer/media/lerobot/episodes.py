"""Finds the episodes of LeRobot: which rows of which file they are, and which frames of which videos.

The format `LeRobot` surveys and indexes with it (`format.py`), and blocks and recoder take windows of rows by `Run`.
`read_camera` asks for bytes by `yield` (`formats/reading.py`), so there is no I/O here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import ConfigError, ManifestError
from streamer.formats.failures import UnreadError, errors_of
from streamer.formats.reading import Reading
from streamer.manifest.model import ObjectRecord
from streamer.media.containers.clips import FrameTable, Pattern, Samples
from streamer.media.containers.entries import TrackCodec
from streamer.media.containers.movie import VIDEO, read_movie
from streamer.media.containers.tables import Integers, Packets
from streamer.media.lerobot.info import EPISODE, TASK, Info

# A row of a table in meta/.
Row: TypeAlias = Mapping[str, Any]

# Columns of meta/episodes that are read, by their names or the beginnings of these.
EPISODE_COLUMNS = (EPISODE, "length", "dataset_from_index", "data/", "videos/")
# The column with the text of a task may have these names; pandas names an index without a name in the second way.
_TASK_NAMES = ("task", "__index_level_0__")
TASK_COLUMNS = (TASK, *_TASK_NAMES)


class Episode(msgspec.Struct, frozen=True, array_like=True):
    """One episode.

    Attributes:
        number: its episode_index.
        row: number of its first row in its file of rows.
        length: number of its rows.
        videos: url of the video of each camera, and the time of the episode's first row there, seconds.
    """

    number: int
    row: int
    length: int
    videos: list[tuple[str, float]]


class File(msgspec.Struct, frozen=True, array_like=True):
    """A file of rows.

    Attributes:
        rows: number of all rows of the file, by meta/episodes.
        episodes: the wanted episodes of the file.
    """

    rows: int
    episodes: list[Episode]

    @property
    def videos(self) -> set[str]:
        """Urls of the videos of its episodes."""
        return {url for episode in self.episodes for url, _ in episode.videos}


def files_of(
    rows: Sequence[Row], info: Info, root: str, cameras: Sequence[str], wanted: Sequence[int] | None
) -> dict[str, File]:
    """Returns the files that have wanted episodes, by url, in the order of the episodes.

    Args:
        rows: rows of meta/episodes.
        info: content of meta/info.json.
        root: url of the data set, ending in a slash.
        cameras: names of the cameras that samples have.
        wanted: numbers of episodes, or None for all.

    Raises:
        ManifestError: the rows contradict each other, or lack columns.
        ConfigError: there is no episode of a wanted number.
    """
    with _errors_of(f"{root}meta/episodes"):
        lengths = {int(row[EPISODE]): int(row["length"]) for row in rows}
        chosen = lengths.keys() if wanted is None else set(wanted)
        if unknown := chosen - lengths.keys():
            raise ConfigError(f"episodes={sorted(unknown)}: there are {len(lengths)} episodes", field="format")
        if len(lengths) < len(rows) or min(lengths.values(), default=0) < 0:
            raise ValueError(f"{len(rows)} rows with {len(lengths)} numbers, the shortest of {min(lengths.values())}")
        ordered = sorted(rows, key=lambda row: (row.get("dataset_from_index", 0), row[EPISODE]))
        files: dict[str, File] = {}
        for url, members in groupby(
            ordered, lambda row: _url(root=root, info=info, row=row, place="data", template=info.data_path)
        ):
            if url in files:
                raise ValueError(f"episodes of {url} are not one behind the other")
            at = 0
            kept = []
            for row in members:
                number = int(row[EPISODE])
                if number in chosen and lengths[number]:
                    videos = [_find_video(root, info, row, camera) for camera in cameras]
                    kept.append(Episode(number, at, lengths[number], videos))
                at += lengths[number]
            files[url] = File(at, kept)
    return {url: file for url, file in files.items() if file.episodes}


def tasks_of(rows: Sequence[Row], root: str) -> dict[int, str]:
    """Returns the texts of tasks by number.

    Args:
        rows: rows of meta/tasks.
        root: url of the data set, for errors.

    Raises:
        ManifestError: the rows lack columns.
    """
    with _errors_of(f"{root}meta/tasks"):
        return {int(row[TASK]): next(str(row[name]) for name in _TASK_NAMES if name in row) for row in rows}


def _url(root: str, info: Info, row: Row, place: str, template: str, **more: object) -> str:
    """Returns the url of a file of an episode.

    Args:
        root: url of the data set.
        info: content of meta/info.json.
        row: row of the episode in meta/episodes.
        place: beginning of the names of the columns that have the numbers of the file.
        template: template of the file's name.
        more: further values for the template.
    """
    file = {name: row[f"{place}/{name}"] for name in ("chunk_index", "file_index") if f"{place}/{name}" in row}
    return root + info.path(template, row[EPISODE], file | more)


def _find_video(root: str, info: Info, row: Row, camera: str) -> tuple[str, float]:
    """Returns the url of the video of an episode, and the time of its first row there, seconds."""
    place = f"videos/{camera}"
    url = _url(root=root, info=info, row=row, place=place, template=info.video_path or "", video_key=camera)
    # A video of v2 has one episode.
    return url, float(row.get(f"{place}/from_timestamp", 0.0))


@contextmanager
def _errors_of(url: str) -> Iterator[None]:
    """Turns errors over rows that lack a column, or have values of another type, into a ManifestError about `url`."""
    try:
        yield
    except ConfigError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, StopIteration) as error:
        raise ManifestError(
            f"{url} is not as LeRobot writes it ({type(error).__name__}: {error}); write it again", url=url
        ) from error


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Samples of one episode that follow each other; each sample is a row.

    Attributes:
        episode: number of the episode.
        first, stop: numbers of their rows, `[first, stop)`.
        begin, end: numbers of the rows of the whole episode, `[begin, end)`.
    """

    episode: int
    first: int
    stop: int
    begin: int
    end: int

    @classmethod
    def from_episode(cls, episode: Episode) -> Run:
        """Returns the samples of a whole episode."""
        stop = episode.row + episode.length
        return cls(episode=episode.number, first=episode.row, stop=stop, begin=episode.row, end=stop)

    @property
    def rows(self) -> Integers:
        """Numbers of the rows, (samples,)."""
        return np.arange(self.first, self.stop)

    def window(self, frames: Sequence[int]) -> Integers:
        """Returns the rows of the windows of all samples, (samples, frames).

        Outside of the episode its first or last row is taken.

        Args:
            frames: distances in frames from a row to those of its window.
        """
        found: Integers = np.clip(self.rows[:, None] + np.array(frames), self.begin, self.end - 1)
        return found

    def pads(self, frames: Sequence[int]) -> NDArray[np.bool_]:
        """Returns which rows of the windows are outside of the episode: (samples, frames), see `window`."""
        asked = self.rows[:, None] + np.array(frames)
        outside: NDArray[np.bool_] = (asked < self.begin) | (asked >= self.end)
        return outside

    def shift(self, rows: int) -> Run:
        """Returns the same samples with `rows` added to all numbers of rows."""
        return Run(
            episode=self.episode,
            first=self.first + rows,
            stop=self.stop + rows,
            begin=self.begin + rows,
            end=self.end + rows,
        )


class CameraVideo(msgspec.Struct, frozen=True):
    """The index of a video.

    Attributes:
        record: the file.
        packets: packets of its track.
        frames: frames of its track.
        codec: codec parameters of the track.
        timescale: number of ticks in a second.
    """

    record: ObjectRecord
    packets: Packets
    frames: FrameTable
    codec: TrackCodec
    timescale: int

    def frames_at(self, seconds: NDArray[np.float64], episode: int, tolerance_seconds: float) -> Integers:
        """Returns the numbers of the frames nearest to these times, (rows,).

        Args:
            seconds: when each row of the episode is shown, from the beginning of this video, which may have several.
            episode: number of the episode, for errors.
            tolerance_seconds: seconds that a frame may be away from the time at most.

        Raises:
            ManifestError: a frame is further away.
        """
        known = self.frames.pts / self.timescale
        after = np.minimum(np.searchsorted(known, seconds), len(known) - 1)
        before = np.maximum(after - 1, 0)
        found: Integers = np.where(seconds - known[before] <= known[after] - seconds, before, after)
        distance = np.abs(known[found] - seconds)
        # This is true for NaN, too.
        if (far := ~(distance <= tolerance_seconds)).any():
            row = int(far.argmax())
            raise ManifestError(
                f"{self.record.url} has no frame at {seconds[row]:.4f} s, where episode {episode} has row {row}: the "
                f"nearest is at {known[found[row]]:.4f} s, {distance[row]:.2g} s away, "
                f"and at most {tolerance_seconds:g} are allowed; allow more (tolerance_s=), "
                "leave the episode out (episodes=), or record it again",
                url=self.record.url,
            )
        return found

    def samples(self, rows: Integers) -> Samples:
        """Returns the samples that have the frames `rows`, (samples, frames). A sample of one frame is an image."""
        start = self.frames.start[rows].min(axis=1)
        stop = self.frames.packet[rows].max(axis=1) + 1
        return Samples(
            pattern=Pattern(0 if rows.shape[1] == 1 else rows.shape[1]),
            rows=list(rows),
            draws=[],
            start=start,
            stop=stop,
        )


def read_camera(record: ObjectRecord) -> Reading[CameraVideo]:
    """Reads the index of a video of a camera.

    Raises:
        ManifestError: the file is damaged, has no frames, or is of a kind that is not read.
    """
    with errors_of(record, "copy it anew"):
        movie = yield from read_movie(record)
        track = movie.track(VIDEO)
        packets = movie.packets(track)
        frames = FrameTable.from_packets(packets)
        if not len(frames):
            raise UnreadError("has no frames")
        if len(entries := np.unique(packets.entry)) > 1:
            raise UnreadError(f"has {len(entries)} sets of codec parameters; write it with one encoder")
        return CameraVideo(
            record=record,
            packets=packets,
            frames=frames,
            codec=track.codec(int(entries[0])),
            timescale=track.timescale,
        )
