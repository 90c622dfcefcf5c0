"""Where clips begin and which frames they have: grids of frames and of seconds, key frames, draws, ends of videos."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.batches.samples.seeding import SampleDraws
from streamer.media.containers.clips import FrameTable, Pattern, Samples, Sampling, draw_numbers, samples_of
from streamer.media.containers.records import ClipHeader
from tests.unit.media.containers.conftest import TIMESCALE, track


def cut(sampling: Sampling, entry: np.ndarray | None = None) -> Samples:
    """Cuts the clips of a video of 20 frames, with a key frame every 7 frames."""
    packets = track(entry=entry)
    return samples_of(sampling, packets, FrameTable.from_packets(packets), TIMESCALE)


def rows(samples: Samples) -> list[list[int]]:
    return [row.tolist() for row in samples.rows]


def test_a_grid_of_frames():
    """Clips on a grid of frames follow each other or begin every so many frames; one beyond the end is left out."""
    assert rows(cut(Sampling(Pattern(3, 2)))) == [[0, 2, 4], [6, 8, 10], [12, 14, 16]]
    assert rows(cut(Sampling(Pattern(3, 2), step=8))) == [[0, 2, 4], [8, 10, 12]]
    assert rows(cut(Sampling(Pattern(3, 2), step=8, repeats_last=True)))[-1] == [16, 18, 19]
    assert rows(cut(Sampling(Pattern(32)))) == []
    found = cut(Sampling(Pattern(3, 2)))
    assert (found.start.tolist(), found.stop.tolist()) == ([0, 0, 7], [5, 11, 17])


def test_a_grid_of_seconds():
    """Clips on a grid of seconds have the frames shown at these times, at any rate: a frame takes 0.1 s."""
    assert rows(cut(Sampling(Pattern(3, 0, 0.25)))) == [[0, 2, 5], [7, 9, 12]]
    assert rows(cut(Sampling(Pattern(2, 1), step_seconds=0.55))) == [[0, 1], [5, 6], [11, 12], [16, 17]]


def test_clips_at_key_frames():
    """With start="key" a clip begins at the first key frame of each cell; cells without one have no clip."""
    found = cut(Sampling(Pattern(2), step=4, start="key"))
    assert rows(found) == [[0, 1], [7, 8], [14, 15]]
    assert found.start.tolist() == [0, 7, 14]


def test_several_clips_of_a_sample():
    """Several clips of a sample follow each other; a rest with too few frames is left out."""
    assert rows(cut(Sampling(Pattern(3), clips=2))) == [
        [0, 1, 2, 3, 4, 5],
        [6, 7, 8, 9, 10, 11],
        [12, 13, 14, 15, 16, 17],
    ]
    assert len(cut(Sampling(Pattern(3), clips=4)).rows) == 1


@pytest.mark.parametrize("pattern", [Pattern(3, 2), Pattern(3, 0, 0.2)])
def test_drawn_clips_begin_anywhere_in_their_cell(pattern: Pattern):
    """A drawn clip begins at each frame of its cell equally often and never reaches beyond the end."""
    samples = cut(Sampling(pattern, start="random"))
    rng, pts = np.random.default_rng(0), np.arange(20) * 10
    found: list[set[int]] = []
    for row, draws in zip(samples.rows, samples.draws, strict=True):
        times = pts[row].astype("<i8").tobytes()
        head = ClipHeader("a.mp4", 100, times, times, samples.pattern, draws.astype("<i8").tobytes())
        clips = [head.draw(rng)[0] for _ in range(600)]
        assert all((np.diff(clip) == 20).all() for clip in clips)
        begins, counts = np.unique([clip[0] // 10 for clip in clips], return_counts=True)
        found.append(set(begins.tolist()))
        assert counts.min() > 0.6 * 600 / len(begins)
    assert found == [set(range(6)), set(range(6, 12)), set(range(12, 16))]


def test_drawn_clips_are_uniform():
    """Draws by the workers' generators are uniform over epochs and samples, by chi-square of 10,000 draws."""
    draws = SampleDraws(17)
    found = [int(draw_numbers(6, draws.find_generator(epoch, sample))) for epoch in range(100) for sample in range(100)]
    counts = np.bincount(found, minlength=6)
    # 5 degrees of freedom, 1 in 1,000.
    assert ((counts - 10_000 / 6) ** 2 / (10_000 / 6)).sum() < 20.5


def test_clips_over_a_change_of_parameters_are_left_out():
    """Clips across a change of the decoder's parameters are left out and counted."""
    entry = (np.arange(20) >= 10).astype(np.int64)
    found = cut(Sampling(Pattern(4)), entry=entry)
    assert rows(found) == [[0, 1, 2, 3], [4, 5, 6, 7], [16, 17, 18, 19]]
    assert found.left_out == 2
