"""FLAC: frames that say which samples they have, so that the beginnings of chunks are enough for the index. No I/O.

Source: RFC 9639.
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
# Bytes that are read where a chunk begins: some frames of most files, 0.8 % of chunks of 8 MiB; two frames at least.
PROBE_BYTES = 64 << 10
_READ_BYTES = 4096
INFO_BYTES = 34
_SYNC = re.compile(rb"\xff[\xf8\xf9]")
# A head is followed by a frame that goes on with its samples; candidates that are looked at for it.
_CANDIDATES = 8
_LONGEST_HEAD = 17
# Samples of a block, as STREAMINFO can have it; the head of a frame can have one more.
_MAX_BLOCK = (1 << 16) - 1
# Samples of a frame by their code, and bytes of the head that some codes of samples and of the rate have.
_SIZES = np.array([0, 192, 576, 1152, 2304, 4608, 0, 0, *(256 << power for power in range(8))])
_MORE_OF_SIZE = np.array([0] * 6 + [1, 2] + [0] * 8)
_MORE_OF_RATE = np.array([0] * 12 + [1, 2, 2, 0])
# Bytes behind the first one of a number, -1 if none begins so, and by these the bits of the first byte.
_MORE_OF_NUMBER = np.array([0] * 128 + [-1] * 64 + [1] * 32 + [2] * 16 + [3] * 8 + [4] * 4 + [5] * 2 + [6, -1])
_LEAD_MASK = np.array([0x7F, 0x1F, 0x0F, 0x07, 0x03, 0x01, 0x00, 0x00])


class Flac(Edged, frozen=True):
    """A file of frames, whose extradata is its STREAMINFO."""

    def max_bytes(self, samples: Integers) -> Integers:
        """The numbers themselves, and the frames' heads: what does not get smaller is stored as it is."""
        return (samples + _longest_block(self.audio)) * _width(self.audio) + (samples // 16 + 64 * self.audio.channels)


def read_flac(record: ObjectRecord, head: memoryview, start: int, chunk_bytes: int) -> Reading[Flac]:
    """Reads the head of a file, and where its chunks begin, all at once; raises ManifestError.

    Args:
        record: The object.
        head: Bytes from `start` on.
        start: Place of the magic number, behind tags.
        chunk_bytes: How far apart places are for which the index looks.
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
    """Reads STREAMINFO."""
    packed = int.from_bytes(info[10:18], "big")
    return TrackCodec("flac", info, rate=packed >> 44, channels=(packed >> 41 & 7) + 1)


def block_of(info: bytes) -> int:
    """Samples of a frame but for the last one; 0 if they differ, and frames have the number of their first sample."""
    return int.from_bytes(info[:2], "big") if info[:2] == info[2:4] else 0


def _fill_block_size(audio: TrackCodec, content: memoryview) -> TrackCodec:
    """Writes the size of blocks to a STREAMINFO that does not say it, if the first frames have one.

    Some writers leave 0 as the least size, or count the last block as well. Files of before 2007 whose sizes differ do
    not mark it in their frames, which have numbers of samples: in these the second one does not have the number behind
    that of the first.
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
    # The head has 0 where it does not tell them: a frame is then as long as if nothing got smaller.
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
    """Finds the frames of a run, of which the last may be cut off.

    Args:
        content: Bytes of the run.
        audio: What the head of the file says.
        first: Number of its first sample, if the run begins with a frame. None if it begins anywhere: the frames say
            their numbers then, which begin with another one than 0 in a part of a longer recording.
        stop: Number behind that of the last sample of the file as frames say it; 0 if it is not known.
    """
    places, numbers, counts, are_samples = _heads(content)
    starts = np.where(are_samples, numbers, numbers * (block_of(audio.extradata) or 1))
    if first is not None and len(places) and places[0] == 0:
        starts += first - starts[0]
    stops = starts + counts
    # Heads are taken that go on with each other: each has a first sample and one behind its last.
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
    """Returns the number that the frame with which a run begins says its first sample has."""
    places, numbers, _, are_samples = _heads(content)
    if not len(places) or places[0]:
        return 0
    return int(numbers[0]) * (1 if are_samples[0] else block_of(audio.extradata) or 1)


def _heads(content: memoryview) -> tuple[Integers, Integers, Integers, Integers]:
    """Returns place, number, samples, and whether the number is of a sample, of all that is like the head of a frame.

    Source: RFC 9639, section 9.1.
    """
    places = np.array([found.start() for found in _SYNC.finditer(content)], np.int64)
    if not len(places):
        return places, places, places, places
    # A row for each; behind the end the last byte is repeated.
    within = np.minimum(places[:, None] + np.arange(_LONGEST_HEAD), len(content) - 1)
    heads = np.frombuffer(content, np.uint8)[within].astype(np.int64)
    size_code = heads[:, 2] >> 4
    rate_code = heads[:, 2] & 15
    # Numbers behind the fourth byte are coded as UTF-8 does; they end at 0 where there is none.
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
    """Bytes of a sample of all channels, at most: the difference of two channels has a bit more."""
    bits = (int.from_bytes(audio.extradata[10:18], "big") >> 36 & 31) + 1
    return -(-audio.channels * (bits + 1) // 8)


def _longest_block(audio: TrackCodec) -> int:
    return int.from_bytes(audio.extradata[2:4], "big")
