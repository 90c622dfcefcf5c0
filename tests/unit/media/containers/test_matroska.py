"""The packets of Matroska and WebM are those of FFmpeg's demuxer; files that are not read are refused."""

from __future__ import annotations

import io
import random
import struct

import av
import pytest

from streamer.formats.failures import DamagedError, UnreadError
from streamer.manifest.model import ObjectRecord
from streamer.media.containers.clips import FrameTable
from streamer.media.containers.entries import TrackCodec
from streamer.media.containers.matroska import read_matroska
from streamer.media.containers.tables import Packets
from tests.videos import MATROSKA, made


def read(content: bytes, stream_index: int | None = None) -> tuple[Packets, TrackCodec, int]:
    steps = read_matroska(ObjectRecord("s3://b/x.mkv", len(content), ""), stream_index)
    answer = None
    while True:
        try:
            need = steps.send(answer)
        except StopIteration as end:
            return end.value
        answer = memoryview(content)[need.start : need.stop]


@pytest.mark.parametrize("name", MATROSKA)
def test_packets_are_those_of_the_demuxer(name: str):
    """Packets of Matroska have FFmpeg's bytes, times, keys and shown flags, also without lengths and beside audio."""
    content = made(name)
    packets, codec, timescale = read(content)
    with av.open(io.BytesIO(content)) as box:
        stream = box.streams.video[0]
        demuxed = [packet for packet in box.demux(stream) if packet.size]
        expected = [(bytes(p), p.pts, bool(p.is_keyframe), not p.is_discard) for p in demuxed]
        assert timescale == stream.time_base.denominator
        assert (codec.name, codec.width, codec.height) == (stream.codec_context.codec.name, 128, 96)
        assert codec.extradata == (stream.codec_context.extradata or b"")
    edges = zip(packets.offset.tolist(), packets.size.tolist(), strict=True)
    found = [content[offset : offset + size] for offset, size in edges]
    rest = (packets.pts.tolist(), packets.key.tolist(), packets.shown.tolist())
    assert list(zip(found, *rest, strict=True)) == expected
    assert len(FrameTable.from_packets(packets)) == 60


def element(kind: int, *bodies: bytes) -> bytes:
    body = b"".join(bodies)
    length = struct.pack(">Q", len(body) | 1 << 56)
    return kind.to_bytes((kind.bit_length() + 7) // 8, "big") + length + body


def track(*more: bytes, number: int = 1, kind: int = 1, codec: bytes = b"V_VP8", width: int = 64) -> bytes:
    size = element(0xB0, struct.pack(">H", width)), element(0xBA, struct.pack(">H", 48))
    head = element(0xD7, bytes([number])), element(0x83, bytes([kind])), element(0x86, codec)
    return element(0xAE, *head, element(0xE0, *size), *more)


def file(tracks: bytes, *clusters: bytes, scale: int | None = None) -> bytes:
    info = [element(0x1549A966, element(0x2AD7B1, struct.pack(">I", scale)))] if scale else []
    return element(0x1A45DFA3) + element(0x18538067, *info, element(0x1654AE6B, tracks), *clusters)


def block(time: int, content: bytes = b"packet", number: int = 1, flags: int = 0) -> bytes:
    return bytes([0x80 | number]) + struct.pack(">hB", time, flags) + content


def test_groups_of_blocks():
    """A block of a group without a reference is a key, has the group's duration, and belongs to its own track only."""
    reference, duration = element(0xFB, b"\xff"), element(0x9B, b"\x28")
    groups = [
        element(0xA0, element(0xA1, block(0)), duration),
        element(0xA0, element(0xA1, block(40)), reference),
        element(0xA0, element(0xA1, block(5, number=2)), reference, duration),
        element(0xA0, reference, element(0xA1, block(80, flags=8)), element(0xEC, bytes(20))),
        element(0xA3, block(120, flags=0x80)),
    ]
    cluster = element(0x1F43B675, element(0xE7, b"\x01\x00"), *groups)
    packets, codec, timescale = read(file(track() + track(number=2), cluster))
    assert packets.pts.tolist() == [256, 296, 336, 376]
    assert packets.key.tolist() == [True, False, False, True]
    assert packets.shown.tolist() == [True, True, False, True]
    assert packets.duration.tolist() == [40, 0, 0, 0]
    assert (codec.name, timescale) == ("vp8", 1000)


@pytest.mark.parametrize(
    ("scale", "ticks", "time"),
    [(1_000, 10**6, 10), (70_000, 10**9, 700_000), (1_000_000, 1000, 10)],
    ids=["microseconds", "no part of a second", "milliseconds"],
)
def test_ticks(scale, ticks, time):
    """Ticks are parts of a second, or nanoseconds where the scale is no part; frames last as the track says."""
    cluster = element(0x1F43B675, element(0xE7, b"\x03"), element(0xA3, block(7, flags=0x80)))
    tracks = track(element(0x23E383, struct.pack(">I", 40_000_000)))
    packets, _, timescale = read(file(tracks, cluster, scale=scale))
    assert (timescale, packets.pts.tolist()) == (ticks, [time])
    assert packets.duration.tolist() == [ticks // 25]


def test_the_track_is_the_one_with_most_pixels():
    """The track with most pixels is read, or the one that is named, which must be a video."""
    tracks = track(width=32) + track(number=2, kind=2, codec=b"A_OPUS") + track(number=3, codec=b"V_AV1")
    assert read(file(tracks))[1].name == "libdav1d"
    assert read(file(tracks), 0)[1].name == "vp8"
    with pytest.raises(UnreadError, match=r"has no video track, number 1: it has tracks of types \[1, 2, 1\]"):
        read(file(tracks), 1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"RIFF" * 20, "has element 0x5249, where Matroska and WebM have another one"),
        (made("vp9.webm")[:-40], r"cut off: element 0x\w+ at byte \d+ ends behind the file of \d+ bytes"),
        (element(0x1A45DFA3) + element(0x18538067), "cut off: it has no tracks"),
        (file(track(codec=b"V_MS/VFW/FOURCC")), "is encoded as 'V_MS/VFW/FOURCC', which is not read"),
        (file(track(element(0x6D80, element(0x6240, element(0x5035))))), "is encrypted, and streamer has no keys"),
        (file(track(element(0x6D80, element(0x6240, element(0x5034))))), "has packets that are compressed once more"),
        (
            file(track(element(0xE0, element(0x7670, element(0x7675, struct.pack(">f", 90)))))),
            r"is turned by 90\.0 deg",
        ),
        (file(track(), element(0xA3, block(0, flags=2))), "has several frames in one block"),
        (file(track(), element(0xA3, b"\x81")), "a block of 1 bytes"),
        (file(track(), b"\x00" * 20), "an element begins with byte 0x00"),
    ],
)
def test_files_that_are_refused(content: bytes, said: str):
    """Damaged, encrypted, turned and unread Matroska files are refused with the reason and the place."""
    with pytest.raises(DamagedError, match=said):
        read(content)


def test_mutations_are_refused_or_read():
    """Damaged elements raise DamagedError or are read; no other error comes from the parser."""
    drawn, refused = random.Random(0), 0
    for _ in range(300):
        content = bytearray(made("b_frames.mkv"))
        at = drawn.randrange(600) if drawn.random() < 0.6 else drawn.randrange(len(content))
        content[at : at + 2] = drawn.choice([b"\xff\xff", bytes(2), b"\x01\xff", drawn.randbytes(2)])
        try:
            FrameTable.from_packets(read(bytes(content))[0])
        except DamagedError:
            refused += 1
    assert 30 < refused < 300


def test_a_cover_is_not_taken_for_the_video():
    """A cover with more pixels and one packet is not taken for the video."""
    tracks = track(number=1, codec=b"V_MJPEG", width=4096) + track(number=2)
    blocks = [
        element(0xA3, block(0, flags=0x84)),
        *(element(0xA3, block(10 * at, number=2, flags=0x80)) for at in range(5)),
    ]
    packets, codec, _ = read(file(tracks, element(0x1F43B675, element(0xE7, b"\0"), *blocks)))
    assert (len(packets), codec.name, codec.width) == (5, "vp8", 64)
