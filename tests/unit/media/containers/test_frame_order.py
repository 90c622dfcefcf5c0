"""The order in which frames are shown is read from parameter sets and slices; damaged ones prove nothing."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.errors import RecodeError
from streamer.media.containers.entries import TrackCodec
from streamer.media.containers.movie import VIDEO
from streamer.media.containers.nal_units import MAX_REORDER
from streamer.media.containers.packet_checks import check_order, max_reorder, shows_out_of_order
from tests.videos import index_of, video

AVC = TrackCodec("h264", bytes(4) + b"\x03" + bytes(10))
ENCODED = {
    "h264": ("libx264", {"preset": "veryfast", "bf": "3", "g": "12"}),
    "hevc": ("libx265", {"preset": "ultrafast", "x265-params": "keyint=12:bframes=3:log-level=none:pools=1"}),
}


def packet(*units: bytes) -> memoryview:
    return memoryview(b"".join(struct.pack(">I", len(unit)) + unit for unit in units))


def h264_slice(kind: int) -> bytes:
    """Makes a slice of this type, which begins with macroblock 0."""
    bits = "1" + bin(kind + 1)[2:].zfill(2 * (kind + 1).bit_length() - 1) + "1"
    return b"\x41" + int(bits.ljust(16, "0"), 2).to_bytes(2, "big")


@pytest.mark.parametrize(
    ("codec", "of_p", "of_b"),
    [
        (AVC, packet(b"\x06sei", h264_slice(5)), packet(h264_slice(6))),
        (AVC, packet(h264_slice(0)), packet(h264_slice(1), h264_slice(1))),
        (TrackCodec("mpeg4"), memoryview(b"\0\0\1\xb2user\0\0\1\xb6\x50"), memoryview(b"\0\0\1\xb6\x90")),
        (TrackCodec("mpeg4"), memoryview(b"\0\0\1\xb6\x10"), memoryview(b"\0\0\1\xb6\x50P\0\0\1\xb6\x90")),
        (TrackCodec("mpeg2video"), memoryview(b"\0\0\1\xb3\0\0\1\0\0\x10"), memoryview(b"\0\0\1\0\0\x18")),
    ],
)
@pytest.mark.parametrize("gaps", [[], [1]])
def test_b_frames_without_times_of_showing_are_refused(
    codec: TrackCodec, of_p: memoryview, of_b: memoryview, gaps: list[int]
):
    """B-frames without presentation times are refused, as their times only ascend; MPEG-4 sprites are no B-frames."""
    check_order([of_p, of_p, of_b], [0, 20, 10], codec)
    check_order([of_p, of_p, memoryview(b"\0\0\1\xb6\xd0")], [0, 1, 2], codec)
    with pytest.raises(RecodeError, match=r"no times at which they are shown \(no ctts\)"):
        check_order([of_p, of_p, of_b], [0, 10, 20], codec, gaps)


def stored(content: bytes) -> tuple[TrackCodec, list[memoryview], np.ndarray]:
    """Returns codec, packets and times of a video."""
    movie, _ = index_of(content)
    track = movie.track(VIDEO)
    packets = movie.packets(track)
    edges = zip(packets.offset.tolist(), (packets.offset + packets.size).tolist(), strict=True)
    return track.codec(), [memoryview(content)[start:stop] for start, stop in edges], packets.pts


@pytest.mark.parametrize(
    ("codec", "options", "depth"),
    [
        ("libx264", {"bf": "0"}, 0),
        ("libx264", {"bf": "3", "x264-params": "b-pyramid=none"}, 1),
        (
            "libx264",
            {"bf": "3", "x264-params": "b-pyramid=normal:nal-hrd=vbr:bitrate=100:vbv-maxrate=100:vbv-bufsize=9"},
            2,
        ),
        ("libx264", {"bf": "3", "x264-params": "interlaced=1:cqm=jvt:sar=7/5:colorprim=bt709:range=pc"}, 2),
        ("libx264", {"bf": "3", "profile": "high10"}, 2),
        ("libx265", {"preset": "ultrafast", "x265-params": "bframes=0:log-level=none:pools=1"}, 0),
        ("libx265", {"preset": "ultrafast", "x265-params": "bframes=3:log-level=none:pools=1:temporal-layers=3"}, 2),
        (
            "libx265",
            {
                "preset": "ultrafast",
                "x265-params": "bframes=3:log-level=none:pools=1:hrd=1:vbv-maxrate=9:vbv-bufsize=9",
            },
            2,
        ),
    ],
)
def test_order_of_what_encoders_write(codec: str, options: dict[str, str], depth: int):
    """Parameter sets tell how far frames are reordered, and slices at which places, the same as their times do."""
    described, packets, pts = stored(video(codec, 20, options=options))
    assert max_reorder(described) == depth
    for count in range(1, len(packets) + 1):
        assert shows_out_of_order(packets[:count], described) == bool((np.diff(pts[:count]) < 0).any())


@pytest.mark.parametrize("name", sorted(ENCODED))
def test_damaged_headers_prove_nothing(name: str):
    """Damaged parameter sets raise no error, and frames of which nothing is known may be reordered."""
    encoder, options = ENCODED[name]
    codec, packets, _ = stored(video(encoder, 3, options=options))

    @given(st.data())
    def check(data: st.DataObject) -> None:
        def damage(content: bytes) -> bytes:
            changed = bytearray(content)
            for at in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
                changed[at] ^= data.draw(st.integers(1, 255))
            return bytes(changed[: data.draw(st.integers(0, len(changed)))])

        damaged = TrackCodec(codec.name, damage(codec.extradata))
        assert 0 <= max_reorder(damaged) <= MAX_REORDER
        shows_out_of_order([memoryview(damage(bytes(each[:200]))) for each in packets], damaged)

    check()
    cut = TrackCodec(codec.name, codec.extradata[:12])
    assert max_reorder(cut) == MAX_REORDER
