"""Reads FLAC: frames say which samples they have, so that an index reads only the head and some frames of each chunk.

`index.py` reads files with it, `recode.py` finds the frames of a block, and `tracks.py` reads FLAC in mp4. Functions
that return a `Reading` ask for bytes by `yield` (`formats/reading.py`), so there is no I/O here. A "sample" here is a
value of each channel at one time. Source: RFC 9639.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise

import msgspec
import numpy as np

from streamer.formats.failures import make_damage_error
from streamer.formats.reading import Reading, read_range, read_ranges
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Need
from streamer.media.audio.recordings import AudioFrames, Edge, Edged
from streamer.media.audio.windows import Integers
from streamer.media.containers.entries import TrackCodec

MAGIC = b"fLaC"
# So many bytes are read where a chunk begins, or as many as two frames have: 0.8 % of a chunk of 8 MiB.
PROBE_BYTES = 64 << 10
_READ_BYTES = 4096
INFO_BYTES = 34
_SYNC = re.compile(rb"\xff[\xf8\xf9]")
# The first head in some bytes counts if one of so many heads after it goes on with its samples.
_CANDIDATES = 8
_LONGEST_HEAD = 17
# STREAMINFO can say at most so many samples of a frame; the head of a frame can say one more.
_MAX_BLOCK = (1 << 16) - 1
# Samples of a frame by their code in its head. Then the further bytes of the head by that code and by that of the rate.
_SIZES = np.array([0, 192, 576, 1152, 2304, 4608, 0, 0, *(256 << power for power in range(8))])
_MORE_OF_SIZE = np.array([0] * 6 + [1, 2] + [0] * 8)
_MORE_OF_RATE = np.array([0] * 12 + [1, 2, 2, 0])
# The number of a frame is coded as in UTF-8. `_MORE_OF_NUMBER` says by its first byte how many bytes follow, -1 if no
# number begins so. `_LEAD_MASK` says by that count which bits of the first byte belong to the number.
_MORE_OF_NUMBER = np.array([0] * 128 + [-1] * 64 + [1] * 32 + [2] * 16 + [3] * 8 + [4] * 4 + [5] * 2 + [6, -1])
_LEAD_MASK = np.array([0x7F, 0x1F, 0x0F, 0x07, 0x03, 0x01, 0x00, 0x00])


class Flac(Edged, frozen=True):
    """A FLAC file. The extradata of `audio` is its STREAMINFO, of 34 bytes."""

    def max_bytes(self, samples: Integers) -> Integers:
        """Returns the maximum number of bytes that runs of so many samples take; see `Edged.max_bytes`.

        FLAC stores values as they are if encoding makes them no smaller, so these are the values and heads of frames.
        """
        return (samples + _longest_block(self.audio)) * _width(self.audio) + (samples // 16 + 64 * self.audio.channels)


def read_flac(record: ObjectRecord, head: memoryview, start: int, chunk_bytes: int) -> Reading[Flac]:
    """Reads the head of a file, then at once the places where its chunks begin, and returns the edges found there.

    Args:
        record: the object.
        head: bytes of the object from `start` on.
        start: byte at which "fLaC" stands, after tags.
        chunk_bytes: distance of the places in bytes.

    Raises:
        ManifestError: the head is cut off or wrong, or there is no frame at a place, or frames are out of order.
    """
    at = start + len(MAGIC)
    info = b""
    base = start
    while True:
        if at + 4 + INFO_BYTES > base + len(head):
            base = at
            head = yield from read_range(at, min(record.size, at + _READ_BYTES), record)
        block = head[at - base :]
        if len(block) < 4:
            raise make_damage_error(record, "its head is cut off", record.size)
        kind = block[0]
        length = int.from_bytes(block[1:4], "big")
        if not info:
            info = bytes(block[4 : 4 + INFO_BYTES])
            if kind & 0x7F or len(info) < INFO_BYTES:
                raise make_damage_error(record, "it does not begin with STREAMINFO", at)
        at += 4 + length
        if kind & 0x80:
            break
    if at > record.size:
        raise make_damage_error(record, "its head is cut off", record.size)
    audio = parse_codec(info)
    if not audio.rate:
        raise make_damage_error(record, "its head says 0 Hz", at)
    return (yield from _probe(record, audio, at, chunk_bytes))


def parse_codec(info: bytes) -> TrackCodec:
    """Returns codec, rate and channels by the body of STREAMINFO, which becomes the extradata."""
    packed = int.from_bytes(info[10:18], "big")
    return TrackCodec("flac", info, rate=packed >> 44, channels=(packed >> 41 & 7) + 1)


def block_of(info: bytes) -> int:
    """Returns the samples of every frame but the last by STREAMINFO; 0 if they differ.

    Where they differ, the head of a frame has the number of its first sample, else the number of the frame.
    """
    return int.from_bytes(info[:2], "big") if info[:2] == info[2:4] else 0


def _fill_block_size(audio: TrackCodec, content: memoryview) -> TrackCodec:
    """Returns the codec with a STREAMINFO that says the samples of a frame, where the file's does not and frames do.

    Some writers leave 0 as the least number, or count the last frame as well. In files of before 2007 frames of several
    lengths have numbers of samples without saying so. They are known by the second frame, whose number is not that of
    the first one plus 1: their codec is returned as it is.

    Args:
        audio: the codec by the head of the file.
        content: bytes that begin with the first frame.
    """
    _, numbers, counts, are_samples = _heads(content)
    if block_of(audio.extradata) or not len(numbers) or are_samples[0]:
        return audio
    following = numbers[0] + 1
    if len(numbers) > 1 and counts[0] > 1 and following not in numbers[1 : 1 + _CANDIDATES]:
        return audio
    if counts[0] > _MAX_BLOCK:
        return audio
    size = int(counts[0]).to_bytes(2, "big")
    return msgspec.structs.replace(audio, extradata=size + size + audio.extradata[4:])


def _probe(record: ObjectRecord, audio: TrackCodec, start: int, chunk_bytes: int) -> Reading[Flac]:
    """Reads some frames at places `chunk_bytes` apart, counted from the first frame at byte `start`.

    The first frame is read too if there are such places, or if the head does not say the samples of a frame. The last
    frames are read if it does not say the samples of the file.

    Raises:
        ManifestError: there is no frame at a place, or frames are out of order.
    """
    # The head has 0 for what it does not tell. The longest frame is then as long as one that stores its values as they
    # are.
    total = int.from_bytes(audio.extradata[13:18], "big") & (1 << 36) - 1
    longest_frame = int.from_bytes(audio.extradata[7:10], "big") or _longest_block(audio) * _width(audio)
    length = max(PROBE_BYTES, 2 * longest_frame + _LONGEST_HEAD)
    places = list(range(start + chunk_bytes, record.size - length, chunk_bytes))
    if not total and start < record.size:
        places.append(max(start, record.size - length))
    if start < record.size and start not in places and (places or not block_of(audio.extradata)):
        places.insert(0, start)
    needs = [Need(place, min(record.size, place + length), record) for place in places]
    probes = yield from read_ranges(needs)
    base = 0
    edges = {start: 0}
    after = 0
    for place, probe in zip(places, probes, strict=True):
        if place == start:
            audio = _fill_block_size(audio, probe)
            base = _first_sample(probe, audio)
        found = frames_of(probe, audio, 0 if place == start else None, total and base + total)
        if not len(found.offsets):
            raise make_damage_error(record, f"there is no frame in {len(probe)} bytes", place)
        moved = 0 if place == start else base
        edges[place + int(found.offsets[0])] = int(found.firsts[0]) - moved
        after = int(found.firsts[-1]) - moved
    edges[record.size] = total = total or after
    samples = [*edges.values()]
    if start < record.size and any(one >= other for one, other in pairwise(samples)):
        raise make_damage_error(record, "its frames do not follow each other", start)
    return Flac(audio, total, tuple(Edge(*edge) for edge in edges.items()))


def frames_of(content: memoryview, audio: TrackCodec, first: int | None, stop: int = 0) -> AudioFrames:
    """Finds the frames in bytes of a file, of which the last frame may be cut off.

    Args:
        content: the bytes.
        audio: the codec, as the head of the file says it.
        first: index of the first sample, if the bytes begin with a frame. None if they begin anywhere: the samples are
            numbered as the frames say then, which in a part of a longer recording do not begin with 0.
        stop: number after that of the last sample of the file, as frames say it, or 0 if it is not known.

    Returns:
        The frames that follow each other, of which there may be none.
    """
    places, numbers, counts, are_samples = _heads(content)
    starts = np.where(are_samples, numbers, numbers * (block_of(audio.extradata) or 1))
    if first is not None and len(places) and places[0] == 0:
        starts += first - starts[0]
    stops = starts + counts
    # A head is taken if it begins where the frame before it ends. The first one must be followed by such a head.
    begins = starts.tolist()
    chain = list[int]()
    expected = first
    for number, (begin, end) in enumerate(zip(begins, stops.tolist(), strict=True)):
        if expected is None:
            if end != stop and end not in begins[number + 1 : number + 1 + _CANDIDATES]:
                continue
        elif begin != expected:
            continue
        expected = end
        chain.append(number)
    offsets = np.append(places[chain], len(content))[: len(chain) + 1]
    return AudioFrames(offsets[:-1], np.diff(offsets), np.append(starts[chain], stops[chain[-1:]]), content=content)


def _first_sample(content: memoryview, audio: TrackCodec) -> int:
    """Returns the number of the first sample that the frame at byte 0 says; 0 if there is no frame."""
    places, numbers, _, are_samples = _heads(content)
    if not len(places) or places[0]:
        return 0
    return int(numbers[0]) * (1 if are_samples[0] else block_of(audio.extradata) or 1)


def _heads(content: memoryview) -> tuple[Integers, Integers, Integers, Integers]:
    """Finds everything that looks like the head of a frame and has the right checksum (RFC 9639, section 9.1).

    Returns:
        Four arrays, (heads,): the place of each head in `content`, its number, the samples of its frame, and 1 if the
        number is that of a sample, 0 if it is that of a frame.
    """
    places = np.array([found.start() for found in _SYNC.finditer(content)], np.int64)
    if not len(places):
        return places, places, places, places
    # `heads` has a row of bytes for each candidate. Where these reach over the end, the last byte is repeated.
    within = np.minimum(places[:, None] + np.arange(_LONGEST_HEAD), len(content) - 1)
    heads = np.frombuffer(content, np.uint8)[within].astype(np.int64)
    size_code = heads[:, 2] >> 4
    rate_code = heads[:, 2] & 15
    # The number after the fourth byte is coded as in UTF-8; `end` is 0 where there is none.
    lead = heads[:, 4]
    more = _MORE_OF_NUMBER[lead]
    number = lead & _LEAD_MASK[more]
    end = 5 + more
    for place in range(1, 7):
        byte = heads[:, 4 + place]
        end[(more >= place) & (byte & 0xC0 != 0x80)] = 0
        number = np.where(more >= place, number << 6 | byte & 0x3F, number)
    end[more < 0] = 0
    is_head = (size_code > 0) & (rate_code < 15) & (heads[:, 3] & 1 == 0) & (heads[:, 3] >> 4 <= 10) & (end > 0)
    row = np.arange(len(heads))
    stored = heads[row, end]
    following = heads[row, end + 1]
    count = np.select([size_code == 6, size_code == 7], [stored, stored << 8 | following], _SIZES[size_code] - 1) + 1
    end += _MORE_OF_SIZE[size_code] + _MORE_OF_RATE[rate_code]
    crc = np.zeros(len(heads), np.int64)
    table = _crc8_table()
    for place in range(_LONGEST_HEAD - 1):
        crc = np.where(place < end, table[crc ^ heads[:, place]], crc)
    is_head &= (places + end < len(content)) & (crc == heads[row, end])
    return places[is_head], number[is_head], count[is_head], (heads[:, 1] & 1)[is_head]


@cache
def _crc8_table() -> Integers:
    table = np.arange(256)
    for _ in range(8):
        table = np.where(table & 0x80, table << 1 ^ 0x07, table << 1) & 0xFF
    return table


def _width(audio: TrackCodec) -> int:
    """Returns the maximum bytes of a sample of all channels, with the further bit of a difference of two of them."""
    bits = (int.from_bytes(audio.extradata[10:18], "big") >> 36 & 31) + 1
    return -(-audio.channels * (bits + 1) // 8)


def _longest_block(audio: TrackCodec) -> int:
    return int.from_bytes(audio.extradata[2:4], "big")
