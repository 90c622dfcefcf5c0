"""FLAC: frames that say which samples they have, so that the beginnings of chunks are enough for the index. No I/O.

Source: RFC 9639.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import numpy as np

from streamer.formats.audio.frames import Frames
from streamer.formats.audio.recordings import Edge, Edged
from streamer.formats.audio.sounds import Integers
from streamer.formats.failures import damaged
from streamer.formats.media.entries import Codec
from streamer.formats.reading import Reading, read_range, read_ranges
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Need

MAGIC = b"fLaC"
# Bytes that are read where a chunk begins: some frames of most files, 0.8 % of chunks of 8 MiB.
PROBE_BYTES = 64 << 10
_READ_BYTES = 4096
INFO_BYTES = 34
_SYNC = re.compile(rb"\xff[\xf8\xf9]")
# A head is followed by a frame that goes on with its samples; candidates that are looked at for it.
_CANDIDATES = 8
_LONGEST_HEAD = 16


class Flac(Edged, frozen=True):
    """A file of frames, whose extradata is its STREAMINFO."""

    def bounds(self, starts: Integers, stops: Integers) -> tuple[Integers, Integers]:
        """From the last known frame before the samples to what they take at most behind the last known one."""
        bytes_, samples = (np.array([getattr(edge, name) for edge in self.edges]) for name in ("byte", "sample"))
        begin = np.searchsorted(samples, starts, "right") - 1
        end = np.searchsorted(samples, stops, "left")
        spare = stops - samples[end - 1]
        # The numbers themselves, and the frames' heads: what does not get smaller is stored as it is.
        most = (spare + _longest_block(self.sound)) * _width(self.sound) + (spare // 16 + 64 * self.sound.channels)
        return bytes_[begin], np.minimum(bytes_[end], bytes_[end - 1] + most)


def read_flac(record: ObjectRecord, head: memoryview, chunk_bytes: int) -> Reading[Flac]:
    """Reads the head of a file, and where its chunks begin, all at once; raises ManifestError."""
    at, info, base = len(MAGIC), b"", 0
    while True:
        if at + 4 + INFO_BYTES > base + len(head):
            base, head = at, (yield from read_range(at, min(record.size, at + _READ_BYTES), record))
        block = head[at - base :]
        if len(block) < 4:
            raise damaged(record, "its head is cut off", record.size)
        kind, length = block[0], int.from_bytes(block[1:4], "big")
        if not info:
            info = bytes(block[4 : 4 + INFO_BYTES])
            if kind & 0x7F or len(info) < INFO_BYTES:
                raise damaged(record, "it does not begin with STREAMINFO", at)
        at += 4 + length
        if kind & 0x80:
            break
    if at > record.size:
        raise damaged(record, "its head is cut off", record.size)
    sound = sound_of(info)
    if not sound.rate:
        raise damaged(record, "its head says 0 Hz", at)
    return (yield from _probed(record, sound, at, chunk_bytes))


def sound_of(info: bytes) -> Codec:
    """Reads STREAMINFO."""
    packed = int.from_bytes(info[10:18], "big")
    return Codec("flac", info, rate=packed >> 44, channels=(packed >> 41 & 7) + 1)


def block_of(info: bytes) -> int:
    """Samples of a frame but for the last one; 0: they differ."""
    return int.from_bytes(info[:2], "big") if info[:2] == info[2:4] else 0


def _probed(record: ObjectRecord, sound: Codec, start: int, chunk_bytes: int) -> Reading[Flac]:
    total = _total(sound)
    places = list(range(start + chunk_bytes, record.size - PROBE_BYTES, chunk_bytes))
    if not total and start < record.size:
        places.append(max(start, record.size - PROBE_BYTES))
    needs = [Need(place, min(record.size, place + PROBE_BYTES), record) for place in places]
    probes = yield from read_ranges(needs)
    edges, after = {start: 0}, 0
    for place, probe in zip(places, probes, strict=True):
        found = frames_of(probe, sound, 0 if place == start else None)
        if not len(found.offsets):
            raise damaged(record, f"there is no frame in {len(probe)} bytes", place)
        edges[place + int(found.offsets[0])], after = int(found.firsts[0]), int(found.firsts[-1])
    edges[record.size] = total = total or after
    samples = [*edges.values()]
    if start < record.size and any(one >= other for one, other in pairwise(samples)):
        raise damaged(record, "its frames do not follow each other", start)
    return Flac(sound, total, tuple(Edge(*edge) for edge in edges.items()))


def frames_of(content: memoryview, sound: Codec, first: int | None) -> Frames:
    """Finds the frames of a run, of which the last may be cut off.

    Args:
        content: the run.
        sound: of the file.
        first: the first sample, if the run begins with a frame; None: it begins anywhere.
    """
    chain = list(_chain(content, sound, first))
    offsets = np.array([*(head[0] for head in chain), len(content)][: len(chain) + 1], np.int64)
    firsts = np.array([head[1] for head in chain] + [sum(head[1:]) for head in chain[-1:]], np.int64)
    return Frames(offsets[:-1], np.diff(offsets), firsts, content=content)


def _chain(content: memoryview, sound: Codec, first: int | None) -> Iterator[tuple[int, int, int]]:
    """Yields place, first sample and samples of frames that go on with each other."""
    heads = [
        (found.start(), *head)
        for found in _SYNC.finditer(content)
        if (head := frame_head(bytes(content[found.start() : found.start() + _LONGEST_HEAD]), sound)) is not None
    ]
    expected = first
    for number, (place, start, count) in enumerate(heads):
        following = start + count
        if expected is None:
            later = heads[number + 1 : number + 1 + _CANDIDATES]
            if following != _total(sound) and all(other[1] != following for other in later):
                continue
        elif start != expected:
            continue
        expected = following
        yield place, start, count


def frame_head(content: bytes, sound: Codec) -> tuple[int, int] | None:
    """Returns the first sample of the frame with this head, and its samples; None: it is none.

    Source: RFC 9639, section 9.1.
    """
    if len(content) < 6 or not content[2] >> 4 or content[2] & 15 == 15 or content[3] & 1 or content[3] >> 4 > 10:
        return None
    number, end = _coded_number(content)
    if end < 0 or len(content) < end + 3:
        return None
    code = content[2] >> 4
    if code in {6, 7}:
        length = code - 5
        count = int.from_bytes(content[end : end + length], "big") + 1
        end += length
    else:
        count = 192 if code == 1 else 576 << (code - 2) if code < 6 else 256 << (code - 8)
    end += {12: 1, 13: 2, 14: 2}.get(content[2] & 15, 0)
    if len(content) <= end or _crc8(content[:end]) != content[end]:
        return None
    if content[1] & 1:
        return number, count
    return number * (block_of(sound.extradata) or count), count


def _coded_number(content: bytes) -> tuple[int, int]:
    """The number behind the fourth byte, coded as UTF-8 does, and where it ends; -1: there is none."""
    lead = content[4]
    if lead < 0x80:
        return lead, 5
    more = 7 - (lead ^ 0xFF).bit_length()
    if not 1 <= more <= 6:
        return 0, -1
    number = lead & (0x3F >> more)
    for byte in content[5 : 5 + more]:
        if byte & 0xC0 != 0x80:
            return 0, -1
        number = number << 6 | byte & 0x3F
    return number, 5 + more


def _crc8(content: bytes) -> int:
    crc, table = 0, _crc8_table()
    for byte in content:
        crc = table[crc ^ byte]
    return crc


@cache
def _crc8_table() -> bytes:
    table = []
    for number in range(256):
        crc = number
        for _ in range(8):
            crc = (crc << 1 ^ 0x07) & 0xFF if crc & 0x80 else crc << 1
        table.append(crc)
    return bytes(table)


def _total(sound: Codec) -> int:
    """Samples that the head tells; 0: it does not."""
    return int.from_bytes(sound.extradata[13:18], "big") & (1 << 36) - 1


def _width(sound: Codec) -> int:
    """Bytes of a sample of all channels, at most: the difference of two channels has a bit more."""
    bits = (int.from_bytes(sound.extradata[10:18], "big") >> 36 & 31) + 1
    return -(-sound.channels * (bits + 1) // 8)


def _longest_block(sound: Codec) -> int:
    return int.from_bytes(sound.extradata[2:4], "big")
