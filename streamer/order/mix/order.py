"""Orders a mix: maps positions of an epoch to samples of its members, at random, without a table.

`order/kinds/mix.py` makes it. Each member has an endless stream of passes, of which an epoch takes the next part
(`order/mix/streams.py`). L is the number of lanes, M that of members. The "count" of a sample is how many samples of
its member come before it in the epoch in its lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import msgspec
import numpy as np

from streamer.base.sorting import unique
from streamer.order.decode import OrdinalsTogether
from streamer.order.hashing import Chunks, Flags, Integers
from streamer.order.mix.places import Places, epoch_places, lane_ends, lane_quotas
from streamer.order.mix.spec import MixSpec
from streamer.order.mix.streams import LanePieces, MemberChunks, MemberStream, SampleCodes
from streamer.order.protocol import ALL_POSITIONS, Batches, Needs
from streamer.order.rank_split import RankSplit, real_positions

# A member whose chunks are all open at once needs each of them for the whole run, from so many passes in it on.
_MANY_PASSES = 2


class Draw(msgspec.Struct, frozen=True, eq=False):
    """The part of a member's stream that an epoch takes.

    Attributes:
        member: number of the member in the mix.
        stream: stream of the member.
        start: the first stream position of the epoch.
        turn: stream position Q is in lane (Q + turn) mod L.
        quota: number of samples.
        places: number of positions of the epoch; more than the quota if the last homogeneous batch is filled up.
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
        """Returns the number of samples of the epoch in some lanes: (N,)."""
        return (self.start + self.quota - self.lane_starts(lanes) + self.stream.lanes - 1) // self.stream.lanes

    def last_counts(self, lanes: Integers, ends: Integers) -> Integers:
        """Returns the largest count, in each lane, of a place that has the sample of count `ends` - 1: (N,).

        A sample comes at one place, but the last one of a lane may be repeated to fill up a batch.

        Args:
            lanes: (N,) lanes.
            ends: (N,) the given count in each lane.
        """
        if self.places == self.quota:
            return ends - 1
        return np.where(ends == self.lane_quotas(lanes), self.places // self.stream.lanes, ends) - 1

    def passes(self, lanes: Integers, begin: Integers, end: Integers) -> tuple[int, int]:
        """Returns the numbers of the first and the last pass in which half-open counts of some lanes are."""
        stride = self.stream.lanes
        samples = self.stream.member.samples
        starts = self.lane_starts(lanes)
        return int((starts + stride * begin).min()) // samples, int((starts + stride * (end - 1)).max()) // samples

    def needs(self, chunks: Chunks, first: Integers, last: Integers, passes: Integers) -> Needs:
        """Returns needs of the member's chunks, which are numbered through the mix there."""
        return Needs(chunks + np.uint32(self.stream.chunks.base), first, last, passes)


def member_needs(draw: Draw, places: Places, lanes: Integers, run: Batches) -> Needs:
    """Returns the chunks of a member that some lanes draw from in a run of batches.

    The batches from first to last use are never fewer than those that use a chunk. Where the member has lanes, they are
    more by a window of batches at each end at most: in a stratified mix, by less than 2 samples of the member in a
    lane. Every chunk has the whole run where the member has no lanes, or all chunks are open for many passes.
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
    uses = list(_list_uses(draw=draw, passes=range(first, last + 1), lanes=lanes, begin=begin, end=end))
    passes = np.repeat([number for number, _ in uses], [len(pieces.chunk) for _, pieces in uses])
    lanes, chunks, begin, end = (
        np.concatenate([getattr(pieces, name) for _, pieces in uses]) for name in LanePieces.__struct_fields__
    )
    # Counts of the member are turned into positions, and these into batches of the run.
    first_use = lanes + draw.stream.lanes * places.bounds(draw.member, lanes, begin)[0]
    last_use = lanes + draw.stream.lanes * places.bounds(draw.member, lanes, draw.last_counts(lanes, end))[1]
    inside = (first_use < run.stop_position) & (last_use >= run.first_position)
    return draw.needs(chunks[inside], run.number(first_use[inside]), run.number(last_use[inside]), passes[inside])


def _list_uses(
    draw: Draw, passes: range, lanes: Integers, begin: Integers, end: Integers
) -> Iterator[tuple[int, LanePieces]]:
    """Yields, pass by pass, its number and the chunks that half-open counts of some lanes use, with their counts."""
    stream = draw.stream
    stride = draw.stream.lanes
    starts = draw.lane_starts(lanes)
    for number in passes:
        position = number * stream.member.samples
        # The count of the pass's first sample in each lane is negative for a pass that an earlier epoch began.
        origin = (position + (lanes - draw.turn - position) % stride - starts) // stride
        low = np.maximum(begin - origin, 0)
        high = np.minimum(end - origin, stream.lane_lengths(number, draw.turn, lanes))
        used = low < high
        if used.any():
            found = stream.pieces(number, draw.turn, lanes[used], begin=low[used], end=high[used])
            ahead = origin[np.searchsorted(lanes, found.lane)]
            yield number, msgspec.structs.replace(found, begin=found.begin + ahead, end=found.end + ahead)


def _lane_places(places: Places, lanes: Integers, position: int) -> Integers:
    """Returns how many places of some lanes come before a position of the epoch, at most those of the lane: (N,)."""
    return np.clip(-(-(position - lanes) // len(places.lane_samples)), 0, places.lane_samples[lanes])


class MixOrder:
    """The order of one epoch of a mix: a `SampleOrder` whose samples are codes.

    Position p is place p div L of lane p mod L. The place has a member, and a count c: its sample is the c-th of the
    member in this lane in the epoch. It is found in the member's stream, at the c-th position that the stream has in
    that lane from the start of the epoch on. Each lane of the mix draws from the same lane of every member, so a node
    needs its own part of each.

    Owned by one thread: tables are filled at the first use.

    Args:
        spec: what fixes the order.
        chunks: chunks of each member, in the order of the spec.
        epoch: number of the epoch, from the spec's `origin_epoch` on.

    Attributes:
        spec, epoch: the same.
        samples: number of positions of the epoch, without padding at its end.
        codes: encodes and decodes the samples.
        origin: 0, the first position.

    Raises:
        ManifestError: a member's chunks do not have as many samples as the spec says.
        ConfigError: an epoch before `origin_epoch`. Methods raise it for an epoch that is too long, see `LaneShares`.
    """

    origin = 0

    def __init__(self, spec: MixSpec, chunks: Sequence[MemberChunks], epoch: int) -> None:
        streams = [MemberStream(member, own) for member, own in zip(spec.members, chunks, strict=True)]
        self._set(spec, streams, epoch)

    def _set(self, spec: MixSpec, streams: Sequence[MemberStream], epoch: int) -> None:
        """Sets all attributes for an epoch; `streams` are shared by the orders of all epochs."""
        self.spec = spec
        self.epoch = epoch
        self.codes = SampleCodes([member.samples for member in spec.members])
        self._streams = streams
        self._starts = np.array(spec.stream_starts(epoch), np.int64)
        self._quotas = np.array(spec.quotas(epoch), np.int64)
        self._member_places = spec.places(epoch)
        self._turns = np.array(spec.turns(epoch), np.int64)
        self._first_passes = np.array(spec.first_passes(epoch), np.int64)
        self.samples = sum(self._member_places)

    def __repr__(self) -> str:
        names = ", ".join(member.name for member in self.spec.members[:8])
        return (
            f"MixOrder(epoch={self.epoch}, samples={self.samples}, members={len(self._streams)} ({names}), "
            f"{self.spec.batching}, lanes={self.lanes}, order_id={self.spec.order_id})"
        )

    def open_epoch(self, epoch: int) -> MixOrder:
        """Returns the order of another epoch, which shares the members' streams with this one: for the same thread."""
        other = object.__new__(MixOrder)
        other._set(self.spec, self._streams, epoch)
        return other

    @property
    def lanes(self) -> int:
        """The number of lanes, L."""
        return self.spec.lanes

    @property
    def block_samples(self) -> int:
        """Positions that one call of `ordinals` should have: each large member costs 0.7 ms a call (2026-11)."""
        return max(4096, 512 * sum(not stream.is_tabled for stream in self._streams))

    @property
    def lane_opened(self) -> int:
        """Number of consecutive samples of a lane for which the open chunks of the scarcest member last, on average."""
        opened = [stream.lane_opened for stream in self._streams]
        shares = zip(opened, self._member_places, strict=True)
        return min(own * self.samples // places for own, places in shares if places)

    def find_known(self, position: int) -> tuple[int, int]:
        """Returns `ALL_POSITIONS`: nothing is decided later."""
        return ALL_POSITIONS

    def ordinals(self, positions: Integers) -> Integers:
        """Returns the codes of the samples at some positions: (N,) int64.

        Args:
            positions: (N,) positions in any order; those from `samples` on are padding and repeat the end of their
                lane.

        Raises:
            ConfigError: a negative position.
        """
        real = real_positions(np.asarray(positions, dtype=np.int64), self.samples, self.lanes)
        slots, lanes = np.divmod(real, self.lanes)
        members, counts = self._places.find(lanes, slots)
        ahead = self._ahead(lanes, members, counts)
        stream = self._starts[members] + real_positions(ahead, self._quotas[members], self.lanes)
        passes = np.empty_like(stream)
        together = OrdinalsTogether(len(stream))
        arranged = np.argsort(members, kind="stable")
        stops = np.cumsum(np.bincount(members, minlength=len(self._streams)))
        for member in unique(members).tolist():
            mine = arranged[stops[member - 1] if member else 0 : stops[member]]
            turn = int(self._turns[member])
            passes[mine] = self._streams[member].add_ordinals(stream[mine], turn, mine, together)
        return self.codes.encode(members, passes - self._first_passes[members], together.ordinals())

    def repeats(self, positions: Integers) -> Flags:
        """Returns which positions are padding, or fill up a homogeneous batch whose member lacks samples: (N,).

        A position that fills a batch up repeats the end of the member's lane.
        """
        padding: Flags = positions >= self.samples
        if self.samples > self._quotas.sum():
            inside = np.flatnonzero(~padding)
            slots, lanes = np.divmod(positions[inside], self.lanes)
            members, counts = self._places.find(lanes, slots)
            padding[inside] = self._ahead(lanes, members, counts) >= self._quotas[members]
        return padding

    def needs(self, split: RankSplit, run: Batches) -> list[Needs]:
        """Returns the chunks that a rank uses in a run of batches, by member; see `SampleOrder.needs`."""
        lanes = split.rank_lanes(run.first_position)
        found = []
        for member in np.flatnonzero(self._quotas).tolist():
            draw = Draw(
                member=member,
                stream=self._streams[member],
                start=int(self._starts[member]),
                turn=int(self._turns[member]),
                quota=int(self._quotas[member]),
                places=self._member_places[member],
            )
            found.append(member_needs(draw, self._places, lanes, run))
        return found

    def chunks(self, ordinals: Integers) -> tuple[Integers, Integers]:
        """Returns the chunk of each code, numbered through the mix, and the pass of its member: (N,) each."""
        members = self.codes.members(ordinals)
        own = self.codes.ordinals(ordinals)
        passes = self._first_passes[members] + self.codes.turns(ordinals)
        found = np.empty_like(members)
        for member in unique(members).tolist():
            mine = members == member
            chunks = self._streams[member].chunks
            found[mine] = chunks.base + np.searchsorted(chunks.first, own[mine], side="right") - 1
        return found, passes

    def count_drawn(self, position: int) -> Integers:
        """Returns how many samples of each member, without repeats, the first `position` positions have: (M,)."""
        counts = self._places.counts(lane_ends(min(position, self.samples), self.lanes))
        drawn: Integers = np.minimum(counts, lane_quotas(self.spec, self.epoch)).sum(axis=1)
        return drawn

    def _ahead(self, lanes: Integers, members: Integers, counts: Integers) -> Integers:
        """Returns the stream position of each count, less the first one that its member has in this epoch: (N,)."""
        ahead: Integers = self.lanes * counts + (lanes - self._starts[members] - self._turns[members]) % self.lanes
        return ahead

    @cached_property
    def _places(self) -> Places:
        return epoch_places(self.spec, self.epoch)
