"""Clips: which frames a sample has, and which packets their decoding needs. Pure; numpy only."""

from __future__ import annotations

import msgspec
import numpy as np

from streamer.formats.media.frames import Frames
from streamer.formats.media.tables import Integers, Packets

# Times are computed in floats: a frame is shown from its time on, and not a rounding error later.
_ROUNDING_TICKS = 1e-6


def drawn(numbers: Integers | int, rng: np.random.Generator | None) -> Integers:
    """Returns whole numbers below these: those that `rng` draws, or in the middle."""
    most = np.asarray(numbers)
    found: Integers = most // 2 if rng is None else rng.integers(most)
    return found


class Pattern(msgspec.Struct, frozen=True, array_like=True):
    """The frames of one clip, from its first one on.

    Attributes:
        count: number of frames; 0: one, which is a picture and no clip.
        every: one of so many frames; or, if it is 0,
        ticks: from one frame to the next: the frames shown at these times.
    """

    count: int
    every: int = 1
    ticks: float = 0.0

    def of(self, pts: Integers, firsts: Integers) -> Integers:
        """The frames of clips that begin with these frames: (clips, count). The last one is repeated behind the end.

        Args:
            pts: of all frames, ticks.
            firsts: the first frame of each clip.
        """
        steps = np.arange(self.count)
        if self.every:
            frames: Integers = np.minimum(firsts[:, None] + steps * self.every, len(pts) - 1)
            return frames
        times = pts[firsts][:, None] + np.floor(steps * self.ticks + _ROUNDING_TICKS).astype(np.int64)
        shown: Integers = np.searchsorted(pts, times, "right") - 1
        return shown

    def fits(self, pts: Integers, end: int) -> int:
        """How many frames clips may begin with: those behind them would need frames behind the end (ticks)."""
        if self.every:
            return max(0, len(pts) - (self.count - 1) * self.every)
        return int(np.searchsorted(pts, end - (self.count - 1) * self.ticks, "left"))


class Sampling(msgspec.Struct, frozen=True):
    """How a film is cut into samples.

    Attributes:
        pattern: of a clip, `ticks` in seconds.
        step: frames from the first frame of a clip to that of the next; or
        step_seconds: the same; both None: clips are one behind the other.
        start: see `Video`.
        clips: of a sample.
        repeats_last: whether clips may reach over the end.
    """

    pattern: Pattern
    step: int | None = None
    step_seconds: float | None = None
    start: str = "grid"
    clips: int = 1
    repeats_last: bool = False


class Samples(msgspec.Struct, frozen=True):
    """The samples of a track, in order.

    Attributes:
        pattern: of the clips that workers draw, `ticks` in ticks.
        rows: frames of each sample: of its clips, one after the other; if clips are drawn, those that they may have.
        draws: if clips are drawn, for each clip: place of its first possible beginning in the row, and their number;
            else empty.
        start: first packet of each sample.
        stop: behind its last packet.
    """

    pattern: Pattern
    rows: list[Integers]
    draws: list[Integers]
    start: Integers
    stop: Integers


def samples_of(sampling: Sampling, packets: Packets, frames: Frames, timescale: int) -> Samples:
    """Cuts a track into samples; those over a change of codec parameters are left out."""
    pattern = msgspec.structs.replace(sampling.pattern, ticks=sampling.pattern.ticks * timescale)
    end = int(frames.pts[-1] + frames.duration[-1]) if len(frames) else 0
    possible = len(frames) if sampling.repeats_last else pattern.fits(frames.pts, end)
    edges = _cells(sampling, pattern, frames, timescale)
    firsts = np.unique(edges[:-1][edges[:-1] < possible])
    if sampling.start == "key":
        keys = np.flatnonzero(frames.start == frames.packet)
        keys = keys[keys < possible]
        cells = np.searchsorted(edges, keys, "right")
        firsts = keys[np.unique(cells, return_index=True)[1]]
    firsts = firsts[: len(firsts) // sampling.clips * sampling.clips].reshape(-1, sampling.clips)
    if not len(firsts):
        return _with_packets(pattern, [], [], packets, frames)
    draws: list[Integers] = []
    if sampling.start == "random":
        stops = np.minimum(edges[np.searchsorted(edges, firsts, "right")], possible)
        ends = pattern.of(frames.pts, (stops - 1).ravel()).reshape(*stops.shape, -1).max(axis=(1, 2)) + 1
        rows = [np.arange(first, stop) for first, stop in zip(firsts[:, 0].tolist(), ends.tolist(), strict=True)]
        draws = list(np.stack([firsts - firsts[:, :1], stops - firsts], axis=-1))
    else:
        rows = list(pattern.of(frames.pts, firsts.ravel()).reshape(len(firsts), -1))
    return _with_packets(pattern, rows, draws, packets, frames)


def _cells(sampling: Sampling, pattern: Pattern, frames: Frames, timescale: int) -> Integers:
    """The frames with which the cells of the grid begin, and the number of frames."""
    step, seconds = sampling.step, sampling.step_seconds
    if step is None and seconds is None:
        step, seconds = pattern.count * pattern.every or None, pattern.count * sampling.pattern.ticks
    if step is not None:
        edges = np.arange(0, len(frames), step)
    else:
        assert seconds is not None
        last = (int(frames.pts[-1]) - int(frames.pts[0])) / timescale / seconds if len(frames) else -1
        times = np.arange(int(last) + 1) * (seconds * timescale) + _ROUNDING_TICKS
        edges = np.searchsorted(frames.pts, np.floor(times) + frames.pts[:1], "right") - 1
    return np.append(np.unique(edges), len(frames))


def _with_packets(
    pattern: Pattern, rows: list[Integers], draws: list[Integers], packets: Packets, frames: Frames
) -> Samples:
    if not rows:
        return Samples(pattern, [], [], np.empty(0, np.int64), np.empty(0, np.int64))
    flat, lengths = np.concatenate(rows), np.array(list(map(len, rows)))
    begins = np.cumsum(lengths) - lengths
    start = np.minimum.reduceat(frames.start[flat], begins)
    stop = np.maximum.reduceat(frames.packet[flat], begins) + 1
    changes = np.cumsum(np.diff(packets.entry, prepend=packets.entry[:1]) != 0)
    one_entry = changes[start] == changes[stop - 1]
    order = np.argsort(start, kind="stable")
    order = order[one_entry[order]].tolist()
    kept = [rows[number] for number in order]
    return Samples(pattern, kept, [draws[number] for number in order] if draws else [], start[order], stop[order])
