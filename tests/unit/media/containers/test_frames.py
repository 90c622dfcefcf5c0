"""The frames of a track: which packets are frames, when each is shown, and which track is taken."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.formats.failures import DamagedError
from streamer.media.containers.clips import FrameTable
from streamer.media.containers.movie import prefer
from streamer.media.containers.tables import Packets
from tests.unit.media.containers.conftest import TIMESCALE, track


def test_packets_without_a_byte_are_no_frames():
    """A packet without bytes, a frame that an encoder has dropped, is no frame: the one before is shown longer."""
    packets = track(20)
    packets.size[[7, 9]] = 0
    frames = FrameTable.from_packets(packets)
    assert frames.packet.tolist() == [number for number in range(20) if number not in {7, 9}]
    assert frames.duration[[6, 7, 8]].tolist() == [20, 20, 10]
    # Packet 7 was a key.
    assert set(frames.start.tolist()) == {0, 14}


def test_frames_before_the_first_key_packet_are_none():
    """Packets before the first key packet are no frames, as in FFmpeg; a track without a key packet is damaged."""
    packets = track(20)
    packets.key[0] = False
    frames = FrameTable.from_packets(packets)
    assert frames.packet.tolist() == list(range(7, 20))
    assert frames.start.tolist() == [7] * 7 + [14] * 6
    packets.key[:] = False
    with pytest.raises(DamagedError, match="frames without a key frame before them"):
        FrameTable.from_packets(packets)


def test_pictures_that_are_shown_before_the_first_key_picture_are_no_frames():
    """Pictures shown before the first key picture are no frames: they are of an open GOP in another file."""
    packets = track(20)
    for key in (0, 7, 14):
        packets.pts[[key, key + 1, key + 2]] = packets.pts[[key + 2, key, key + 1]]
    frames = FrameTable.from_packets(packets)
    assert frames.packet.tolist() == [0, 3, 4, 5, 6, 8, 9, 7, 10, 11, 12, 13, 15, 16, 14, 17, 18, 19]
    assert frames.start.tolist() == [0] * 7 + [7] * 7 + [14] * 4
    assert frames.pts[0] == 20


def test_frames_at_one_time_get_parts_of_a_tick():
    """Frames at one time get parts of a tick in the order stored, and others keep their times in seconds."""
    packets = track(12)
    packets.pts[[4, 5, 6]] = 40
    with pytest.raises(DamagedError, match="two frames at 40 ticks"):
        FrameTable.from_packets(packets)
    parted, timescale = packets.separate_times(TIMESCALE)
    assert timescale == 3 * TIMESCALE
    frames = FrameTable.from_packets(parted)
    assert frames.packet.tolist() == list(range(12))
    assert frames.pts.tolist() == [0, 30, 60, 90, 120, 121, 122, 210, 240, 270, 300, 330]
    assert frames.duration.tolist()[-1] == 30
    packets.pts[:] = 0
    many = Packets(*(np.repeat(column, 10) for column in msgspec.structs.astuple(packets)))
    with pytest.raises(DamagedError, match="120 frames at one time, at most 64 are read"):
        many.separate_times(TIMESCALE)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60))
def test_own_times_keep_the_order(times: list[int]):
    """Separated times keep the order of frames at different times, and the stored order of those at one time."""
    packets = msgspec.structs.replace(track(len(times), len(times)), pts=np.array(times, np.int64))
    parted, timescale = packets.separate_times(TIMESCALE)
    pts = parted.pts.tolist()
    assert sorted(range(len(times)), key=lambda at: pts[at]) == sorted(range(len(times)), key=lambda at: times[at])
    assert len(set(pts)) == len(pts)
    assert [time * TIMESCALE // timescale for time in pts] == times


@pytest.mark.parametrize(
    ("tracks", "number"),
    [
        ([(100, 64)], 0),
        ([(100, 64), (100, 128)], 1),
        ([(100, 64), (90, 64)], 0),
        # A cover; pictures of a preview, one in a second.
        ([(1, 4096), (100, 64)], 1),
        ([(100, 64), (4, 4096)], 0),
        ([(0, 64), (0, 128)], 1),
    ],
)
def test_covers_and_previews_are_not_taken_for_the_video(tracks: list[tuple[int, int]], number: int):
    """The video is the track with most pixels of those with at least half as many packets as the longest."""
    assert prefer(tracks) == number
