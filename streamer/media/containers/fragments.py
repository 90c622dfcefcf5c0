"""Fragments of movies (moof): runs of packets, each with the defaults of its track."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from streamer.formats.failures import DamagedError
from streamer.media.containers.boxes import boxes, numbers, table
from streamer.media.containers.tables import Integers, find_max_packets

_NOT_KEY = 0x10000
# Flags of tfhd: fields that it has, in this order, and what they are if it has not.
_BASE = 1
_ENTRY = 2
_DURATION = 8
_SIZE = 0x10
_FLAGS = 0x20
_BASE_IS_MOOF = 0x20000
# Flags of trun, and its columns.
_OFFSET = 1
_FIRST_FLAGS = 4
_COLUMNS = {"duration": 0x100, "size": 0x200, "flags": 0x400, "time": 0x800}


class Defaults(msgspec.Struct, frozen=True):
    """What packets of a track are where their run says nothing."""

    track: int
    entry: int = 1
    duration: int = 0
    size: int = 0
    flags: int = 0


class Runs(msgspec.Struct):
    """The packets of one track, from all fragments so far.

    Attributes:
        defaults: of the whole track.
        found: columns of `Packets.from_columns`, of each run.
        next_time: decode time of the next packet.
        count: packets so far.
    """

    defaults: Defaults
    found: list[tuple[Integers, ...]] = msgspec.field(default_factory=list)
    next_time: int = 0
    count: int = 0

    def columns(self) -> list[Integers]:
        """Returns the columns of `Packets.from_columns`."""
        if not self.found:
            return [np.empty(0, np.int64)] * 6
        return [np.concatenate(column) for column in zip(*self.found, strict=True)]


def trex(body: memoryview) -> Defaults:
    """Reads the box trex."""
    return Defaults(*numbers(">5I", body, 4))


def read_moof(content: memoryview, start: int, object_bytes: int, tracks: Mapping[int, Runs]) -> None:
    """Adds the packets of the moof at byte `start` of an object to its tracks.

    Raises:
        DamagedError: it is of a track that there is not, or cut off.
    """
    end = start
    for kind, body in boxes(content):
        if kind != b"traf":
            continue
        runs: Runs | None = None
        base = start
        defaults = Defaults(0)
        for inner, each in boxes(body):
            if inner == b"tfhd":
                runs, base, defaults = _tfhd(each, start, end, tracks)
            elif inner == b"tfdt" and runs is not None:
                [runs.next_time] = numbers(">q" if numbers("B", each)[0] else ">I", each, 4)
            elif inner == b"trun" and runs is not None:
                end = _trun(
                    runs=runs, body=each, bases=(base, max(base, end)), defaults=defaults, object_bytes=object_bytes
                )


def _tfhd(body: memoryview, start: int, end: int, tracks: Mapping[int, Runs]) -> tuple[Runs, int, Defaults]:
    """The runs of the track, the byte at which its offsets count, and its defaults."""
    flags, number = numbers(">II", body)
    if (runs := tracks.get(number)) is None:
        raise DamagedError(f"moof is of track {number}, which moov does not have", start)
    base = start if flags & _BASE_IS_MOOF else end
    at = 8
    if flags & _BASE:
        [base] = numbers(">Q", body, at)
        at = at + 8
    given = msgspec.structs.asdict(runs.defaults)
    for name, flag in (("entry", _ENTRY), ("duration", _DURATION), ("size", _SIZE), ("flags", _FLAGS)):
        if flags & flag:
            [given[name]] = numbers(">I", body, at)
            at = at + 4
    return runs, base, Defaults(**given)


def _trun(runs: Runs, body: memoryview, bases: tuple[int, int], defaults: Defaults, object_bytes: int) -> int:
    """Adds a run; returns where its bytes end."""
    flags, count = numbers(">II", body)
    base, offset = bases
    at = 8
    if flags & _OFFSET:
        offset = base + numbers(">i", body, at)[0]
        at = at + 4
    first_flags = None
    if flags & _FIRST_FLAGS:
        [first_flags] = numbers(">I", body, at)
        at = at + 4
    names = [name for name, flag in _COLUMNS.items() if flags & flag]
    most = find_max_packets(object_bytes)
    if runs.count + count > most or ("size" not in names and not 0 < defaults.size * count <= object_bytes):
        raise DamagedError(f"trun has {count} packets of {defaults.size} bytes")
    rows = (
        table(name="trun", content=body, dtype=f"({len(names)},)>u4", count=count, at=at)
        if names
        else np.empty((count, 0), ">u4")
    )

    def column(name: str, default: int) -> Integers:
        if name not in names:
            return np.full(count, default, np.int64)
        return rows[:, names.index(name)].astype(np.int64)

    duration, size = column("duration", defaults.duration), column("size", defaults.size)
    sample_flags, time = column("flags", defaults.flags), column("time", 0).astype(np.uint32).view(np.int32)
    if first_flags is not None:
        sample_flags[:1] = first_flags
    ends = np.cumsum(size)
    decoded = runs.next_time + np.cumsum(duration) - duration
    key = (sample_flags & _NOT_KEY == 0).astype(np.int64)
    entry = np.full(count, defaults.entry - 1)
    runs.found.append((offset + ends - size, size, decoded + time, duration, key, entry))
    runs.next_time += int(duration.sum())
    runs.count += count
    return offset + int(size.sum())
