"""Reads the packets of a video in Matroska or WebM (RFC 9559), for the format `Video` (`media/video/format.py`).

It goes over the whole file once, because only the blocks themselves say where packets are. (A "block" here is an
element with one packet.) Elements that contain blocks are entered without use of their lengths, which live recorders do
not know.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Generator, Iterator
from typing import Any

import msgspec
import numpy as np

from streamer.formats.failures import DamagedError, UnreadError
from streamer.formats.reading import Window
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Answer, Need
from streamer.media.containers.entries import ENCRYPTED, TrackCodec
from streamer.media.containers.movie import prefer
from streamer.media.containers.tables import MAX_PACKETS, Packets

# Elements (EBML, RFC 8794): an id of 4 bytes and a length of 8.
MAX_HEADER_BYTES = 12
_LONGEST_ID = 4
_EBML = 0x1A45DFA3
_SEGMENT = 0x18538067
_CLUSTER = 0x1F43B675
_GROUP = 0xA0
_INFO = 0x1549A966
_TRACKS = 0x1654AE6B
_TIMESTAMP = 0xE7
_SIMPLE_BLOCK = 0xA3
_BLOCK = 0xA1
_DURATION = 0x9B
_REFERENCE = 0xFB
_BLOCKS = frozenset([_SIMPLE_BLOCK, _BLOCK])
_ENTERED = frozenset([_SEGMENT, _CLUSTER, _GROUP])
_HEADS = frozenset([_INFO, _TRACKS])
# So many bytes of the bodies of these elements are read: a block begins with the track's number, the time and flags.
_READ_BYTES = {_SIMPLE_BLOCK: 11, _BLOCK: 11, _TIMESTAMP: 8, _DURATION: 8, _REFERENCE: 1}
_MAX_HEAD_BYTES = 16 << 20
_SCALE = 0x2AD7B1
# Elements of a TrackEntry.
_ENTRY = 0xAE
_NUMBER = 0xD7
_TYPE = 0x83
_CODEC = 0x86
_PRIVATE = 0x63A2
_FRAME_NANOSECONDS = 0x23E383
_ENCODINGS = 0x6D80
_ENCRYPTION = 0x5035
_VIDEO = 0xE0
_WIDTH = 0xB0
_HEIGHT = 0xBA
_COLOUR = 0x55B0
_PROJECTION = 0x7670
_ROLL = 0x7675
_PRIMARIES = 0x55BB
_TRANSFER = 0x55BA
_MATRIX = 0x55B1
_RANGE = 0x55B9
# Numbers of colours (ISO/IEC 23091-2): none, and the highest. Then the number of a full range.
_UNSPECIFIED = 2
_MAX_COLOUR = 22
_FULL = 2
_VIDEO_TRACK = 1
# Flags of a block.
_KEY = 0x80
_INVISIBLE = 0x08
_LACED = 0x06
_CODECS = {
    "V_MPEG4/ISO/AVC": "h264", "V_MPEGH/ISO/HEVC": "hevc", "V_AV1": "libdav1d", "V_VP8": "vp8", "V_VP9": "vp9",
    "V_MPEG4/ISO/ASP": "mpeg4", "V_MPEG4/ISO/SP": "mpeg4", "V_MPEG2": "mpeg2video", "V_MPEG1": "mpeg1video",
    "V_MJPEG": "mjpeg", "V_FFV1": "ffv1",
}  # fmt: skip


def header(content: bytes | memoryview, at: int = 0) -> tuple[int, int | None, int]:
    """Reads the header of the element at byte `at`.

    Returns:
        The id, the length of the body, which is None if the file does not say it, and the length of the header.

    Raises:
        DamagedError: these bytes are not a header, or it is cut off.
    """
    try:
        id_bytes = 9 - content[at].bit_length()
        if id_bytes > _LONGEST_ID:
            raise DamagedError(f"an element begins with byte {content[at]:#04x}", at)
        number, length_bytes = number_at(content, at + id_bytes)
    except IndexError as error:
        raise DamagedError("an element is cut off in its header", at) from error
    length = None if number == (1 << 7 * length_bytes) - 1 else number
    return int.from_bytes(content[at : at + id_bytes], "big"), length, id_bytes + length_bytes


def number_at(content: bytes | memoryview, at: int) -> tuple[int, int]:
    """Reads a number whose first byte says its length; returns the number and that length.

    Raises:
        DamagedError: the number is cut off, or its length is not allowed.
        IndexError: there is no byte `at`.
    """
    count = 9 - content[at].bit_length()
    if count > 8 or at + count > len(content):
        raise DamagedError("a number is longer than what has it", at)
    return int.from_bytes(content[at : at + count], "big") & ((1 << 7 * count) - 1), count


def elements(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yields ids and bodies of the elements in a body.

    Raises:
        DamagedError: an element is longer than the body, has no length, or has no valid header.
    """
    at = 0
    while at < len(content):
        kind, length, head = header(content, at)
        if length is None or at + head + length > len(content):
            raise DamagedError(f"element {kind:#x} is longer than the one around it", at)
        yield kind, content[at + head : at + head + length]
        at += head + length


def read_unsigned(body: memoryview | bytes) -> int:
    """Reads a whole number of any length; 0 for no bytes."""
    return int.from_bytes(body, "big")


def read_real(body: memoryview | bytes) -> float:
    """Reads a float of 4 or 8 bytes, and 0.0 for no bytes; raises DamagedError for other lengths."""
    if len(body) not in {0, 4, 8}:
        raise DamagedError(f"a float of {len(body)} bytes")
    return float(struct.unpack(">f" if len(body) == 4 else ">d", body)[0]) if body else 0.0


class MatroskaEntry(msgspec.Struct):
    """A track of the file.

    Attributes:
        number: number of the track in blocks.
        type: type of the track, which is 1 for video.
        codec: its codec parameters.
        frame_nanoseconds: usual duration of a frame, or 0 if the file does not say it.
        unread: why the packets are not read, as the end of a sentence, or "" if they are.
    """

    number: int = 0
    type: int = 0
    codec: TrackCodec = TrackCodec("")
    frame_nanoseconds: int = 0
    unread: str = ""


class Blocks:
    """Collects the packets of one track.

    Args:
        number: number of the track in blocks.

    Attributes:
        columns: offset, size, time, duration, key of each packet, and whether it is shown. Times are ticks of the file.
        cluster: time of the cluster that is being read, ticks.
        laced_at: byte in the file of a block with several frames, or None if there is none.
    """

    def __init__(self, number: int) -> None:
        self.columns = tuple(array("q") for _ in range(6))
        self.cluster = 0
        self.laced_at: int | None = None
        self._number = number
        self._is_referring = False
        self._is_added = False

    def begin_group(self) -> None:
        """Notes that a group begins, whose elements are all about one block."""
        self._is_referring = self._is_added = False

    def refer(self) -> None:
        """Notes that the block of this group refers to other blocks, so it is no key. The block may come later."""
        self._is_referring = True
        if self._is_added:
            self.columns[4][-1] = False

    def last(self, duration: int) -> None:
        """Notes the duration of the block of this group, in ticks, if the block came before."""
        if self._is_added:
            self.columns[3][-1] = duration

    def add(self, head: bytes, at: int, stop: int, *, simple: bool) -> None:
        """Adds a block, unless it is of another track.

        Args:
            head: first bytes of its body.
            at: byte of the file at which its body begins.
            stop: byte at which it ends.
            simple: whether it is no part of a group, so that its own flags say whether it is a key.

        Raises:
            DamagedError: the block is too short.
            UnreadError: there are too many packets.
        """
        track, used = number_at(head, 0)
        if len(head) < used + 3:
            raise DamagedError(f"a block of {len(head)} bytes", at)
        if track != self._number:
            return
        flags = head[used + 2]
        if flags & _LACED:
            self.laced_at = at
        if len(self.columns[0]) >= MAX_PACKETS:
            raise UnreadError(f"has more than {MAX_PACKETS} packets", at)
        time = self.cluster + int.from_bytes(head[used : used + 2], "big", signed=True)
        key = bool(flags & _KEY) if simple else not self._is_referring
        begin = at + used + 3
        row = (begin, stop - begin, time, 0, key, not flags & _INVISIBLE)
        for column, value in zip(self.columns, row, strict=True):
            column.append(value)
        self._is_added = not simple


class MatroskaTracks:
    """Collects what the elements of a file say: the video tracks, and the packets of each.

    Args:
        stream_index: number of the wanted track in the file, or None for all video tracks.

    Attributes:
        nanoseconds: length of a tick of the file.
        tracks: each video track with its packets.
    """

    def __init__(self, stream_index: int | None) -> None:
        self.nanoseconds = 1_000_000
        self.tracks: list[tuple[MatroskaEntry, Blocks]] = []
        self._stream_index = stream_index

    def begin_group(self) -> None:
        """Notes for all tracks that a group begins, whose elements are all about one block."""
        for _, blocks in self.tracks:
            blocks.begin_group()

    def take(self, kind: int, content: bytes, body: int, stop: int) -> None:
        """Takes an element.

        Args:
            kind: its id.
            content: its body, or the beginning of it (`_READ_BYTES`).
            body: byte of the file at which the body begins.
            stop: byte at which it ends.

        Raises:
            DamagedError, UnreadError: as `read_matroska`.
        """
        if kind == _INFO:
            scales = [read_unsigned(inner) for name, inner in elements(memoryview(content)) if name == _SCALE]
            self.nanoseconds = next(filter(None, scales), self.nanoseconds)
        elif kind == _TRACKS:
            self.tracks = [
                (entry, Blocks(entry.number)) for entry in _find_videos(memoryview(content), self._stream_index)
            ]
        for _, blocks in self.tracks:
            if kind == _TIMESTAMP:
                blocks.cluster = read_unsigned(content)
            elif kind == _REFERENCE:
                blocks.refer()
            elif kind == _DURATION:
                blocks.last(read_unsigned(content))
            elif kind in _BLOCKS:
                blocks.add(content, body, stop, simple=kind == _SIMPLE_BLOCK)

    def choose_track(self) -> tuple[MatroskaEntry, Blocks]:
        """Returns the track to take, see `prefer`; raises UnreadError if it is not read."""
        sizes = [(len(blocks.columns[0]), entry.codec.width * entry.codec.height) for entry, blocks in self.tracks]
        entry, blocks = self.tracks[prefer(sizes)]
        if entry.unread:
            raise UnreadError(entry.unread)
        if blocks.laced_at is not None:
            raise UnreadError("has several frames in one block, which is not read", blocks.laced_at)
        return entry, blocks


def read_matroska(
    record: ObjectRecord, stream_index: int | None = None
) -> Generator[Need, Answer, tuple[Packets, TrackCodec, int]]:
    """Reads a file from its beginning to its end; asks for bytes by `yield` (`formats/reading.py`).

    Args:
        record: the file.
        stream_index: number of the track, or None for the one that `prefer` takes.

    Returns:
        Packets and codec parameters of the track, and the number of its ticks in a second.

    Raises:
        DamagedError: the file is cut off, or its elements contradict each other.
        UnreadError: the file is no Matroska or WebM, or has no such track that is read.
    """
    window = Window(record.size)
    size = record.size
    at = 0
    found = MatroskaTracks(stream_index)
    while at < size:
        yield from window.reach(at, min(size, at + MAX_HEADER_BYTES))
        kind, length, head = header(window.take(at, min(size, at + MAX_HEADER_BYTES)))
        body = at + head
        if (at == 0) != (kind == _EBML):
            raise UnreadError(f"has element {kind:#x}, where Matroska and WebM have another one", at)
        if kind in _ENTERED:
            if kind == _GROUP:
                found.begin_group()
            at = body
            continue
        if length is None or body + length > size:
            raise DamagedError(f"cut off: element {kind:#x} at byte {at} ends behind the file of {size} bytes", at)
        read = length if kind in _HEADS else min(length, _READ_BYTES.get(kind, 0))
        if read > _MAX_HEAD_BYTES:
            raise UnreadError(f"has a head of {read} bytes, at most {_MAX_HEAD_BYTES} are read", at)
        at = body + length
        if read:
            yield from window.reach(body, body + read)
            found.take(kind, window.take(body, body + read), body, at)
    if not found.tracks:
        raise DamagedError("cut off: it has no tracks", size)
    entry, blocks = found.choose_track()
    return _packets(blocks, entry, found.nanoseconds, size), entry.codec, _ticks(found.nanoseconds)[0]


def _ticks(nanoseconds: int) -> tuple[int, int]:
    """Returns the ticks of packets for a file whose ticks have so many nanoseconds.

    Returns:
        Number of ticks in a second, and number of them in a tick of the file.
    """
    second = 1_000_000_000
    return (second, nanoseconds) if second % nanoseconds else (second // nanoseconds, 1)


def _packets(blocks: Blocks, entry: MatroskaEntry, nanoseconds: int, size: int) -> Packets:
    """Returns the packets of a track in ticks of `_ticks`; raises DamagedError if some are outside of `size` bytes."""
    offset, length, time, duration, key, shown = (np.frombuffer(column, np.int64) for column in blocks.columns)
    timescale, ticks = _ticks(nanoseconds)
    # Packets without a duration get the usual one, as FFmpeg does, up to a thousand seconds. A wrong one changes only
    # when the last frame ends.
    usual = min(round(entry.frame_nanoseconds * timescale / 1e9), 1000 * timescale)
    if np.abs(time).max(initial=0) * ticks >= 1 << 62:
        raise DamagedError("times of more than 100 years")
    packets = Packets(
        offset=offset,
        size=length,
        pts=time * ticks,
        duration=np.where(duration, duration * ticks, usual),
        key=key.astype(bool),
        shown=shown.astype(bool),
        entry=np.zeros(len(offset), np.int64),
    )
    packets.check(size)
    return packets


def _find_videos(content: memoryview, stream_index: int | None) -> list[MatroskaEntry]:
    """Reads the element Tracks, and returns its video tracks, or only the track of number `stream_index`.

    Raises:
        UnreadError: there is no such video track, or the only one is not read.
    """
    found = [_entry(body) for kind, body in elements(content) if kind == _ENTRY]
    wanted = found if stream_index is None else found[stream_index : stream_index + 1] if stream_index >= 0 else []
    videos = [entry for entry in wanted if entry.type == _VIDEO_TRACK]
    if not videos:
        which = "" if stream_index is None else f", number {stream_index}"
        raise UnreadError(f"has no video track{which}: it has tracks of types {[entry.type for entry in found]}")
    if len(videos) == 1 and videos[0].unread:
        raise UnreadError(videos[0].unread)
    return videos


def _entry(content: memoryview) -> MatroskaEntry:
    """Reads a TrackEntry; what cannot be read is said in `unread`."""
    found = MatroskaEntry()
    name = ""
    codec: dict[str, Any] = {}
    for kind, body in elements(content):
        if kind == _NUMBER:
            found.number = read_unsigned(body)
        elif kind == _TYPE:
            found.type = read_unsigned(body)
        elif kind == _CODEC:
            name = bytes(body).decode("latin-1").rstrip("\0")
        elif kind == _PRIVATE:
            codec["extradata"] = bytes(body)
        elif kind == _FRAME_NANOSECONDS:
            found.frame_nanoseconds = read_unsigned(body)
        elif kind == _ENCODINGS:
            is_encrypted = any(inner == _ENCRYPTION for _, part in elements(body) for inner, _ in elements(part))
            found.unread = ENCRYPTED if is_encrypted else "has packets that are compressed once more"
        elif kind == _VIDEO:
            codec |= _parse_frame(body, found)
    if name not in _CODECS:
        found.unread = found.unread or f"is encoded as {name!r}, which is not read"
    found.codec = TrackCodec(_CODECS.get(name, ""), **codec)
    return found


def _parse_frame(content: memoryview, entry: MatroskaEntry) -> dict[str, Any]:
    """Reads the element Video; returns attributes of `TrackCodec` by name, or sets `entry.unread` for turned frames."""
    found: dict[str, Any] = {}
    for kind, body in elements(content):
        if kind in {_WIDTH, _HEIGHT}:
            found["width" if kind == _WIDTH else "height"] = read_unsigned(body)
        elif kind == _COLOUR:
            numbers = {name: read_unsigned(inner) for name, inner in elements(body)}
            known = [numbers.get(name, _UNSPECIFIED) for name in (_PRIMARIES, _TRANSFER, _MATRIX)]
            if max(known) <= _MAX_COLOUR:
                found["colour"] = (*known, numbers.get(_RANGE) == _FULL)
        elif kind == _PROJECTION:
            turns = [read_real(inner) for name, inner in elements(body) if name == _ROLL]
            if any(turns):
                entry.unread = f"is turned by {turns[0]} degrees, which is not read"
    return found
