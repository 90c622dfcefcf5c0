"""Windows: the rows of each sample, and the frames at their times. Pure; numpy only."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import ManifestError
from streamer.formats.failures import UnreadError, errors_of
from streamer.formats.reading import Reading
from streamer.manifest.model import ObjectRecord
from streamer.media.containers.clips import Pattern, Samples
from streamer.media.containers.entries import TrackCodec
from streamer.media.containers.frames import FrameTable
from streamer.media.containers.movie import VIDEO, read_movie
from streamer.media.containers.tables import Integers, Packets
from streamer.media.lerobot.episodes import Episode


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Samples of one episode that follow each other.

    Attributes:
        episode: number of the episode.
        first, stop: their rows.
        begin, end: the rows of the episode.
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
        """Their rows."""
        return np.arange(self.first, self.stop)

    def window(self, frames: Sequence[int]) -> Integers:
        """The rows of these time differences: (samples, frames), the first or last one instead of those outside."""
        found: Integers = np.clip(self.rows[:, None] + np.array(frames), self.begin, self.end - 1)
        return found

    def pads(self, frames: Sequence[int]) -> NDArray[np.bool_]:
        """Which rows of a window are outside of the episode."""
        asked = self.rows[:, None] + np.array(frames)
        outside: NDArray[np.bool_] = (asked < self.begin) | (asked >= self.end)
        return outside

    def shift(self, rows: int) -> Run:
        """The same in rows that are counted otherwise."""
        return Run(
            episode=self.episode,
            first=self.first + rows,
            stop=self.stop + rows,
            begin=self.begin + rows,
            end=self.end + rows,
        )


class CameraVideo(msgspec.Struct, frozen=True):
    """The index of a video."""

    record: ObjectRecord
    packets: Packets
    frames: FrameTable
    codec: TrackCodec
    timescale: int

    def frames_at(self, seconds: NDArray[np.float64], episode: int, tolerance: float) -> Integers:
        """The frames nearest to these times of the rows of an episode.

        Raises:
            ManifestError: one is further away than LeRobot allows.
        """
        known = self.frames.pts / self.timescale
        after = np.minimum(np.searchsorted(known, seconds), len(known) - 1)
        before = np.maximum(after - 1, 0)
        found: Integers = np.where(seconds - known[before] <= known[after] - seconds, before, after)
        distance = np.abs(known[found] - seconds)
        # This is true for NaN, too.
        if (far := ~(distance <= tolerance)).any():
            row = int(far.argmax())
            raise ManifestError(
                f"{self.record.url} has no frame at {seconds[row]:.4f} s, where episode {episode} has row {row}: the "
                f"nearest is at {known[found[row]]:.4f} s, {distance[row]:.2g} s away, and at most {tolerance:g} are "
                "allowed; allow more (tolerance_s=), leave the episode out (episodes=), or record it again",
                url=self.record.url,
            )
        return found

    def samples(self, rows: Integers) -> Samples:
        """The samples that have these frames: (samples, frames). One frame alone is an image."""
        start, stop = self.frames.start[rows].min(axis=1), self.frames.packet[rows].max(axis=1) + 1
        return Samples(
            pattern=Pattern(0 if rows.shape[1] == 1 else rows.shape[1]),
            rows=list(rows),
            draws=[],
            start=start,
            stop=stop,
        )


def read_camera(record: ObjectRecord) -> Reading[CameraVideo]:
    """Reads the index of a video; raises ManifestError."""
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
