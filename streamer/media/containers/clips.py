"""Chooses which frames of a video track each sample has (its clips), and which packets must be read to decode them.

The indexes of `Video` (`media/video/format.py`) and LeRobot (`media/lerobot/episodes.py`) cut tracks with it. Records
and decoders use `Pattern` and `draw_numbers`, because workers draw clips. There is no I/O here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from streamer.formats.failures import DamagedError
from streamer.media.containers.tables import Integers, Packets

# Times are computed in floats: a frame is shown from its time on, and not a rounding error later.
ROUNDING_TICKS = 1e-6


class FrameTable(msgspec.Struct, frozen=True):
    """The frames of a track in the order shown.

    Attributes:
        packet: number of the packet of each frame, in the order stored.
        pts: the time at which each frame is shown, ticks.
        duration: the time until the next one is shown, ticks.
        start: number of the key packet from which each frame is decoded.
        ascends: whether the times of the packets, as stored, only ascend. They may be those of decoding then, while
            frames are shown in another order.
    """

    packet: Integers
    pts: Integers
    duration: Integers
    start: Integers
    ascends: bool = False

    def __len__(self) -> int:
        return len(self.packet)

    @classmethod
    def from_packets(cls, packets: Packets) -> FrameTable:
        """Finds the frames of a track.

        A frame is decoded from the last key packet that is stored before it and not shown after it. For in an open GOP
        the frames that are shown before its key frame are stored after it, and refer to the GOP before. Packets without
        a byte, which stand for dropped frames, are no frames. Packets that are stored or shown before the first key
        packet are none either, as for FFmpeg.

        Raises:
            DamagedError: two frames are shown at one time, or there are frames, but none behind a key packet.
        """
        filled = packets.size > 0
        keys = np.flatnonzero(packets.key & filled)
        candidates = np.flatnonzero(packets.shown & filled)
        shown = candidates[:0]
        if len(keys):
            shown = candidates[(candidates >= keys[0]) & (packets.pts[candidates] >= packets.pts[keys[0]])]
        if len(candidates) and not len(shown):
            raise DamagedError("frames without a key frame before them")
        order = shown[np.argsort(packets.pts[shown], kind="stable")]
        pts = packets.pts[order]
        if (same := np.flatnonzero(np.diff(pts) == 0)).size:
            raise DamagedError(f"two frames at {pts[same[0]]} ticks")
        duration = np.diff(pts, append=pts[-1:] + packets.duration[order[-1:]])
        at = np.searchsorted(keys, order, "right") - 1
        while (later := packets.pts[keys[at]] > pts).any():
            at[later] -= 1
        ascends = bool((np.diff(packets.pts[filled]) >= 0).all())
        return cls(packet=order, pts=pts, duration=duration, start=keys[at], ascends=ascends)


def draw_numbers(numbers: Integers | int, rng: np.random.Generator | None) -> Integers:
    """Returns for each of these numbers a whole number below it, from 0 on, in the same shape.

    Args:
        numbers: the bounds, at least 1.
        rng: draws the results. None takes half of each bound, rounded down.
    """
    bounds = np.asarray(numbers)
    found: Integers = bounds // 2 if rng is None else rng.integers(bounds)
    return found


class Pattern(msgspec.Struct, frozen=True, array_like=True):
    """The frames of one clip, from its first one on.

    Attributes:
        count: number of frames. 0 stands for a sample of one image, as LeRobot has them. `find_frames` and `fits` are
            not called for it.
        every: frames from one frame of the clip to the next. If it is 0, `ticks` says that.
        ticks: time from one frame of the clip to the next. The frame shown at each of these times is taken.
    """

    count: int
    every: int = 1
    ticks: float = 0.0

    def find_frames(self, pts: Integers, firsts: Integers) -> Integers:
        """Returns the numbers of the frames of clips: (clips, count). Behind the end the last frame is repeated.

        Args:
            pts: times of all frames, ticks.
            firsts: number of the first frame of each clip.
        """
        steps = np.arange(self.count)
        if self.every:
            frames: Integers = np.minimum(firsts[:, None] + steps * self.every, len(pts) - 1)
            return frames
        times = pts[firsts][:, None] + np.floor(steps * self.ticks + ROUNDING_TICKS).astype(np.int64)
        shown: Integers = np.searchsorted(pts, times, "right") - 1
        return shown

    def fits(self, pts: Integers, end: int) -> int:
        """Returns the number of frames with which a clip may begin without passing the end, the first ones.

        Args:
            pts: times of all frames, ticks.
            end: when the last frame ends, ticks. It is not used if `every` is set.
        """
        if self.every:
            return max(0, len(pts) - (self.count - 1) * self.every)
        return int(np.searchsorted(pts, end - (self.count - 1) * self.ticks, "left"))


class Sampling(msgspec.Struct, frozen=True):
    """How a video is cut into samples, as the options of `Video` say it.

    Attributes:
        pattern: the frames of a clip; its `ticks` are seconds here.
        step: frames from the first frame of a clip to that of the next. If it and `step_seconds` are None, a clip
            begins where the one before it ends.
        step_seconds: seconds from the first frame of a clip to that of the next, instead of `step`.
        start: says with which frame of its cell a clip begins: "grid" with the first one, "key" with the first key
            frame, "random" with any, which the worker draws. "spread", for segments only, spreads the frames of the
            clip over its segment.
        clips: number of clips of a sample.
        repeats_last: whether clips may reach over the end, where their last frame is repeated.
    """

    pattern: Pattern
    step: int | None = None
    step_seconds: float | None = None
    start: str = "grid"
    clips: int = 1
    repeats_last: bool = False

    def pattern_of(self, timescale: int) -> Pattern:
        """Returns the pattern with its `ticks` in ticks, of which a second has `timescale`."""
        return msgspec.structs.replace(self.pattern, ticks=self.pattern.ticks * timescale)


class Samples(msgspec.Struct, frozen=True):
    """The samples of a track, in the order of the packets with which they begin.

    Attributes:
        pattern: the frames of a clip, for the workers that draw clips, with its `ticks` in ticks of the track.
        rows: numbers of the frames of each sample: those of its clips one after the other, or all that its clips may
            have if workers draw them.
        draws: int64 (clips, 2) of each sample, if workers draw clips: the place in its row where a clip may begin
            first, and the number of places where it may begin. The list is empty if none are drawn.
        start: number of the first packet of each sample.
        stop: number after that of the last packet of each sample.
        extra: record of the row of each sample in a table. It is empty if there is no table.
        left_out: number of samples that are not among these, because codec parameters change within them.
    """

    pattern: Pattern
    rows: list[Integers]
    draws: list[Integers]
    start: Integers
    stop: Integers
    extra: Sequence[bytes] = ()
    left_out: int = 0


class Cells(msgspec.Struct, frozen=True):
    """Where clips may begin, a row for each clip: a cell of the grid, or a segment.

    Attributes:
        first, stop: the frames `[first, stop)` with which it may begin.
        end: number after that of the last frame that it may have.
        spread: (clips, frames), the frames of each clip if they are spread over its segment, otherwise (clips, 0).
        extra: record of the row of each clip in a table. It is empty if there is no table.
    """

    first: Integers
    stop: Integers
    end: Integers
    spread: Integers
    extra: Sequence[bytes] = ()

    def take(self, which: Integers) -> Cells:
        """Returns the cells of these numbers, in their order."""
        extra = [self.extra[number] for number in which.tolist()] if self.extra else ()
        return Cells(
            first=self.first[which], stop=self.stop[which], end=self.end[which], spread=self.spread[which], extra=extra
        )


def samples_of(sampling: Sampling, packets: Packets, frames: FrameTable, timescale: int) -> Samples:
    """Cuts a track into samples, in cells of equal length from its first frame on.

    Samples within which codec parameters change are left out, and so is a rest of fewer clips than a sample has.

    Args:
        sampling: how the track is cut.
        packets: packets of the track.
        frames: frames of the track.
        timescale: number of ticks in a second.
    """
    pattern = sampling.pattern_of(timescale)
    end = int(frames.pts[-1] + frames.duration[-1]) if len(frames) else 0
    possible = len(frames) if sampling.repeats_last else pattern.fits(frames.pts, end)
    # The cells of the grid begin with these frames; the last edge is the number of frames.
    step = sampling.step
    seconds = sampling.step_seconds
    if step is None and seconds is None:
        step = pattern.count * pattern.every or None
        seconds = pattern.count * sampling.pattern.ticks
    if step is not None:
        edges = np.arange(0, len(frames), step)
    else:
        assert seconds is not None
        last = (int(frames.pts[-1]) - int(frames.pts[0])) / timescale / seconds if len(frames) else -1
        times = np.arange(int(last) + 1) * (seconds * timescale) + ROUNDING_TICKS
        edges = np.searchsorted(frames.pts, np.floor(times) + frames.pts[:1], "right") - 1
    edges = np.append(np.unique(edges), len(frames))
    edges = edges[: np.searchsorted(edges[:-1], possible) + 1]
    stops = np.minimum(edges[1:], possible)
    cells = Cells(edges[:-1], stops, np.full(len(stops), len(frames)), np.empty((len(stops), 0), np.int64))
    return samples_of_cells(sampling=sampling, pattern=pattern, cells=cells, packets=packets, frames=frames)


def samples_of_cells(
    sampling: Sampling, pattern: Pattern, cells: Cells, packets: Packets, frames: FrameTable
) -> Samples:
    """Makes samples of cells: each `sampling.clips` cells that follow each other are a sample, and a rest is left out.

    With start="key", cells without a key frame are left out first.

    Args:
        sampling: how clips begin in their cells, and how many are a sample.
        pattern: the frames of a clip, with its `ticks` in ticks of the track.
        cells: where clips may begin. Each cell has at least one such frame (`first < stop`).
        packets: packets of the track.
        frames: frames of the track.
    """
    if sampling.start == "key":
        keys = np.append(np.flatnonzero(frames.start == frames.packet), len(frames))
        at = keys[np.searchsorted(keys, cells.first)]
        cells = msgspec.structs.replace(cells, first=at).take(np.flatnonzero(at < cells.stop))
    clips = sampling.clips
    count = len(cells.first) // clips
    if not count:
        return _find_packets(pattern, ([], [], []), packets, frames)
    firsts, stops = (column[: count * clips].reshape(count, clips) for column in (cells.first, cells.stop))
    end = cells.end[: count * clips : clips]
    draws: list[Integers] = []
    if sampling.start == "spread":
        rows = list(cells.spread)
    elif sampling.start == "random":
        last = pattern.find_frames(frames.pts, (stops - 1).ravel()).reshape(count, -1).max(axis=1)
        ends = np.minimum(last + 1, end).tolist()
        rows = [np.arange(first, stop) for first, stop in zip(firsts[:, 0].tolist(), ends, strict=True)]
        draws = list(np.stack([firsts - firsts[:, :1], stops - firsts], axis=-1))
    else:
        rows = list(np.minimum(pattern.find_frames(frames.pts, firsts.ravel()).reshape(count, -1), end[:, None] - 1))
    return _find_packets(pattern, (rows, draws, cells.extra), packets, frames)


def _find_packets(
    pattern: Pattern,
    found: tuple[list[Integers], list[Integers], Sequence[bytes]],
    packets: Packets,
    frames: FrameTable,
) -> Samples:
    """Adds the packets of each sample, leaves out samples within which codec parameters change, and sorts the others.

    Args:
        pattern: the frames of a clip.
        found: rows, draws and extra of the samples, see `Samples`.
        packets: packets of the track.
        frames: frames of the track.
    """
    rows = found[0]
    if not rows:
        return Samples(pattern=pattern, rows=[], draws=[], start=np.empty(0, np.int64), stop=np.empty(0, np.int64))
    flat = np.concatenate(rows)
    lengths = np.array(list(map(len, rows)))
    begins = np.cumsum(lengths) - lengths
    start = np.minimum.reduceat(frames.start[flat], begins)
    stop = np.maximum.reduceat(frames.packet[flat], begins) + 1
    changes = np.cumsum(np.diff(packets.entry, prepend=packets.entry[:1]) != 0)
    one_entry = changes[start] == changes[stop - 1]
    order = np.argsort(start, kind="stable")
    order = order[one_entry[order]]
    kept, drawn, beside = ([column[number] for number in order.tolist()] if column else [] for column in found)
    return Samples(
        pattern=pattern,
        rows=kept,
        draws=drawn,
        start=start[order],
        stop=stop[order],
        extra=beside,
        left_out=len(rows) - len(order),
    )
