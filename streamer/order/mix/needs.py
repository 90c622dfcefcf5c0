"""The batches for which a rank needs each chunk of a member, from chunks alone, without a walk over samples.

A piece of a pass is a run of indices of a lane; in the stream of the lane that is a run of counts of the member; the
tree turns a count into its place in the lane, exactly except for the permutation inside a window of batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from streamer.order.hashing import Chunks, Integers
from streamer.order.mix.places import Places
from streamer.order.mix.streams import LanePieces, MemberStream
from streamer.order.protocol import Batches, Needs

# A member whose chunks are all open at once has one entry per chunk from this number of passes on.
_MANY_PASSES = 2


class Draw(msgspec.Struct, frozen=True, eq=False):
    """The part of a member's stream that an epoch takes.

    Attributes:
        member: its number in the mix.
        stream: the stream.
        start: the first stream position of the epoch.
        turn: position Q lies in lane (Q + turn) mod L.
        quota: number of samples.
        places: positions of the epoch; more than the quota if the last homogeneous batch is filled up.
    """

    member: int
    stream: MemberStream
    start: int
    turn: int
    quota: int
    places: int

    def lane_starts(self, lanes: Integers) -> Integers:
        """Returns the first stream position of the epoch in some lanes: (N,)."""
        return self.start + (lanes - self.start - self.turn) % self.stream.lanes

    def lane_quotas(self, lanes: Integers) -> Integers:
        """Returns the samples of the epoch in some lanes: (N,)."""
        return (self.start + self.quota - self.lane_starts(lanes) + self.stream.lanes - 1) // self.stream.lanes

    def last_counts(self, lanes: Integers, ends: Integers) -> Integers:
        """Returns the last counts that read the samples before some counts, (N,): padding repeats a lane's last one."""
        if self.places == self.quota:
            return ends - 1
        return np.where(ends == self.lane_quotas(lanes), self.places // self.stream.lanes, ends) - 1

    def passes(self, lanes: Integers, begin: Integers, end: Integers) -> tuple[int, int]:
        """The first and the last pass that half-open counts of some lanes lie in."""
        stride = self.stream.lanes
        samples = self.stream.member.samples
        starts = self.lane_starts(lanes)
        return int((starts + stride * begin).min()) // samples, int((starts + stride * (end - 1)).max()) // samples

    def needs(self, chunks: Chunks, first: Integers, last: Integers, passes: Integers) -> Needs:
        """Needs with the chunks numbered through the mix."""
        return Needs(chunks + np.uint32(self.stream.chunks.base), first, last, passes)


def member_needs(draw: Draw, places: Places, lanes: Integers, run: Batches) -> Needs:
    """The chunks of a member that some lanes draw from in a run of batches; never narrower than the exact ones.

    They are wider by at most a window of batches at each end: by less than 2 samples of the member in a stratified
    lane.
    """
    ends = (_lane_places(places, lanes, run.first_position), _lane_places(places, lanes, run.stop_position))
    begin, end = places.span(draw.member, lanes, *ends)
    drawn = (ends[0] < ends[1]) & (begin < end)
    lanes = lanes[drawn]
    begin = begin[drawn]
    end = end[drawn]
    if not lanes.size:
        nothing = np.empty(0, np.int64)
        return draw.needs(nothing.astype(np.uint32), nothing, nothing, nothing)
    if draw.places > draw.quota:
        own = np.maximum(draw.lane_quotas(lanes), 1)
        begin, end = np.minimum(begin, own - 1), np.minimum(end, own)
    first, last = draw.passes(lanes, begin, end)
    if not draw.stream.has_lanes or (last - first >= _MANY_PASSES and draw.stream.all_open):
        chunks = draw.stream.all_chunks(lanes)
        every = np.full(len(chunks), run.begin), np.full(len(chunks), run.end - 1)
        return draw.needs(chunks, *every, np.full(len(chunks), first))
    return _locate_uses(
        draw, places, list(_list_uses(draw=draw, passes=range(first, last + 1), lanes=lanes, begin=begin, end=end)), run
    )


def _list_uses(
    draw: Draw, passes: range, lanes: Integers, begin: Integers, end: Integers
) -> Iterator[tuple[int, LanePieces]]:
    """The chunks that half-open counts of the member use in some lanes, pass by pass, with the counts of each."""
    stream = draw.stream
    stride = draw.stream.lanes
    starts = draw.lane_starts(lanes)
    for number in passes:
        position = number * stream.member.samples
        # The count of the pass's first sample in each lane; negative for a pass that an earlier epoch began.
        origin = (position + (lanes - draw.turn - position) % stride - starts) // stride
        low = np.maximum(begin - origin, 0)
        high = np.minimum(end - origin, stream.lane_lengths(number, draw.turn, lanes))
        used = low < high
        if used.any():
            found = stream.pieces(number, draw.turn, lanes[used], low[used], high[used])
            ahead = origin[np.searchsorted(lanes, found.lane)]
            yield number, msgspec.structs.replace(found, begin=found.begin + ahead, end=found.end + ahead)


def _locate_uses(draw: Draw, places: Places, uses: Sequence[tuple[int, LanePieces]], run: Batches) -> Needs:
    """Converts counts to the batches of the run."""
    passes = np.repeat([number for number, _ in uses], [len(pieces.chunk) for _, pieces in uses])
    lanes, chunks, begin, end = (
        np.concatenate([getattr(pieces, name) for _, pieces in uses]) for name in LanePieces.__struct_fields__
    )
    first = lanes + draw.stream.lanes * places.bounds(draw.member, lanes, begin)[0]
    last = lanes + draw.stream.lanes * places.bounds(draw.member, lanes, draw.last_counts(lanes, end))[1]
    inside = (first < run.stop_position) & (last >= run.first_position)
    return draw.needs(chunks[inside], run.number(first[inside]), run.number(last[inside]), passes[inside])


def _lane_places(places: Places, lanes: Integers, position: int) -> Integers:
    """Places of lanes before a position of the epoch, within the lanes."""
    return np.clip(-(-(position - lanes) // len(places.lane_samples)), 0, places.lane_samples[lanes])
