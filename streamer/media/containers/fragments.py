"""Reads fragments of movies (moof): finds where they are, and the packets in them, for `movie.py`.

Fragments are found by the file's own index of them (sidx, mfra), else by a search, which reads only heads of boxes.
Index and search only say where reading begins: a fragment counts if the box before it ends where it begins. So all of
them are found, or the file is refused as damaged, whatever its index says.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec
import numpy as np

from streamer.formats.failures import DamagedError, UnreadError
from streamer.formats.reading import Range, Reading, near_needs, read_ranges
from streamer.manifest.model import ObjectRecord
from streamer.media.containers.boxes import HEADER_BYTES, LONG_HEADER_BYTES, boxes, header, numbers, table
from streamer.media.containers.tables import Integers, find_max_packets

# So many bytes are read at each outermost box: all of moov in files of some seconds, or a moof of 200 packets.
HEAD_BYTES = 4096
MAX_INDEX_BYTES = 256 << 20
# A file may have so many outermost boxes: 290 hours of fragments of 2 s, whose places take 200 MB.
_MAX_BOXES = 1 << 20
# Heads with fewer bytes between them are read by one request. After a fragment shorter than that, `_SEVERAL_BYTES` are
# read at once.
_NEAR_BYTES = 64 << 10
_SEVERAL_BYTES = 256 << 10
# The end of a file is read for mfra, a 1024th of it: mfra has 19 bytes a fragment and track, and a fragment rarely has
# less than 40 KB.
_TAIL_SHARE = 1 << 10
_MAX_TAIL_BYTES = 1 << 20
# A file without an index is walked from several places at once, so that each walk has about as many fragments, a
# request each. To find a place, one and a half fragments are read: 2.3 % of the file.
_FRAGMENTS_OF_WALK = 64
_MAX_SEARCH_BYTES = 16 << 20
_BEGIN = b"moof\0\0\0\x10mfhd"
_TRAILER_BYTES = 16
_NOT_KEY = 0x10000
# Flags of tfhd: the fields that it has, in this order, and whether offsets count from the beginning of moof.
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


class _Box(msgspec.Struct):
    """An outermost box.

    Attributes:
        kind: its type.
        start, stop: bytes of the file at which its body begins and ends.
        body: the beginning of the body, as far as it was read.
    """

    kind: bytes
    start: int
    stop: int
    body: bytes = b""


def check_whole(kind: bytes, at: int, stop: int, size: int, missing: str = "") -> None:
    """Refuses a box that ends after the file, or an index that is too long.

    Args:
        kind: type of the box.
        at: byte at which it begins.
        stop: byte at which it ends.
        size: length of the file in bytes.
        missing: text that is added to the message about a file that is cut off.

    Raises:
        DamagedError: moov, moof or mdat ends after the file.
        UnreadError: moov or moof has more than `MAX_INDEX_BYTES`.
    """
    if kind in {b"moov", b"moof", b"mdat"} and stop > size:
        raise DamagedError(
            f"cut off: {kind.decode()} goes from byte {at} to {stop}, the file has {size} bytes{missing}", at
        )
    if kind in {b"moov", b"moof"} and stop - at > MAX_INDEX_BYTES:
        raise UnreadError(f"has an index of {stop - at} bytes, at most {MAX_INDEX_BYTES} are read", at)


def read_moofs(record: ObjectRecord, at: int, held: tuple[int, memoryview]) -> Reading[list[tuple[int, memoryview]]]:
    """Finds and reads the fragments of a file.

    Args:
        record: the file.
        at: byte at which the box after moov begins.
        held: bytes that were read already: the byte of the file at which they begin, and they themselves.

    Returns:
        First byte and body of each moof, in order.

    Raises:
        DamagedError: the file is cut off, or a box has no length.
        UnreadError: the file has too many boxes, or too long an index.
    """
    walk = _Walk(record.size, at)
    walk.take([held])
    tail = min(max(HEAD_BYTES, record.size // _TAIL_SHARE), _MAX_TAIL_BYTES, record.size)
    more = [] if walk.indexed else [(record.size - tail, record.size)]
    while ranges := walk.ranges():
        needs = near_needs(record, [*ranges, *more], _NEAR_BYTES)
        contents = yield from read_ranges(needs)
        walk.take([(need.start, content) for need, content in zip(needs, contents, strict=True)])
        more = walk.search()
    return walk.moofs()


class _Walk:
    """Follows outermost boxes, each to the next one, from several places of a file at once.

    Args:
        size: length of the file in bytes.
        at: byte at which the first box begins.

    Attributes:
        indexed: whether an index of most of the fragments was found.
    """

    def __init__(self, size: int, at: int) -> None:
        self.indexed = False
        self._size = size
        self._at = at
        # `_coming` has the places to read at, with numbers of bytes. `_cut` has boxes whose bodies are not read to the
        # end, and `_boxes` all boxes by their first bytes.
        self._coming = {at: HEAD_BYTES}
        self._cut: list[_Box] = []
        self._boxes: dict[int, _Box | DamagedError] = {}
        self._longest = 0
        self._index_bytes = 0
        self._searched = False

    def ranges(self) -> list[Range]:
        """Returns the ranges of the file that are to be read next; empty when all fragments are found."""
        heads = [(at, min(self._size, at + length)) for at, length in self._coming.items()]
        return heads + [(box.start + len(box.body), box.stop) for box in self._cut]

    def take(self, contents: Sequence[tuple[int, memoryview]]) -> None:
        """Parses what was read, and plans what to read next.

        Args:
            contents: pieces of the file in order, each with its first byte.

        Raises:
            DamagedError, UnreadError: as `read_moofs`.
        """
        starts = [start for start, _ in contents]

        def read_from(at: int) -> memoryview:
            which = bisect_right(starts, at) - 1
            return contents[which][1][at - starts[which] :] if which >= 0 else memoryview(b"")

        cut, self._cut = self._cut, []
        for box in cut:
            self._fill(box, read_from)
        for start, content in contents:
            # A fragment may begin in these bytes, and the end of a file points to its index.
            places = []
            if (begin := bytes(content).find(_BEGIN)) >= 4:
                places.append(start + begin - 4)
            if start + len(content) == self._size and bytes(content[4 - _TRAILER_BYTES :][:4]) == b"mfro":
                places.append(self._size - int.from_bytes(content[-4:], "big"))
            self._begin(places)
        coming = sorted(self._coming)
        self._coming = {}
        for at in coming:
            self._follow(at, read_from)
        self._coming = {at: length for at, length in self._coming.items() if at not in self._boxes}

    def search(self) -> list[Range]:
        """Returns ranges in which to look for fragments, if the file has no index; only once, afterwards none."""
        window = self._longest * 3 // 2 + HEAD_BYTES
        if self.indexed or self._searched or not self._longest:
            return []
        self._searched = True
        length = self._size - self._at
        walks = min(length // self._longest // _FRAGMENTS_OF_WALK, _MAX_SEARCH_BYTES // window)
        places = [self._at + length * number // walks for number in range(1, walks)]
        return [(place, min(self._size, place + window)) for place in places]

    def moofs(self) -> list[tuple[int, memoryview]]:
        """Returns first byte and body of each fragment, when all are read; raises as `read_moofs`."""
        found = []
        at = self._at
        while at + HEADER_BYTES <= self._size:
            box = self._boxes[at]
            if isinstance(box, DamagedError):
                raise box
            check_whole(box.kind, at, box.stop, self._size)
            if box.kind == b"moof":
                found.append((at, memoryview(box.body)))
            at = box.stop
        return found

    def _begin(self, places: Iterable[int]) -> None:
        """Plans to read at these places, where boxes may begin."""
        for at in places:
            if self._at < at < self._size and at not in self._boxes:
                self._coming.setdefault(at, HEAD_BYTES)

    def _follow(self, at: int, read_from: Callable[[int], memoryview]) -> None:
        """Notes box after box from byte `at` on, up to bytes that were not read, or to a box that is known.

        Raises:
            UnreadError: the file has too many boxes, or too long an index.
        """
        fragment = None
        while at + HEADER_BYTES <= self._size and at not in self._boxes:
            content = read_from(at)
            if len(content) < min(LONG_HEADER_BYTES, self._size - at):
                near = fragment is not None and at - fragment < _NEAR_BYTES
                self._coming.setdefault(at, _SEVERAL_BYTES if near else HEAD_BYTES)
                break
            if len(self._boxes) >= _MAX_BOXES:
                raise UnreadError(f"has more than {_MAX_BOXES} boxes", at)
            try:
                kind, head, length = header(content, 0, self._size - at)
            except DamagedError as error:
                self._boxes[at] = DamagedError(str(error), at)
                return
            self._boxes[at] = box = _Box(kind, at + head, at + length)
            if kind in {b"moof", b"sidx", b"mfra"} and box.stop <= self._size:
                self._index_bytes += length
                check_whole(b"moof", 0, self._index_bytes, self._size)
                self._fill(box, read_from)
            if kind == b"moof":
                fragment = at
            at = box.stop
        if fragment is not None:
            self._longest = max(self._longest, min(at, self._size) - fragment)

    def _fill(self, box: _Box, read_from: Callable[[int], memoryview]) -> None:
        """Adds what was read to the body of a box; once that is whole, plans to read where an index in it points."""
        have = box.start + len(box.body)
        box.body += bytes(read_from(have)[: box.stop - have])
        if box.start + len(box.body) < box.stop:
            self._cut.append(box)
            return
        # A damaged index is ignored: it only names places to try.
        with suppress(DamagedError):
            if box.kind == b"sidx":
                # The last place is where its subsegments end.
                body = memoryview(box.body)
                wide = bool(numbers("B", body)[0])
                [offset] = numbers(">Q" if wide else ">I", body, 20 if wide else 16)
                at = 28 if wide else 20
                [count] = numbers(">H", body, at + 2)
                rows = table(name="sidx", content=body, dtype="3>u4", count=count, at=at + 4)
                sizes = rows[:, 0] & 0x7FFFFFFF
                places: list[int] = (box.stop + offset + np.append(0, np.cumsum(sizes, dtype=np.int64))).tolist()
                self._begin(places)
                self.indexed |= bool(places) and 2 * places[-1] > self._size
            elif box.kind == b"mfra":
                self._begin(_random_access(box))
                self.indexed = True


def _random_access(box: _Box) -> Iterator[int]:
    """Yields the first bytes of the fragments that mfra names."""
    for kind, body in boxes(memoryview(box.body)):
        if kind == b"tfra":
            version, lengths, count = *numbers("B", body), *numbers(">II", body, 8)
            number = ">u8" if version else ">u4"
            rest = sum((lengths >> shift & 3) + 1 for shift in (0, 2, 4))
            yield from table(name="tfra", content=body, dtype=f"{number},{number},V{rest}", count=count, at=16)[
                "f1"
            ].tolist()


class Defaults(msgspec.Struct, frozen=True):
    """The values that packets of a track have where their run does not say them.

    Attributes:
        track: number of the track.
        entry: number of the sample entry, from 1.
        duration: duration of a packet, ticks.
        size: length of a packet in bytes.
        flags: flags of a packet.
    """

    track: int
    entry: int = 1
    duration: int = 0
    size: int = 0
    flags: int = 0


class Runs(msgspec.Struct):
    """The packets of one track, from all fragments so far.

    Attributes:
        defaults: the defaults of the whole track.
        found: the columns of `Packets.from_columns` of each run.
        next_time: decode time of the next packet, ticks.
        count: number of packets so far.
    """

    defaults: Defaults
    found: list[tuple[Integers, ...]] = msgspec.field(default_factory=list)
    next_time: int = 0
    count: int = 0

    def columns(self) -> list[Integers]:
        """Returns the columns of `Packets.from_columns` for all packets."""
        if not self.found:
            return [np.empty(0, np.int64)] * 6
        return [np.concatenate(column) for column in zip(*self.found, strict=True)]


def trex(body: memoryview) -> Defaults:
    """Reads the body of trex, the defaults of a track; raises DamagedError if it is cut off."""
    return Defaults(*numbers(">5I", body, 4))


def read_moof(content: memoryview, start: int, object_bytes: int, tracks: Mapping[int, Runs]) -> None:
    """Adds the packets of a fragment to the runs of their tracks.

    Args:
        content: body of the moof.
        start: byte of the file at which the moof begins.
        object_bytes: length of the file.
        tracks: the runs of each track by its number, which are changed.

    Raises:
        DamagedError: the fragment is cut off, has a track that moov does not have, or too many packets.
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
    """Reads tfhd, the head of a track in a fragment.

    Args:
        body: body of the box.
        start: byte of the file at which moof begins.
        end: byte at which the packets before end.
        tracks: the runs of each track by its number.

    Returns:
        The runs of the track, the byte from which its offsets count, and its defaults in this fragment.

    Raises:
        DamagedError: the box is cut off, or moov does not have the track.
    """
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
    """Adds a run of packets to `runs`; returns the byte of the file at which its packets end.

    Args:
        runs: the runs of its track.
        body: body of trun.
        bases: the byte from which an offset in the run counts, and where the packets begin if it has no offset.
        defaults: defaults of the track in this fragment.
        object_bytes: length of the file.

    Raises:
        DamagedError: the box is cut off, or the track has too many packets.
    """
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
    limit = find_max_packets(object_bytes)
    if runs.count + count > limit or ("size" not in names and not 0 < defaults.size * count <= object_bytes):
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

    duration = column("duration", defaults.duration)
    size = column("size", defaults.size)
    sample_flags = column("flags", defaults.flags)
    time = column("time", 0).astype(np.uint32).view(np.int32)
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
