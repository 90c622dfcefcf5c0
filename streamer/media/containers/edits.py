"""Edit lists: which packets of a track are shown, and when."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.formats.failures import DamagedError, UnreadError
from streamer.media.containers.boxes import numbers

# Media time of an edit that shows nothing, and the rate of one that is played as it is.
EMPTY = -1
_PLAIN = 1 << 16
_LAST = (1 << 63) - 1


class Edit(msgspec.Struct, frozen=True):
    """One row of an edit list.

    Attributes:
        duration: ticks of the movie; 0: to the end.
        media_time: where it begins, ticks of the track; -1: nothing is shown.
        rate: 16.16 fixed point.
    """

    duration: int
    media_time: int
    rate: int


class Shift(msgspec.Struct, frozen=True):
    """What is subtracted from composition times, and the half-open range `[first, stop)` of those that are shown."""

    ticks: int = 0
    first: int = -_LAST
    stop: int = _LAST

    def start_at_first(self, times: NDArray[np.int64]) -> Shift:
        """The shift of frames if the edit begins between two of these composition times.

        The first one inside is shown when it begins, as FFmpeg has it. `ffmpeg -ss 3.7 -c copy` writes such edits.
        """
        later = times[(times >= self.first) & (times < self.stop)]
        late = int(later.min()) - self.first if len(later) else 0
        return Shift(self.ticks + late, self.first, self.stop)


def read_edits(body: memoryview) -> list[Edit]:
    """Reads the box elst."""
    version, _, count = numbers(">B3sI", body)
    layout, size = (">QqI", 20) if version else (">IiI", 12)
    if 8 + count * size > len(body):
        raise DamagedError(f"elst has {count} entries, more than fit into its {len(body)} bytes")
    return [Edit(*numbers(layout, body, 8 + size * row)) for row in range(count)]


def shift_of(edits: list[Edit], timescale: int, movie_timescale: int, *, fragmented: bool) -> Shift:
    """Makes one shift of an edit list, as FFmpeg does: in fragmented files it hides nothing.

    Raises:
        UnreadError: anything but empty edits and then one of the media at its own rate.
    """
    empty = sum(edit.duration for edit in edits if edit.media_time == EMPTY)
    shown = [edit for edit in edits if edit.media_time != EMPTY]
    if len(shown) > 1 or (shown and shown[0] is not edits[-1]):
        raise UnreadError(f"an edit list of {len(edits)} edits; several edits of the media are not read")
    if shown and shown[0].rate != _PLAIN:
        raise UnreadError(f"an edit of rate {shown[0].rate / _PLAIN}, which is not read")
    begin = shown[0].media_time if shown else 0
    ticks = begin - rescale(empty, timescale, movie_timescale)
    if fragmented:
        return Shift(ticks)
    length = rescale(shown[0].duration, timescale, movie_timescale) if shown else 0
    return Shift(ticks, begin, begin + length if length else _LAST)


def rescale(value: int, to: int, of: int) -> int:
    """Returns ticks of another clock, rounded as FFmpeg's av_rescale does: halves away from zero."""
    sign = -1 if value < 0 else 1
    return sign * ((2 * abs(value) * to + of) // (2 * of))
