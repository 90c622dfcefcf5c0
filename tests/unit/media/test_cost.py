"""What the index tells of decoding: packets for the frames of a clip, and settings that need fewer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamer.formats.detect import chooser
from streamer.formats.registry import restore_format
from streamer.indexing.build import build
from streamer.media.containers.blocks import Described, cut_blocks
from streamer.media.containers.clips import FrameTable, Pattern, Sampling, samples_of
from streamer.media.containers.entries import TrackCodec
from streamer.media.video.cost import ClipCost, block_costs
from tests.unit.manifest.conftest import MemoryStore
from tests.unit.media.containers.conftest import TIMESCALE, track
from tests.videos import made

UNKNOWN = pytest.approx(np.nan, nan_ok=True)


def costs(sampling: Sampling, frames: int = 20, gop: int = 7) -> list[list[float]]:
    packets = track(frames, gop)
    found = FrameTable.from_packets(packets)
    samples = samples_of(sampling, packets, found, TIMESCALE)
    described = Described("a.mp4", [TrackCodec("vp9", width=8, height=4)], TIMESCALE)
    [block] = cut_blocks(packets, found, samples, described, 1 << 20)
    return block_costs(block.hint).tolist()


def test_packets_from_the_key_frame_to_the_last_frame():
    """The cost of a clip counts packets from its key frame to its last frame, wanted frames, span and pixels."""
    rest = [5, 32, UNKNOWN, pytest.approx(0.7)]
    assert costs(Sampling(Pattern(3, 2))) == [[5, 3, *rest], [11, 3, *rest], [10, 3, *rest]]
    assert costs(Sampling(Pattern(3, 2), start="key"))[1][:3] == [5, 3, 5]
    assert costs(Sampling(Pattern(3, 2), step=18, repeats_last=True))[1][:3] == [6, 2, 2]
    assert costs(Sampling(Pattern(3), clips=2))[1][:3] == [12, 6, 6]


def test_drawn_clips_count_in_the_middle_of_their_cells():
    """A drawn clip costs what one in the middle of its cell costs: cells have 6 beginnings at 0 and 6, and 4 at 12."""
    found = costs(Sampling(Pattern(3, 2), start="random"))
    assert [row[:3] for row in found] == [[8, 3, 5], [7, 3, 5], [5, 3, 5]]


def test_four_clips_of_a_sample_are_decoded_at_once():
    """The cost of four clips in a sample is a quarter of the packets up to the last one's end."""
    found = costs(Sampling(Pattern(5)), frames=30, gop=30)
    assert [row[4] for row in found] == [5, 6.25, 7.5, 7.5, 7.5, 7.5]


def test_what_lies_between_clips_counts():
    """Packets between clips that are decoded count, also where they are not in the block."""
    found = costs(Sampling(Pattern(1), step=10), frames=60, gop=5)
    assert found == [[1, 1, 1, 32, 31 / 4, UNKNOWN]] * 6
    # Frame 6 and frame 13, before key frames, are in no clip.
    found = costs(Sampling(Pattern(3, 2), step=7), frames=35)
    assert found[0][4:] == [26 / 4, pytest.approx(0.7)]


def test_the_words():
    """The text of a cost has whole numbers and names only settings that decode fewer packets."""
    cost = ClipCost(95, 16, 31, 1280 * 720, 48, 5.28)
    assert str(cost) == "95 packets for 16 of 31 frames, 83% thrown away; key frames are 5.3 s apart"
    assert cost.cheaper == (
        'start="key": 31 packets, clips_per_sample=4: 48 a clip, videos encoded with ffmpeg -g 31: about 46'
    )
    assert ClipCost(31, 16, 31, 1, 0, 0).cheaper == ""
    assert str(ClipCost(31, 16, 31, 1, 0, 0)) == "31 packets for 16 of 31 frames, 48% thrown away"


async def test_costs_are_those_of_the_manifest(tmp_path: Path):
    """A manifest of videos gives the cost of one sample and the mean of all; other formats give none."""
    store = MemoryStore({f"s3://b/{name}.mp4": made("b_frames.mp4") for name in "ab"})
    options = {"num_frames_per_clip": 4, "num_indices_between_frames": 2, "num_indices_between_clip_starts": 10}
    chosen = chooser("video", options)
    manifest = await build("s3://b/", tmp_path / "m", lister=store, reader=store, choose_format=chosen)
    video = restore_format(manifest)
    found = [video.find_decode_cost(manifest, ordinal) for ordinal in range(manifest.samples)]
    assert found[9] == found[0]
    assert len(found) == 18
    assert {cost.span for cost in found if cost} == {7}
    # A key frame every 24 frames: the third clip begins with frame 20, and its last frame is frame 26.
    assert [round(cost.packets, -1) for cost in found[:4] if cost] == [10, 20, 30, 10]
    mean = video.find_decode_cost(manifest)
    assert mean is not None
    assert mean.packets == pytest.approx(np.mean([cost.packets for cost in found if cost]))
    assert mean.key_seconds == pytest.approx(0.8)
    folder = await build("s3://b/", tmp_path / "f", lister=store, reader=store, choose_format=chooser("folder"))
    files = restore_format(folder)
    assert (files.find_decode_cost(folder, 0), files.find_decode_cost(folder)) == (None, None)
