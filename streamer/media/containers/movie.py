"""Reads the index of mp4, mov and m4a: the box moov, and in fragmented files each moof, and nothing else.

The formats of `media/` read their videos and tracks of audio with it, and decoders of whole videos in `media/decode/`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from streamer.formats.failures import DamagedError, UnreadError
from streamer.formats.reading import Reading, read_range
from streamer.manifest.model import ObjectRecord
from streamer.media.containers import fragments
from streamer.media.containers.boxes import HEADER_BYTES, LONG_HEADER_BYTES, boxes, header, name_of, numbers
from streamer.media.containers.entries import TURNS, TrackCodec, read_codec
from streamer.media.containers.fragments import HEAD_BYTES, check_whole, read_moofs
from streamer.media.containers.tables import EMPTY, Edit, Packets, Tables, read_edits, rescale, shift_of

_MAX_ENTRIES = 64
_NOTHING = memoryview(b"")
_FIRST_BOXES = frozenset([b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp", b"pnot"])
VIDEO = "vide"
AUDIO = "soun"


class Track(msgspec.Struct):
    """A track of a movie.

    Attributes:
        number: its id.
        kind: type of the track: "vide" for video, "soun" for audio, or another.
        timescale: number of ticks in a second.
        rotation: degrees counterclockwise by which frames have to be turned.
        pixels: number of pixels of a frame, by the first sample entry; 0 if it is no video.
        edits: its edit list.
        entries: the sample entries, as stored.
        tables: where its packets are, if the file is not fragmented.
        runs: its packets in fragments, or None if moov says that the file has no fragments.
    """

    number: int = 0
    kind: str = ""
    timescale: int = 1
    rotation: int = 0
    pixels: int = 0
    edits: list[Edit] = msgspec.field(default_factory=list)
    entries: list[bytes] = msgspec.field(default_factory=list)
    tables: Tables = msgspec.field(default_factory=Tables)
    runs: fragments.Runs | None = None

    @property
    def count(self) -> int:
        """Number of its packets."""
        return self.tables.count or (self.runs.count if self.runs else 0)

    def codec(self, entry: int = 0) -> TrackCodec:
        """Returns the codec with its parameters, from the sample entry of number `entry` (from 0).

        Raises:
            DamagedError: the track has no such entry, or it is cut off.
            UnreadError: the track is encrypted, or its codec is not read.
        """
        if not 0 <= entry < len(self.entries):
            raise DamagedError(f"track {self.number} has {len(self.entries)} sample entries, not number {entry + 1}")
        return read_codec(self.entries[entry], video=self.kind == VIDEO, rotation=self.rotation)


class Movie(msgspec.Struct):
    """The index of a file.

    Attributes:
        size: length of the file in bytes.
        timescale: number of ticks in a second, for durations in edit lists.
        tracks: the tracks in the order stored.
    """

    size: int
    timescale: int = 1000
    tracks: list[Track] = msgspec.field(default_factory=list)

    def track(self, kind: str, stream_index: int | None = None) -> Track:
        """Returns a track.

        Args:
            kind: type of the track, `VIDEO` or `AUDIO`.
            stream_index: number of the track among all. None means the first one with audio, or the video that `prefer`
                takes.

        Raises:
            UnreadError: there is no such track of this type.
        """
        found = self.tracks
        if stream_index is not None:
            found = self.tracks[stream_index : stream_index + 1] if stream_index >= 0 else []
        found = [track for track in found if track.kind == kind and track.entries]
        if not found:
            which = "" if stream_index is None else f", number {stream_index},"
            raise UnreadError(f"has no track{which} of kind {kind!r}: it has {[t.kind for t in self.tracks]}")
        return found[prefer([(track.count, track.pixels) for track in found]) if kind == VIDEO else 0]

    def packets(self, track: Track) -> Packets:
        """Returns the packets of a track, with times after its edit list.

        Raises:
            DamagedError: the tables contradict each other, or packets are outside of the file.
            UnreadError: the edit list is not read.
        """
        fragmented = track.runs is not None and not track.tables.count
        try:
            columns = track.runs.columns() if track.runs and fragmented else track.tables.columns(self.size)
            shift = shift_of(track.edits, track.timescale, self.timescale, fragmented=fragmented)
            if track.kind == VIDEO and track.edits and not fragmented:
                shift = shift.start_at_first(columns[2])
            packets = Packets.from_columns(columns, shift)
            packets.check(self.size)
        except DamagedError as error:
            raise type(error)(f"track {track.number}: {error}", error.offset) from error
        return packets

    def find_edit(self, track: Track) -> tuple[int, int]:
        """Returns when a track begins to be played, and for how long (0 means to its end), in ticks of the track."""
        empty = sum(edit.duration for edit in track.edits if edit.media_time == EMPTY)
        length = sum(edit.duration for edit in track.edits) - empty
        return rescale(empty, track.timescale, self.timescale), rescale(length, track.timescale, self.timescale)


def prefer(tracks: Sequence[tuple[int, int]]) -> int:
    """Returns which video track to take, as its place among these.

    It is the first one with most pixels among those with at least half as many packets as the longest has. So covers
    and previews, which have few frames, are not taken.

    Args:
        tracks: number of packets, and pixels of a frame, of each track.
    """
    largest = max(count for count, _ in tracks)
    return max(range(len(tracks)), key=lambda number: (2 * tracks[number][0] >= largest, tracks[number][1], -number))


def is_movie(head: memoryview) -> bool:
    """Returns whether a file that begins with `head` is mp4 or mov."""
    return bytes(head[4:8]) in _FIRST_BOXES


def read_movie(record: ObjectRecord, held: memoryview = _NOTHING) -> Reading[Movie]:
    """Reads the index of an object; asks for bytes by `yield` (`formats/reading.py`).

    Args:
        record: the object.
        held: its first bytes, as far as they were read already.

    Raises:
        DamagedError: the file is cut off, or its boxes contradict each other.
        UnreadError: the file is not mp4 or mov, or its index is compressed or too long.
    """
    size = record.size
    at = 0
    held_at = 0
    while at + HEADER_BYTES <= size:
        if held_at + len(held) < min(size, at + LONG_HEADER_BYTES):
            held = yield from read_range(at, min(size, at + HEAD_BYTES), record)
            held_at = at
        kind, head, length = header(held, at - held_at, size - at)
        if at == 0 and kind not in _FIRST_BOXES:
            raise UnreadError(f"does not begin as mp4 and mov files do, but with {name_of(kind)}")
        check_whole(kind=kind, at=at, stop=at + length, size=size, missing="; its index (moov) is missing")
        if kind == b"moov":
            kept = held[at - held_at : at - held_at + length]
            rest = yield from read_range(at + len(kept), at + length, record)
            movie = _read_moov((memoryview(bytes(kept) + bytes(rest)) if rest else kept)[head:], size)
            if runs := {track.number: track.runs for track in movie.tracks if track.runs}:
                for place, body in (yield from read_moofs(record, at + length, (held_at, held))):
                    fragments.read_moof(body, place, size, runs)
            return movie
        at += length
    raise DamagedError(f"cut off, or still being written: it has no index (moov) in its {size} bytes", size)


def _read_moov(content: memoryview, size: int) -> Movie:
    """Reads the body of moov, of a file of `size` bytes; raises DamagedError and UnreadError."""
    movie = Movie(size)
    for kind, body in boxes(content):
        if kind == b"mvhd":
            [scale] = numbers(">I", body, 20 if numbers("B", body)[0] else 12)
            movie.timescale = scale or movie.timescale
        elif kind == b"trak":
            track = Track()
            for name, part in boxes(body):
                if name == b"tkhd":
                    long = 12 if numbers("B", part)[0] else 0
                    [track.number] = numbers(">I", part, 20 if long else 12)
                    a, b, _, c, d = numbers(">5i", part, 40 + long)
                    track.rotation = TURNS.get(tuple((v > 0) - (v < 0) for v in (a, b, c, d)), 0)
                elif name == b"edts":
                    track.edits = [edit for inner, each in boxes(part) if inner == b"elst" for edit in read_edits(each)]
                elif name == b"mdia":
                    _read_media(track, part)
            movie.tracks.append(track)
        elif kind == b"cmov":
            raise UnreadError("has a compressed moov, which is not read")
    for kind, body in boxes(content):
        if kind == b"mvex":
            defaults = {d.track: d for inner, each in boxes(body) if inner == b"trex" for d in [fragments.trex(each)]}
            for track in movie.tracks:
                track.runs = fragments.Runs(defaults.get(track.number, fragments.Defaults(track.number)))
    return movie


def _read_media(track: Track, content: memoryview) -> None:
    """Reads the body of mdia to a track: ticks, kind, sample entries and tables."""
    for kind, body in boxes(content):
        if kind == b"mdhd":
            track.timescale = numbers(">I", body, 20 if numbers("B", body)[0] else 12)[0] or 1
        elif kind == b"hdlr":
            track.kind = bytes(body[8:12]).decode("latin-1")
        elif kind == b"minf":
            tables = [each for inner, each in boxes(body) if inner == b"stbl"]
            for name, table in (found for each in tables for found in boxes(each)):
                if name == b"stsd":
                    track.entries = _read_entries(table)
                else:
                    track.tables.read(name, table)
    if track.kind == VIDEO and track.entries:
        track.pixels = int(np.prod(numbers(">HH", track.entries[0], 32)))


def _read_entries(body: memoryview) -> list[bytes]:
    """Returns the sample entries in the body of stsd, 64 at most; raises DamagedError if one is longer than the box."""
    [count] = numbers(">I", body, 4)
    at = 8
    found = []
    for _ in range(min(count, _MAX_ENTRIES)):
        _, _, length = header(body, at, len(body) - at)
        if at + length > len(body):
            raise DamagedError(f"a sample entry of {length} bytes is longer than its box", at)
        found.append(bytes(body[at : at + length]))
        at += length
    return found
