"""Reads Opus and Vorbis in Ogg: pages say which samples end in them, so that an index reads some pages of each chunk.

`index.py` reads files with it, `recode.py` finds the packets of a block, and `tracks.py` reads Opus in mp4. Functions
that return a `Reading` ask for bytes by `yield` (`formats/reading.py`), so there is no I/O here. A "sample" here is a
value of each channel at one time.

Source: RFC 3533 (pages), RFC 7845 (Opus in Ogg), RFC 6716, section 3.1 (the lengths of packets), and the Vorbis I
specification (Xiph.org), sections 4.2 (heads), 4.3.1 (windows of packets) and A.2 (granule positions).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from struct import Struct
from typing import ClassVar

import msgspec
import numpy as np

from streamer.formats.failures import DamagedError, errors_of, make_damage_error, make_refusal
from streamer.formats.reading import Reading, read_range, read_ranges
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Need
from streamer.media.audio.flac import PROBE_BYTES
from streamer.media.audio.recordings import AudioFrames, Edge, Edged
from streamer.media.audio.windows import Integers
from streamer.media.containers.entries import TrackCodec

MAGIC = b"OggS"
_VORBIS = b"\1vorbis"
# The last head of Vorbis has so many bits for a mode and for the number of modes, and at most so many modes.
_MODE_BITS = 41
_COUNT_BITS = 6
_MAX_MODES = 64
_RATE = 48_000
_HEAD_BYTES = 27
_GRANULE = Struct("<qI")
# So many bytes from the beginning are read, the next number if there is no audio in them: comments may have images.
_STARTS = (PROBE_BYTES, 1 << 20, 16 << 20)
# Opus is decoded from so many samples before a window on. With a second all of 42 windows were equal to those of a
# decoder that began at the start of the file, with the 80 ms of RFC 7845 only 27 (2026-11-24).
LEAD = _RATE
# Samples of each frame in a packet of Opus, by the packet's configuration (RFC 6716, 3.1).
_SAMPLES = np.array([480, 960, 1920, 2880] * 3 + [480, 960] * 2 + [120, 240, 480, 960] * 4)
# Maximum bytes of a second of two channels of Opus (RFC 6716, 2.1.1), and of a page, which is read as a whole.
_MAX_PER_SECOND = 64_000
_LONGEST_PAGE = 65_307


class Page(msgspec.Struct, frozen=True):
    """A page: its place in the bytes that were read, and what its head says.

    Attributes:
        byte: where it begins.
        body: where its packets begin.
        granule: number of the sample after the last packet that ends in the page, samples that are not played
            included; -1 if no packet ends in it.
        serial: number of its stream.
        goes_on: whether it begins with the rest of a packet.
        lacing: lengths of the pieces of its packets. After a piece of 255 bytes the packet goes on in the next piece.
    """

    byte: int
    body: int
    granule: int
    serial: int
    goes_on: bool
    lacing: bytes

    @property
    def stop(self) -> int:
        """The place after its last byte."""
        return self.body + sum(self.lacing)

    @property
    def is_cut(self) -> bool:
        """Whether its last packet goes on in the next page."""
        return self.lacing.endswith(b"\xff")


class Ogg(Edged, frozen=True):
    """A file with one stream. Its edges are pages, each with the first sample of the first packet that begins there."""

    # `Edged.behind`: the packet before an edge may end in the page of the edge.
    behind: ClassVar[int] = _LONGEST_PAGE


class Opus(Ogg, frozen=True):
    """Opus in Ogg. The extradata of `audio` is its OpusHead, with a pre-skip of 0."""

    lead: ClassVar[int] = LEAD

    def max_bytes(self, samples: Integers) -> Integers:
        """Returns the maximum number of bytes of so many samples, and of a page in which the last packet ends."""
        return samples * _MAX_PER_SECOND * -(-self.audio.channels // 2) // _RATE + _LONGEST_PAGE


class Vorbis(Ogg, frozen=True):
    """Vorbis in Ogg. The extradata of `audio` has its three heads, as Matroska stores them."""

    def max_bytes(self, samples: Integers) -> Integers:
        """Returns twice the bytes of 16-bit samples, which no stream needs, and a page."""
        return samples * 4 * self.audio.channels + _LONGEST_PAGE


def read_ogg(record: ObjectRecord, chunk_bytes: int) -> Reading[Ogg]:
    """Reads the head of a file, then at once the places where its chunks begin, and its end; returns the edges there.

    Args:
        record: the object.
        chunk_bytes: distance of the places in bytes.

    Raises:
        ManifestError: it has other or several streams, damaged heads, no audio in its first 16 MiB, no page at a place,
            or pages out of order.
    """
    audio, skip, serial, begin, base = yield from _read_start(record)
    places = list(range(begin + chunk_bytes, record.size - 2 * PROBE_BYTES, chunk_bytes))
    last = max(begin, record.size - 2 * PROBE_BYTES)
    needs = [*(Need(place, place + PROBE_BYTES, record) for place in places), Need(last, record.size, record)]
    *probes, end = yield from read_ranges(needs)
    edges = {begin: -skip}
    for place, probe in zip(places, probes, strict=True):
        found = _first_page(record, probe, serial, audio)
        if found is None:  # pages are longer than those of most files
            stop = min(record.size, place + 4 * PROBE_BYTES)
            found = _first_page(record, (yield from read_range(place, stop, record)), serial, audio)
        if found is None:
            raise make_damage_error(record, f"there is no page in {4 * PROBE_BYTES} bytes", place)
        edges[place + found.byte] = found.sample - base - skip
    ends = [page.granule for page in _own(record, end, serial) if page.granule > 0]
    edges[record.size] = total = max(0, max(ends, default=0) - base - skip)
    if any(one >= other for one, other in pairwise(edges.values())):
        raise make_damage_error(record, "its pages do not follow each other", begin)
    kind = Opus if audio.name == "opus" else Vorbis
    return kind(audio, total, tuple(Edge(*edge) for edge in edges.items()))


def skip_of(setup: bytes) -> int:
    """Returns the number of samples at the beginning that are not played, by OpusHead."""
    return int.from_bytes(setup[10:12], "little")


def parse_codec(setup: bytes) -> TrackCodec:
    """Returns the codec by OpusHead, with a pre-skip of 0, so that a decoder skips nothing."""
    return TrackCodec("opus", setup[:10] + b"\0\0" + setup[12:], rate=_RATE, channels=setup[9])


def _read_start(record: ObjectRecord) -> Reading[tuple[TrackCodec, int, int, int, int]]:
    """Reads the beginning of a file up to its first audio.

    Returns:
        The codec, the samples that are not played at the beginning, the number of the stream, the byte at which the
        first page with audio begins, and the number of its first sample.
    """
    for length in _STARTS:
        head = yield from read_range(0, min(record.size, length), record)
        pages = list(_pages_of(head))
        setup = bytes(head[pages[0].body : pages[0].stop]) if pages else b""
        is_opus = setup[:8] == b"OpusHead" and len(setup) >= 19 and setup[9] > 0
        if not is_opus and setup[:7] != _VORBIS:
            what = "is Ogg of neither Opus nor Vorbis; AudioClip decodes whole files"
            raise make_refusal(record, what, of_one=True)
        # Pages of the comments, which may have images, end at sample 0.
        if page := next((page for page in pages if page.granule > 0), None):
            heads = [each for each in pages if each.byte < page.byte]
            with errors_of(record):
                audio = parse_codec(setup) if is_opus else _vorbis_of(heads, head)
                skip = skip_of(setup) if is_opus else 0
                first = _first_sample(page, head, audio)
            return audio, skip, pages[0].serial, page.byte, max(0, first)
    raise make_damage_error(record, f"there is no audio in its first {len(head)} bytes", 0)


def _first_page(record: ObjectRecord, content: memoryview, serial: int, audio: TrackCodec) -> Edge | None:
    """Finds the first page in which a packet ends; returns its byte in `content` and first sample, None if none."""
    page = next((page for page in _own(record, content, serial) if page.granule > 0), None)
    return None if page is None else Edge(page.byte, _first_sample(page, content, audio))


def _own(record: ObjectRecord, content: memoryview, serial: int) -> Iterator[Page]:
    """Yields the whole pages in these bytes; raises ManifestError for a page of another stream."""
    for page in _pages_of(content):
        if page.serial != serial:
            what = "has several streams, of which none is chosen: store each in a file of its own"
            raise make_refusal(record, what, of_one=True)
        yield page


def _pages_of(content: memoryview) -> Iterator[Page]:
    """Yields the whole pages in these bytes, which may begin anywhere."""
    raw = bytes(content)
    at = 0
    while (at := raw.find(MAGIC, at)) >= 0 and at + _HEAD_BYTES <= len(raw):
        body = at + _HEAD_BYTES + raw[at + 26]
        lacing = raw[at + _HEAD_BYTES : body]
        stop = body + sum(lacing)
        if raw[at + 4] or stop > len(raw):
            at += 4
            continue
        granule, serial = _GRANULE.unpack_from(raw, at + 6)
        yield Page(byte=at, body=body, granule=granule, serial=serial, goes_on=bool(raw[at + 5] & 1), lacing=lacing)
        at = stop


def _first_sample(page: Page, content: memoryview, audio: TrackCodec) -> int:
    """Returns the number of the first sample of the first packet that begins in a page; a packet must end in it."""
    return page.granule - int(_packets_of([page], content, 0, audio).firsts[-1])


def frames_of(content: memoryview, first: int, audio: TrackCodec) -> AudioFrames:
    """Returns the packets that begin and end in these bytes.

    Args:
        content: whole pages.
        first: index of the first sample of the first packet that begins here.
        audio: the codec.

    Raises:
        DamagedError: the pages do not follow each other.
    """
    pages = list(_pages_of(content))
    for page, following in pairwise(pages):
        if following.byte != page.stop or following.goes_on != page.is_cut:
            raise DamagedError("its pages do not follow each other", following.byte)
    return _packets_of(pages, content, first, audio)


def _packets_of(pages: Sequence[Page], content: memoryview, first: int, audio: TrackCodec) -> AudioFrames:
    """Returns the packets that begin and end in these pages of `content`; `first` is as in `frames_of`."""
    joined, starts, ends = _join_pages(pages, content)
    # An empty packet at the end has no byte: zeros follow.
    padded = np.frombuffer(joined + b"\0\0", np.uint8)
    begins: Integers = padded[starts].astype(np.int64)
    if audio.name != "opus":
        return _vorbis_packets(joined=joined, begins=begins, edges=(starts, ends), first=first, audio=audio)
    # The first two bytes of a packet say how many samples it has.
    following = np.where(ends - starts > 1, padded[starts + 1], 0)
    code = begins & 3
    counts: Integers = _SAMPLES[begins >> 3] * np.where(code == 3, following & 63, np.where(code == 0, 1, 2))
    samples = np.where(ends > starts, counts, 0)
    firsts = first + np.append(0, np.cumsum(samples))
    return AudioFrames(offsets=starts, sizes=ends - starts, firsts=firsts, lead=LEAD, content=memoryview(joined))


def _join_pages(pages: Sequence[Page], content: memoryview) -> tuple[bytes, Integers, Integers]:
    """Returns the joined bodies of pages, and where the packets begin and end in them that are whole there."""
    joined = b"".join([content[page.body : page.stop] for page in pages])
    pieces = np.frombuffer(b"".join([page.lacing for page in pages]), np.uint8)
    ends = np.cumsum(pieces, dtype=np.int64)[pieces < 255]
    starts = np.append(0, ends[:-1])[: len(ends)]
    if pages and pages[0].goes_on:
        starts = starts[1:]
        ends = ends[1:]
    return joined, starts, ends


def _vorbis_of(pages: Sequence[Page], content: memoryview) -> TrackCodec:
    """Reads the three heads of Vorbis in the pages before the audio, and returns the codec; raises DamagedError."""
    joined, starts, ends = _join_pages(pages, content)
    heads = [joined[start:end] for start, end in zip(starts[:3].tolist(), ends[:3].tolist(), strict=True)]
    if [each[:7] for each in heads] != [bytes([kind]) + _VORBIS[1:] for kind in (1, 3, 5)] or len(heads[0]) < 30:
        raise DamagedError("the heads of Vorbis are cut off")
    # Matroska has the lengths of two before them, in bytes of which all but the last are 255.
    lengths = b"".join(b"\xff" * (len(each) // 255) + bytes([len(each) % 255]) for each in heads[:2])
    audio = TrackCodec(
        "vorbis",
        b"\2" + lengths + b"".join(heads),
        rate=int.from_bytes(heads[0][12:16], "little"),
        channels=heads[0][11],
    )
    if not audio.rate or not audio.channels:
        raise DamagedError(f"the head of Vorbis says {audio.channels} channels of {audio.rate} Hz")
    _blocks_of(audio)
    return audio


@lru_cache(maxsize=16)
def _blocks_of(audio: TrackCodec) -> tuple[int, Integers]:
    """Reads the modes of Vorbis, which are at the end of the last head.

    Returns:
        The mask of the mode in the first byte of a packet (after a shift by one bit), and the samples in the window of
        each mode.

    Raises:
        DamagedError: the heads are cut off, or there are no modes.
    """
    setup = audio.extradata
    first = setup.find(_VORBIS)
    last = setup.rfind(b"\5" + _VORBIS[1:])
    if not 0 <= first <= last - 30:
        raise DamagedError("the heads of Vorbis are cut off")
    sizes = setup[first + 28]
    bits = int.from_bytes(setup[last:], "little")
    both = 1 << (sizes & 15), 1 << (sizes >> 4)
    end = bits.bit_length() - 1
    modes = 0
    flags = list[int]()
    while end > _MODE_BITS * (len(flags) + 1) + _COUNT_BITS and len(flags) < _MAX_MODES:
        mode = bits >> end - _MODE_BITS * (len(flags) + 1) & (1 << _MODE_BITS) - 1
        # A mode is a flag, two types that are 0, and the number of a mapping.
        if mode >> 1 & 0xFFFFFFFF or mode >> 33 >= 64:
            break
        flags.insert(0, mode & 1)
        if bits >> end - _MODE_BITS * len(flags) - _COUNT_BITS & (1 << _COUNT_BITS) - 1 == len(flags) - 1:
            modes = len(flags)
    if not modes:
        raise DamagedError("the last head of Vorbis has no modes")
    mask = (1 << (modes - 1).bit_length()) - 1
    windows = np.zeros(mask + 1, np.int64)
    windows[:modes] = [both[flag] for flag in flags[-modes:]]
    return mask, windows


def _vorbis_packets(
    joined: bytes, begins: Integers, edges: tuple[Integers, Integers], first: int, audio: TrackCodec
) -> AudioFrames:
    """Returns packets of Vorbis. The samples of a packet are those that it and the packet after it decode to.

    Args:
        joined: bytes with the packets.
        begins: first byte of each packet.
        edges: where the packets begin and end in `joined`.
        first: index of the first sample of the first packet.
        audio: the codec.
    """
    mask, windows = _blocks_of(audio)
    starts, ends = edges
    # Empty packets, and those that are no audio, have no samples.
    of_audio = (ends > starts) & (begins & 1 == 0)
    starts = starts[of_audio]
    ends = ends[of_audio]
    window = windows[begins[of_audio] >> 1 & mask]
    counts = np.append((window[:-1] + window[1:]) // 4, 0)[: len(window)]
    return AudioFrames(
        offsets=starts,
        sizes=ends - starts,
        firsts=first + np.append(0, np.cumsum(counts)),
        lead=0,
        content=memoryview(joined),
        behind=1,
    )
