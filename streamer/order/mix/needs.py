"""Which chunks of a member a rank needs, from which batch to which: chunk arithmetic, no walk over samples.

A piece of a pass gives a run of indices of a lane; in the stream of the lane that is a run of counts of the member; the
tree turns a count into its place in the lane, exactly but for the permutation inside a window of batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from streamer.order.hashing import Chunks, Integers
from streamer.order.mix.places import Places
from streamer.order.mix.streams import MemberStream
from streamer.order.protocol import Batches, Needs

# From this number of passes on, a member whose chunks are all open at once anyway has one entry per chunk.
_MANY_PASSES = 2


class Draw(msgspec.Struct, frozen=True, eq=False):
    """What an epoch takes of a member's stream.

    Attributes:
        member: its number in the mix.
        stream: the stream.
        start: the first stream position of the epoch.
        turn: position Q lies in lane (Q + turn) mod L.
    """

    member: int
    stream: MemberStream
    start: int
    turn: int

    def lane_start(self, lane: int) -> int:
        """The first stream position of the epoch in a lane."""
        return self.start + (lane - self.start - self.turn) % self.stream.lanes

    def passes(self, lanes: Integers, begin: Integers, end: Integers) -> tuple[int, int]:
        """The first and the last pass that half-open counts of some lanes lie in."""
        stride, samples = self.stream.lanes, self.stream.member.samples
        starts = self.start + (lanes - self.start - self.turn) % stride
        return int((starts + stride * begin).min()) // samples, int((starts + stride * (end - 1)).max()) // samples

    def needs(self, chunks: Chunks, first: Integers, last: Integers, passes: Integers) -> Needs:
        """Needs with the chunks numbered through the mix."""
        return Needs(chunks + np.uint32(self.stream.chunks.base), first, last, passes)


class _Use(msgspec.Struct, frozen=True, eq=False):
    """Chunks of one pass in one lane, with the half-open counts of the member in the lane among which they are used."""

    chunk: Chunks
    begin: Integers
    end: Integers
    lane: int
    number: int


def member_needs(draw: Draw, places: Places, lanes: Integers, run: Batches) -> Needs:
    """The chunks of a member that some lanes draw from in a run of batches; never narrower than the truth.

    Wider by at most a window of batches at each end: by less than 2 samples of the member in a stratified lane.
    """
    ends = (_lane_places(places, lanes, run.first_position), _lane_places(places, lanes, run.stop_position))
    begin, end = places.span(draw.member, lanes, *ends)
    drawn = (ends[0] < ends[1]) & (begin < end)
    lanes, begin, end = lanes[drawn], begin[drawn], end[drawn]
    if not lanes.size:
        nothing = np.empty(0, np.int64)
        return draw.needs(nothing.astype(np.uint32), nothing, nothing, nothing)
    first, last = draw.passes(lanes, begin, end)
    if not draw.stream.has_lanes or (last - first >= _MANY_PASSES and draw.stream.all_open):
        chunks = draw.stream.all_chunks(lanes)
        every = np.full(len(chunks), run.begin), np.full(len(chunks), run.end - 1)
        return draw.needs(chunks, *every, np.full(len(chunks), first))
    runs = zip(lanes.tolist(), begin.tolist(), end.tolist(), strict=True)
    return _located(draw, places, [use for lane, low, high in runs for use in _uses(draw, lane, (low, high))], run)


def _uses(draw: Draw, lane: int, counts: tuple[int, int]) -> Iterator[_Use]:
    """The chunks that a run of counts of the member uses in a lane, pass by pass."""
    stream, start = draw.stream, draw.lane_start(lane)
    samples, lanes = stream.member.samples, stream.lanes
    first, last = (start + lanes * counts[0]) // samples, (start + lanes * (counts[1] - 1)) // samples
    for number in range(first, last + 1):
        # The count of the pass's first sample in this lane; negative for a pass that an earlier epoch began.
        begun = number * samples + (lane - draw.turn - number * samples) % lanes - start
        origin = begun // lanes
        begin, end = max(counts[0] - origin, 0), min(counts[1] - origin, stream.lane_length(number, draw.turn, lane))
        if begin < end:
            chunks, low, high = stream.pieces(number, draw.turn, lane, (begin, end))
            yield _Use(chunks, origin + low, origin + high, lane, number)


def _located(draw: Draw, places: Places, uses: Sequence[_Use], run: Batches) -> Needs:
    """From counts to the batches of the run."""
    lanes = np.repeat([use.lane for use in uses], [len(use.chunk) for use in uses])
    passes = np.repeat([use.number for use in uses], [len(use.chunk) for use in uses])
    begin = np.concatenate([use.begin for use in uses])
    end = np.concatenate([use.end for use in uses])
    first = lanes + draw.stream.lanes * places.bounds(draw.member, lanes, begin)[0]
    last = lanes + draw.stream.lanes * places.bounds(draw.member, lanes, end - 1)[1]
    inside = (first < run.stop_position) & (last >= run.first_position)
    chunks = np.concatenate([use.chunk for use in uses])
    return draw.needs(chunks[inside], run.number(first[inside]), run.number(last[inside]), passes[inside])


def _lane_places(places: Places, lanes: Integers, position: int) -> Integers:
    """Places of lanes before a position of the epoch, within the lanes."""
    return np.clip(-(-(position - lanes) // len(places.lane_samples)), 0, places.lane_samples[lanes])
