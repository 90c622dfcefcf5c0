"""Opus in Ogg: pages that say which samples end in them, so that the beginnings of chunks are enough. No I/O.

Source: RFC 3533 (pages), RFC 7845 (Opus in Ogg), RFC 6716, section 3.1 (the lengths of packets).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import ClassVar

import msgspec
import numpy as np

from streamer.formats.audio.flac import PROBE_BYTES
from streamer.formats.audio.frames import Frames
from streamer.formats.audio.recordings import Edge, Edged
from streamer.formats.audio.sounds import Integers
from streamer.formats.failures import DamagedError, damaged, refused
from streamer.formats.media.entries import Codec
from streamer.formats.reading import Reading, read_range, read_ranges
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Need

MAGIC = b"OggS"
_RATE = 48_000
_HEAD_BYTES, _GRANULE = 27, Struct("<qI")
# What is read of a file until there is sound: comments may have pictures.
_STARTS = (PROBE_BYTES, 1 << 20, 16 << 20)
# With the 80 ms of RFC 7845 27 of 42 windows are equal to those of a decoder that began at the start, with a second all
# (2026-11-24).
LEAD = _RATE
# Samples of each part of a packet, by its configuration.
_SAMPLES = np.array([480, 960, 1920, 2880] * 3 + [480, 960] * 2 + [120, 240, 480, 960] * 4)
# Bytes of a second of a stream of two channels, at most (RFC 6716, 2.1.1), and a page, which is read as a whole.
_MOST_PER_SECOND, _LONGEST_PAGE = 64_000, 65_307


class Page(msgspec.Struct, frozen=True):
    """A page: its place, and what its head says.

    Attributes:
        byte: where it begins.
        body: where its packets begin.
        granule: the sample behind the last packet that ends in it, pre-skip included; -1: none ends.
        serial: of its stream.
        goes_on: whether it begins with the rest of a packet.
        lacing: lengths of the pieces of its packets; one of 255 goes on in the next piece.
    """

    byte: int
    body: int
    granule: int
    serial: int
    goes_on: bool
    lacing: bytes

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.body + sum(self.lacing)

    @property
    def is_cut(self) -> bool:
        """Whether its last packet goes on in the next page."""
        return self.lacing.endswith(b"\xff")


class Opus(Edged, frozen=True):
    """A stream of packets; the extradata is its OpusHead without pre-skip, an edge is a page with its first packet."""

    lead: ClassVar[int] = LEAD
    # The last packet may end in the page of the edge.
    behind: ClassVar[int] = _LONGEST_PAGE

    def most_bytes(self, samples: Integers) -> Integers:
        """With the page in which the last one ends."""
        return samples * _MOST_PER_SECOND * -(-self.sound.channels // 2) // _RATE + _LONGEST_PAGE


def read_opus(record: ObjectRecord, chunk_bytes: int) -> Reading[Opus]:
    """Reads the head of a stream, where its chunks begin and its end; raises ManifestError."""
    setup, serial, begin, base = yield from _read_start(record)
    skip = skip_of(setup)
    places = list(range(begin + chunk_bytes, record.size - 2 * PROBE_BYTES, chunk_bytes))
    last = max(begin, record.size - 2 * PROBE_BYTES)
    needs = [*(Need(place, place + PROBE_BYTES, record) for place in places), Need(last, record.size, record)]
    *probes, end = yield from read_ranges(needs)
    edges = {begin: -skip}
    for place, probe in zip(places, probes, strict=True):
        found = _first_page(record, probe, serial)
        if found is None:  # pages are longer than those of most files
            stop = min(record.size, place + 4 * PROBE_BYTES)
            found = _first_page(record, (yield from read_range(place, stop, record)), serial)
        if found is None:
            raise damaged(record, f"there is no page in {4 * PROBE_BYTES} bytes", place)
        edges[place + found.byte] = found.sample - base - skip
    ends = [page.granule for page in _own(record, end, serial) if page.granule > 0]
    edges[record.size] = total = max(0, max(ends, default=0) - base - skip)
    if any(one >= other for one, other in pairwise(edges.values())):
        raise damaged(record, "its pages do not follow each other", begin)
    return Opus(sound_of(setup), total, tuple(Edge(*edge) for edge in edges.items()))


def skip_of(setup: bytes) -> int:
    """The samples that OpusHead says are not played."""
    return int.from_bytes(setup[10:12], "little")


def sound_of(setup: bytes) -> Codec:
    """What the decoder is told so that it skips nothing."""
    return Codec("opus", setup[:10] + b"\0\0" + setup[12:], rate=_RATE, channels=setup[9])


def _read_start(record: ObjectRecord) -> Reading[tuple[bytes, int, int, int]]:
    """Returns OpusHead, number of the stream, byte of the first page with sound, and its first sample."""
    for length in _STARTS:
        head = yield from read_range(0, min(record.size, length), record)
        pages = list(_pages_of(head))
        setup = bytes(head[pages[0].body : pages[0].stop]) if pages else b""
        if setup[:8] != b"OpusHead" or len(setup) < 19 or not setup[9]:
            what = "is Ogg, but not Opus: windows are cut out of Opus; AudioClip decodes whole files"
            raise refused(record, what, of_one=True)
        # Pages of the comments, which may have pictures, end at sample 0.
        if page := next((page for page in pages if page.granule > 0), None):
            return setup, pages[0].serial, page.byte, max(0, _first_sample(page, head))
    raise damaged(record, f"there is no sound in its first {len(head)} bytes", 0)


def _first_page(record: ObjectRecord, content: memoryview, serial: int) -> Edge | None:
    """The first page of a run in which a packet ends, and its first sample."""
    page = next((page for page in _own(record, content, serial) if page.granule > 0), None)
    return None if page is None else Edge(page.byte, _first_sample(page, content))


def _own(record: ObjectRecord, content: memoryview, serial: int) -> Iterator[Page]:
    for page in _pages_of(content):
        if page.serial != serial:
            what = "has several streams, of which none is chosen: store each in a file of its own"
            raise refused(record, what, of_one=True)
        yield page


def _pages_of(content: memoryview) -> Iterator[Page]:
    """Yields the whole pages of a run, which may begin anywhere."""
    raw, at = bytes(content), 0
    while (at := raw.find(MAGIC, at)) >= 0 and at + _HEAD_BYTES <= len(raw):
        body = at + _HEAD_BYTES + raw[at + 26]
        lacing = raw[at + _HEAD_BYTES : body]
        stop = body + sum(lacing)
        if raw[at + 4] or stop > len(raw):
            at += 4
            continue
        granule, serial = _GRANULE.unpack_from(raw, at + 6)
        yield Page(at, body, granule, serial, bool(raw[at + 5] & 1), lacing)
        at = stop


def _first_sample(page: Page, content: memoryview) -> int:
    """The first sample of the first packet that begins in a page, in which a packet ends."""
    return page.granule - int(_packets_of([page], content, 0).firsts[-1])


def frames_of(content: memoryview, first: int) -> Frames:
    """The packets of a run of pages; the first one that begins in it has the sample `first`; raises DamagedError."""
    pages = list(_pages_of(content))
    for page, following in pairwise(pages):
        if following.byte != page.stop or following.goes_on != page.is_cut:
            raise DamagedError("its pages do not follow each other", following.byte)
    return _packets_of(pages, content, first)


def _packets_of(pages: Sequence[Page], content: memoryview, first: int) -> Frames:
    """The packets that begin and end in pages."""
    joined = b"".join([content[page.body : page.stop] for page in pages])
    pieces = np.frombuffer(b"".join([page.lacing for page in pages]), np.uint8)
    ends = np.cumsum(pieces, dtype=np.int64)[pieces < 255]
    starts = np.append(0, ends[:-1])[: len(ends)]
    if pages and pages[0].goes_on:
        starts, ends = starts[1:], ends[1:]
    # Of an empty packet there is no byte.
    padded = np.frombuffer(joined + b"\0\0", np.uint8)
    samples = np.where(ends > starts, _samples(padded[starts], np.where(ends - starts > 1, padded[starts + 1], 0)), 0)
    firsts = first + np.append(0, np.cumsum(samples))
    return Frames(starts, ends - starts, firsts, LEAD, memoryview(joined))


def _samples(toc: Integers, following: Integers) -> Integers:
    """Samples of the packets that begin with these two bytes."""
    code = toc & 3
    found: Integers = _SAMPLES[toc >> 3] * np.where(code == 3, following & 63, np.where(code == 0, 1, 2))
    return found
