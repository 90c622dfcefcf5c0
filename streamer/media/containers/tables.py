"""Reads the tables of a track in MP4 and QuickTime (stbl), and its edit list, for `movie.py` and `fragments.py`.

They say where the packets of the track are, when they are shown, and which are keys. `Packets` are what all readers of
containers return, and what all users of videos in `media/` work with.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.formats.failures import DamagedError, UnreadError
from streamer.media.containers.boxes import numbers, table

# An edit that shows nothing has this media time. One that is played at its own speed has the rate `_PLAIN` (16.16).
EMPTY = -1
_PLAIN = 1 << 16
_LAST = (1 << 63) - 1
Integers = NDArray[np.int64]
# A track may have so many packets: 38 hours of 30 frames a second, or 27 of AAC. Their columns take 0.2 GB, and twice
# that while they are made.
MAX_PACKETS = 1 << 22
# Tables with packets of fewer bytes than this on average are damaged, unless there are at most `_FREE_PACKETS`: short
# files and silent audio have smaller packets.
_LEAST_PACKET_BYTES = 8
_FREE_PACKETS = 1 << 16
_PAIR = "2>u4"
_TRIPLE = "3>u4"
_HALVES = 4
# So many frames may have one time: with ticks of a millisecond a camera of 10,000 frames a second has 10.
_MAX_AT_ONCE = 64


class Edit(msgspec.Struct, frozen=True):
    """One row of an edit list.

    Attributes:
        duration: how long it lasts, in ticks of the movie. It is 0 if it lasts to the end.
        media_time: where it begins, in ticks of the track. It is -1 (`EMPTY`) if it shows nothing.
        rate: speed at which it is played, 16.16 fixed point.
    """

    duration: int
    media_time: int
    rate: int


class Shift(msgspec.Struct, frozen=True):
    """The effect of an edit list on the times of packets.

    Attributes:
        ticks: number that is subtracted from composition times.
        first, stop: composition times `[first, stop)` of the packets that are shown.
    """

    ticks: int = 0
    first: int = -_LAST
    stop: int = _LAST

    def start_at_first(self, times: NDArray[np.int64]) -> Shift:
        """Returns the shift for video: the first frame inside the edit is shown just when the edit begins.

        FFmpeg does that, too. It matters if the edit begins between two frames, as `ffmpeg -ss 3.7 -c copy` writes it.

        Args:
            times: composition times of the frames, ticks.
        """
        later = times[(times >= self.first) & (times < self.stop)]
        late = int(later.min()) - self.first if len(later) else 0
        return Shift(self.ticks + late, self.first, self.stop)


def read_edits(body: memoryview) -> list[Edit]:
    """Reads the box elst, an edit list; raises DamagedError if it is shorter than its entries."""
    version, _, count = numbers(">B3sI", body)
    layout, size = (">QqI", 20) if version else (">IiI", 12)
    if 8 + count * size > len(body):
        raise DamagedError(f"elst has {count} entries, more than fit into its {len(body)} bytes")
    return [Edit(*numbers(layout, body, 8 + size * row)) for row in range(count)]


def shift_of(edits: list[Edit], timescale: int, movie_timescale: int, *, fragmented: bool) -> Shift:
    """Makes one shift of an edit list, as FFmpeg does: in fragmented files it hides nothing.

    Args:
        edits: the edit list.
        timescale: number of ticks in a second, of the track.
        movie_timescale: number of ticks in a second, of the movie.
        fragmented: whether the packets are in fragments (moof).

    Raises:
        UnreadError: the list is anything else than empty edits, and after them at most one of the media at its own
            rate.
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
    """Converts a number of ticks of `1/of` seconds to ticks of `1/to` seconds, rounded as FFmpeg's av_rescale does.

    Halves are rounded away from zero.
    """
    sign = -1 if value < 0 else 1
    return sign * ((2 * abs(value) * to + of) // (2 * of))


def find_max_packets(object_bytes: int) -> int:
    """Returns how many packets a track of a file of `object_bytes` may have; with more, the file is damaged."""
    return min(MAX_PACKETS, max(_FREE_PACKETS, object_bytes // _LEAST_PACKET_BYTES))


class Packets(msgspec.Struct, frozen=True):
    """The packets of a track in the order stored, a column each; times are ticks of the track.

    Attributes:
        offset: its first byte in the object.
        size: its length in bytes.
        pts: the time at which it is shown, after the edit list was applied.
        duration: how long it lasts, as the file says it.
        key: whether decoding may begin with it.
        shown: whether the edit list shows it.
        entry: number of its codec parameters (sample entry), from 0.
    """

    offset: Integers
    size: Integers
    pts: Integers
    duration: Integers
    key: NDArray[np.bool_]
    shown: NDArray[np.bool_]
    entry: Integers

    def __len__(self) -> int:
        return len(self.offset)

    @classmethod
    def from_columns(cls, columns: list[Integers], shift: Shift) -> Packets:
        """Applies a shift to the columns offset, size, composition time, duration, key (0 or 1) and entry."""
        offset, size, time, duration, key, entry = columns
        shown = (time >= shift.first) & (time < shift.stop)
        return cls(
            offset=offset,
            size=size,
            pts=time - shift.ticks,
            duration=duration,
            key=key.astype(bool),
            shown=shown,
            entry=entry,
        )

    def separate_times(self, timescale: int) -> tuple[Packets, int]:
        """Returns packets of which no two are shown at one time, and the number of their ticks in a second.

        A tick can be longer than a frame lasts, in files of high rates. Frames with equal times keep their stored
        order, and ticks are divided so that their times differ.

        Args:
            timescale: number of ticks in a second, of these packets.

        Raises:
            DamagedError: more than 64 frames are shown at one time.
        """
        shown = np.flatnonzero(self.shown & (self.size > 0))
        order = shown[np.argsort(self.pts[shown], kind="stable")]
        number = np.arange(len(order))
        is_first = np.diff(self.pts[order], prepend=self.pts[order[:1]] - 1) != 0
        place = number - np.maximum.accumulate(np.where(is_first, number, 0))
        parts = int(place.max(initial=0)) + 1
        if parts == 1:
            return self, timescale
        if parts > _MAX_AT_ONCE:
            raise DamagedError(f"{parts} frames at one time, at most {_MAX_AT_ONCE} are read")
        pts = self.pts * parts
        pts[order] += place
        return msgspec.structs.replace(self, pts=pts, duration=self.duration * parts), timescale * parts

    def check(self, size: int) -> None:
        """Raises DamagedError if there are packets outside of an object of `size` bytes."""
        outside = np.flatnonzero((self.offset < 0) | (self.size < 0) | (self.offset + self.size > size))
        if len(outside):
            number = int(outside[0])
            start = int(self.offset[number])
            length = int(self.size[number])
            raise DamagedError(
                f"cut off: packet {number} of {len(self)} goes from byte {start} to {start + length}, the file has "
                f"{size} bytes"
            )


class Tables(msgspec.Struct):
    """The boxes of a stbl that say where packets are. The standard calls packets samples, and so do messages.

    Attributes:
        bodies: the numbers in each box, by its name. Those of stz2 are kept as stsz, and those of co64 as stco.
        fixed_size: bytes of each packet if all are equal, otherwise 0.
        count: number of packets, by stsz.
    """

    bodies: dict[bytes, NDArray[Any]] = msgspec.field(default_factory=dict)
    fixed_size: int = 0
    count: int = 0

    @property
    def has_times(self) -> bool:
        """Whether the boxes say when frames are shown (ctts), and not only when they are decoded."""
        return b"ctts" in self.bodies

    def read(self, name: bytes, body: memoryview) -> None:
        """Keeps the numbers of a box, or ignores a box that says nothing about packets; raises DamagedError."""
        if name == b"stsz":
            self.fixed_size, self.count = numbers(">II", body, 4)
            if not self.fixed_size:
                self.bodies[b"stsz"] = table(name="stsz", content=body, dtype=">u4", count=self.count, at=12)
        elif name == b"stz2":
            [bits] = numbers("B", body, 7)
            [self.count] = numbers(">I", body, 8)
            if bits == _HALVES:
                packed = table(name="stz2", content=body, dtype="u1", count=(self.count + 1) // 2, at=12)
                self.bodies[b"stsz"] = np.stack([packed >> 4, packed & 15], 1).reshape(-1)[: self.count]
            elif bits not in {8, 16}:
                raise DamagedError(f"stz2 has sizes of {bits} bits")
            else:
                self.bodies[b"stsz"] = table(name="stz2", content=body, dtype=f">u{bits // 8}", count=self.count, at=12)
        elif name in _LAYOUTS:
            [count] = numbers(">I", body, 4)
            self.bodies[b"stco" if name == b"co64" else name] = table(
                name=name.decode(), content=body, dtype=_LAYOUTS[name], count=count, at=8
            )

    def columns(self, object_bytes: int) -> list[Integers]:
        """Returns the columns of `Packets.from_columns`, for an object of `object_bytes`.

        Raises:
            DamagedError: a table is missing, or they contradict each other or the length of the object.
        """
        if not self.count:
            return [np.empty(0, np.int64)] * 6
        limit = find_max_packets(object_bytes)
        if self.count > limit or self.fixed_size * self.count > object_bytes:
            raise DamagedError(
                f"stsz has {self.count} samples of {self.fixed_size or 'several'} bytes, the file has {object_bytes}; "
                f"at most {limit} samples are read"
            )
        sizes = self.bodies.get(b"stsz")
        size = np.full(self.count, self.fixed_size, np.int64) if sizes is None else sizes.astype(np.int64)
        # Packets are in what MP4 calls chunks, and these in runs that have one number of codec parameters.
        runs = self._table(b"stsc").astype(np.int64)
        chunks = self._table(b"stco").astype(np.int64)
        first = runs[:, 0] - 1
        per_chunk = runs[:, 1]
        repeats = np.diff(first, append=len(chunks))
        if not len(runs) or first[0] != 0 or (repeats <= 0).any():
            raise DamagedError("stsc does not ascend from chunk 1 to the last one")
        number = np.arange(self.count)
        run, inside = _run_of(per_chunk * repeats, number, "stsc")
        before = np.cumsum(size) - size
        offset = chunks[first[run] + inside // per_chunk[run]] + before - before[number - inside % per_chunk[run]]
        entry = runs[run, 2] - 1
        duration = self._expand(b"stts")
        time = np.cumsum(duration) - duration
        if self.has_times:
            # Files of some cameras have negative ones in version 0, too.
            time += self._expand(b"ctts").astype(np.uint32).view(np.int32)
        numbers_of_keys = self.bodies.get(b"stss")
        # All packets are keys where there is no stss.
        key = np.full(self.count, numbers_of_keys is None)
        if numbers_of_keys is not None:
            numbered = numbers_of_keys.astype(np.int64) - 1
            if len(numbered) and not 0 <= numbered.min() <= numbered.max() < self.count:
                raise DamagedError(f"stss names sample {numbered.max() + 1} of {self.count}")
            key[numbered] = True
        return [offset, size, time, duration, key.astype(np.int64), entry]

    def _expand(self, name: bytes) -> Integers:
        """Returns a number for each packet, from a table of runs (stts, ctts)."""
        pairs: Integers = self._table(name).astype(np.int64)
        run, _ = _run_of(pairs[:, 0], np.arange(self.count), name.decode())
        found: Integers = pairs[run, 1]
        return found

    def _table(self, name: bytes) -> NDArray[Any]:
        if name not in self.bodies:
            raise DamagedError(f"it has no {name.decode()}")
        return self.bodies[name]


_LAYOUTS = {b"stts": _PAIR, b"ctts": _PAIR, b"stsc": _TRIPLE, b"stco": ">u4", b"co64": ">u8", b"stss": ">u4"}


def _run_of(lengths: Integers, number: Integers, name: str) -> tuple[Integers, Integers]:
    """Returns the run of each packet, and its place there; raises DamagedError if the runs have too few packets."""
    ends = np.cumsum(lengths)
    if not len(ends) or ends[-1] < len(number):
        raise DamagedError(f"{name} has {ends[-1] if len(ends) else 0} samples, stsz {len(number)}")
    run = np.searchsorted(ends, number, "right")
    return run, number - (ends - lengths)[run]
