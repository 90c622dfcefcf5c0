"""Tests of the stream of a member of a mix: its passes, one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.errors import ManifestError
from streamer.order import EpochOrder, OrderSpec
from streamer.order.decode import OrdinalsTogether
from streamer.order.hashing import Integers
from streamer.order.mix.spec import MixMember
from streamer.order.mix.streams import MemberChunks, MemberStream
from streamer.order.schedule import lane_runs, piece_runs
from streamer.order.spec import Cut, Shuffle
from tests.mixes import chunk_sizes


def _stream(samples: int, shuffle: Shuffle = "block", cut: Cut = "fixed", window: int = 16) -> MemberStream:
    sizes = chunk_sizes(samples, 7)
    lanes, window = (1, 1) if shuffle == "none" else (8, window)
    spec = OrderSpec("0" * 32, 5, shuffle, lanes, window, cut)
    chunks = MemberChunks(sizes, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]), 0)
    return MemberStream(MixMember("m", spec, samples), chunks)


def ordinals_of(stream: MemberStream, positions: Integers, turn: int) -> tuple[Integers, Integers]:
    """Returns pass and ordinal at some positions, which come in the other order than those of another member."""
    together = OrdinalsTogether(2 * len(positions))
    rows = np.arange(len(positions))
    other = _stream(500, window=8)
    other.add_ordinals(positions, turn, len(positions) + rows, together)
    passes = stream.add_ordinals(positions, turn, len(positions) - 1 - rows, together)
    return passes, together.ordinals()[: len(positions)][::-1]


@pytest.mark.parametrize("samples", [1, 31, 32, 100, 333, 4099])
@pytest.mark.parametrize("shuffle", ["block", "none"])
@pytest.mark.parametrize("turn", [0, 5])
def test_each_pass_has_every_sample_once(samples: int, shuffle: Shuffle, turn: int) -> None:
    """Each pass of a member has every sample once.

    So it has without lanes, and with lanes that the samples do not fill evenly.
    """
    stream = _stream(samples, shuffle)
    passes, ordinals = ordinals_of(stream, np.arange(5 * samples), turn)
    assert passes.tolist() == np.repeat(np.arange(5), samples).tolist()
    assert (np.sort(ordinals.reshape(5, samples), axis=1) == np.arange(samples)).all()
    if shuffle == "none":
        assert ordinals.tolist() == list(range(samples)) * 5


@pytest.mark.parametrize("samples", [336, 4096, 4104])
@pytest.mark.parametrize("window", [8, 16])
def test_a_pass_that_begins_in_lane_zero_is_an_epoch_of_the_dataset(samples: int, window: int) -> None:
    """A pass that begins in lane 0 is an epoch of the dataset alone, bit for bit."""
    stream = _stream(samples, window=window)
    for number in range(3):
        _, ordinals = ordinals_of(stream, number * samples + np.arange(samples), 0)
        alone = EpochOrder(stream.member.order, stream.chunks.samples, number).ordinals(np.arange(samples))
        assert np.array_equal(ordinals, alone)


@pytest.mark.parametrize("cut", ["fixed", "redrawn"])
def test_a_lane_of_the_stream_keeps_its_chunks(cut: Cut) -> None:
    """A lane of any pass draws from the chunks that `all_chunks` says, which are few more with a fixed cut."""
    stream, turn = _stream(333, cut=cut), 3
    positions = np.arange(20 * 333)
    _, ordinals = ordinals_of(stream, positions, turn)
    chunks = np.searchsorted(stream.chunks.first, ordinals, side="right") - 1
    for lane in range(8):
        used = set(chunks[(positions + turn) % 8 == lane].tolist())
        told = set(stream.all_chunks(np.array([lane])).tolist())
        assert used <= told
        assert cut == "redrawn" or len(told) <= len(used) + 2


def test_the_lanes_of_a_pass_have_the_lengths_that_are_said() -> None:
    """The lanes of a pass have the lengths that `lane_lengths` says, wherever the pass begins."""
    stream, turn = _stream(333), 3
    for number in range(9):
        positions = number * 333 + np.arange(333)
        counts = np.bincount((positions + turn) % 8, minlength=8)
        assert counts.tolist() == stream.lane_lengths(number, turn, np.arange(8)).tolist()


@pytest.mark.parametrize(("shuffle", "window"), [("block", 16), ("block", 8), ("none", 1)])
def test_pieces_cover_the_samples_of_runs(shuffle: Shuffle, window: int) -> None:
    """The pieces of runs of lanes have every chunk that is used, with bounds that contain the indices of its samples.

    With one open piece in each lane they have no other chunk.
    """
    stream = _stream(333, shuffle, window=window)
    runs = {0: (0, 41)} if shuffle == "none" else {0: (0, 41), 4: (40, 41), 7: (10, 30)}
    begin, end = np.array(list(runs.values())).T
    found = stream.pieces(2, 5, np.array(list(runs)), begin, end)
    for lane, run in runs.items():
        first = 2 * 333 + (lane - 5 - 2 * 333) % stream.lanes
        _, ordinals = ordinals_of(stream, first + stream.lanes * np.arange(*run), 5)
        used = np.searchsorted(stream.chunks.first, ordinals, side="right") - 1
        mine = found.lane == lane
        bounds = zip(found.begin[mine].tolist(), found.end[mine].tolist(), strict=True)
        told = dict(zip(found.chunk[mine].tolist(), bounds, strict=True))
        assert window == 16 or set(told) == set(used.tolist())
        for index, chunk in zip(range(*run), used.tolist(), strict=True):
            assert told[chunk][0] <= index < told[chunk][1]


def test_pieces_of_one_open_piece_are_those_of_any_window() -> None:
    """Pieces of windows of one open piece are the same for lanes together and one by one.

    The bounds are those that a window of several pieces has.
    """
    stream = _stream(333, window=8)
    order = stream.order(2, 5)
    lanes, whole = np.arange(8), stream.lane_lengths(2, 5, np.arange(8))
    for begin, end in [(np.zeros(8, np.int64), whole), (np.arange(8), whole - np.arange(8))]:
        order.fill(lanes)
        columns = lane_runs(order.deal, lanes, begin, end)
        for lane in range(8):
            one = piece_runs(order.deal, lane, (int(begin[lane]), int(end[lane])))
            mine = columns[0] == lane
            assert [column[mine].tolist() for column in columns[1:]] == [column.tolist() for column in one]


def test_chunks_of_another_selection_are_refused() -> None:
    """A member's chunks that have another number of samples than its spec are refused."""
    stream = _stream(50)
    with pytest.raises(ManifestError, match="member m: its chunks have 50 samples, its part of the mix 49"):
        MemberStream(MixMember("m", stream.member.order, 49), stream.chunks)
