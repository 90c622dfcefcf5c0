"""Clips written as small mp4 videos: what their boxes say, and which sample entries they have."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pytest

from streamer.media.containers.clips import FrameTable
from streamer.media.containers.entries import TrackCodec, read_codec
from streamer.media.containers.records import encode_head, open_record, read_head
from streamer.media.containers.tables import Edit
from streamer.media.video.format import Video
from streamer.media.video.mp4 import _entry, clip_mp4
from tests.formats.cases import block_bytes, find, recode
from tests.videos import index_of, made

CODECS = [
    TrackCodec("h264", b"\1avcC", 640, 272, 0, (1, 1, 1, False)),
    TrackCodec("hevc", b"\1hvcC", 640, 272, 90, (9, 16, 9, True)),
    TrackCodec("libdav1d", b"\x81av1C", 64, 32, 180),
    *(TrackCodec(name, b"", 64, 32, 270) for name in ("vp8", "vp9", "mjpeg", "png", "prores")),
    *(TrackCodec(name, bytes(200), 64, 32) for name in ("mpeg4", "mpeg2video", "mpeg1video")),
]


def record_of(name: str, chosen: Video, place: int) -> memoryview:
    """Returns the record of a clip of a video."""
    found = find(chosen, {name: made(name)})
    [(_, blocks)] = found.items
    records = [each for block in blocks for each in recode(chosen, found, block, block_bytes(block, made(name)))]
    return memoryview(records[place])


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_entries_are_read_as_they_were(codec: TrackCodec):
    """A written sample entry is read with the same name, parameters, size and colours, for every codec of mp4."""
    assert read_codec(_entry(codec), video=True, rotation=codec.rotation) == codec


def test_other_codecs_are_refused():
    """A codec that mp4 does not have, as FFV1 of Matroska, raises ValueError."""
    with pytest.raises(ValueError, match="ffv1 is not a codec of mp4"):
        _entry(TrackCodec("ffv1", b"", 64, 32))


@pytest.mark.parametrize("name", ["open_gop.mp4", "variable.mp4", "late.mp4"])
def test_frames_of_the_clip_alone_are_shown(name: str):
    """A clip's mp4 has all packets up to its last frame and shows only the clip's frames, from 0 s on."""
    record = record_of(name, Video(4, num_indices_between_frames=2, num_indices_between_clip_starts=5), 5)
    opened, (wanted, duration) = open_record(record), read_head(record)[0].draw(None)
    content = clip_mp4(record)
    movie, _ = index_of(content)
    [track] = movie.tracks
    packets = movie.packets(track)
    frames = FrameTable.from_packets(packets)
    assert (movie.timescale, track.timescale, track.codec()) == (opened.head.timescale, movie.timescale, opened.codec)
    [edit] = track.edits
    assert edit == Edit(int(wanted[-1] + duration[-1] - wanted[0]), edit.media_time, 1 << 16)
    places = zip(packets.offset.tolist(), (packets.offset + packets.size).tolist(), strict=True)
    assert [content[start:stop] for start, stop in places] == list(map(bytes, opened.packets[: len(packets)]))
    assert np.flatnonzero(packets.key).tolist() == [0]
    assert frames.pts.tolist() == (wanted - wanted[0]).tolist()
    assert [opened.pts[packet] for packet in frames.packet.tolist()] == wanted.tolist()
    assert frames.duration.tolist() == [*np.diff(wanted), duration[-1]]


def test_gops_that_are_left_out():
    """A clip whose frames are whole GOPs apart raises ValueError: pictures of open GOPs would be wrong."""
    with pytest.raises(ValueError, match="whole GOPs apart"):
        clip_mp4(record_of("open_gop.mp4", Video(2, num_indices_between_frames=60), 0))


def test_times_that_mp4_does_not_have():
    """Frames that are more than 2^31 ticks apart raise ValueError and are not shown at other times."""
    record = record_of("b_frames.mp4", Video(2), 0)
    head, parts = read_head(record)
    changed = msgspec.structs.replace(head, duration=struct.pack("<2q", 1, 1 << 31))
    with pytest.raises(ValueError, match="more than 2147483648 ticks apart"):
        clip_mp4(memoryview(encode_head(changed) + bytes(parts)))
