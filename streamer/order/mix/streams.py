"""Draws samples of one member of a mix, an endless stream of passes over it; and encodes the samples of a mix.

`order/mix/order.py` draws from the streams, `order/kinds/mix.py` encodes and decodes samples. L is the number of lanes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.base.sorting import unique
from streamer.errors import ManifestError
from streamer.order.decode import OrdinalsTogether
from streamer.order.epoch import EpochOrder
from streamer.order.hashing import Chunks, Integers, fold, fold_each, permute
from streamer.order.mix.spec import MixMember
from streamer.order.schedule import lane_runs

TAG_SMALL = 35

# Passes that are kept: the running one, the one before, which a block of samples may begin in, and the next one, which
# the look-ahead plans.
_PASSES_KEPT = 3
# Least samples of a lane in a pass: with fewer, lanes would be empty or mix nothing.
_SMALL = 4
# Most samples of a pass that is computed once, as a table of two bytes per sample, which takes 1.5 ms. Without a table,
# a few samples of it take 0.3 ms each time: for 200 members 60 ms, every 16 batches (2 cores, 2026-11-23).
_TABLED = 4096
# The bits of a code below those of its member.
_SHIFT = 48
_MASK = (1 << _SHIFT) - 1


class MemberChunks(msgspec.Struct, frozen=True, eq=False):
    """The chunks of one member.

    Attributes:
        samples: (M,) selected samples of each chunk.
        first: (M+1,) selected samples before each chunk.
        base: number of its chunk 0 among the chunks of the whole mix; members over one manifest may share it.
    """

    samples: Integers
    first: Integers
    base: int


class LanePieces(msgspec.Struct, frozen=True, eq=False):
    """P pieces of a pass: the parts of chunks that some lanes have.

    Attributes:
        lane: (P,) lane of the piece.
        chunk: (P,) number of its chunk in the member.
        begin, end: (P,) half-open numbers of samples of the lane among which the piece's samples are.
    """

    lane: Integers
    chunk: Chunks
    begin: Integers
    end: Integers


class _Pass:
    """One pass over a member, as a table from its second use on, if it is small.

    Args:
        order: order of the pass.
        tabled: whether a table is made.
    """

    def __init__(self, order: EpochOrder, tabled: bool) -> None:
        self.order = order
        self._tabled = tabled
        self._asked = False

    def add_ordinals(self, places: Integers, rows: Integers, together: OrdinalsTogether) -> None:
        """Adds the ordinals at some positions of the pass to those of others; see `MemberStream.add_ordinals`."""
        # The table is not made at the first use: the first batch of 200 members would wait 0.3 s for their tables.
        if self._tabled and self._asked:
            together.set(rows, self._table[places].astype(np.int64))
        else:
            self._asked = True
            self.order.add_ordinals(places, rows, together)

    @cached_property
    def _table(self) -> npt.NDArray[np.uint16]:
        return self.order.ordinals(np.arange(self.order.samples)).astype(np.uint16)


class MemberStream:
    """The stream of one member. Owned by one thread; keeps the tables of the last passes.

    A member with less than 4 samples per lane is permuted as a whole, without lanes.

    Args:
        member: the member.
        chunks: its chunks.

    Attributes:
        member, chunks: the same.
        lanes: L.
        has_lanes: whether its passes are cut into lanes.
        is_tabled: whether passes are small enough for a table, so that a few ordinals of one cost almost nothing.

    Raises:
        ManifestError: the chunks have another number of samples than the member.
    """

    def __init__(self, member: MixMember, chunks: MemberChunks) -> None:
        if int(chunks.first[-1]) != member.samples:
            raise ManifestError(
                f"member {member.name}: its chunks have {int(chunks.first[-1])} samples, its part of the mix "
                f"{member.samples}",
                manifest=member.order.manifest_digest,
            )
        self.member = member
        self.chunks = chunks
        self.lanes = member.order.lanes
        self.has_lanes = member.samples >= _SMALL * self.lanes or member.order.shuffle == "none"
        self.is_tabled = member.samples <= _TABLED
        self._passes: OrderedDict[tuple[int, int], _Pass] = OrderedDict()

    @property
    def all_open(self) -> bool:
        """Whether all chunks of the member are open together."""
        return int(np.count_nonzero(self.chunks.samples)) <= self.member.order.window

    @property
    def lane_opened(self) -> int:
        """See `EpochOrder.lane_opened`."""
        return self._order(0, 0).lane_opened

    def add_ordinals(self, stream: Integers, turn: int, rows: Integers, together: OrdinalsTogether) -> Integers:
        """Adds the ordinals of the samples at some stream positions to those of other members.

        Args:
            stream: (N,) stream positions.
            turn: stream position Q is in lane (Q + turn) mod L.
            rows: (N,) rows of `together` that the ordinals get.
            together: takes the ordinals; it may draw them later.

        Returns:
            The number of the pass of each position: (N,).
        """
        passes, places = np.divmod(stream, self.member.samples)
        if self.member.order.shuffle == "none":
            together.set(rows, places)
        elif not self.has_lanes:
            keys = fold_each(fold(self.member.order.seed, TAG_SMALL), passes)
            together.set(rows, permute(places, np.full_like(places, self.member.samples), keys))
        else:
            for number in unique(passes).tolist():
                mine = np.flatnonzero(passes == number)
                self._pass(number, turn).add_ordinals(places[mine], rows[mine], together)
        return passes

    def order(self, number: int, turn: int) -> EpochOrder:
        """Returns the order of a pass: an epoch whose first position is in the lane in which the stream is then."""
        return self._pass(number, turn).order

    def _pass(self, number: int, turn: int) -> _Pass:
        """Returns a pass, by its number; the few that were used last are kept."""
        key = (number, (number * self.member.samples + turn) % self.lanes)
        if key not in self._passes:
            self._passes[key] = _Pass(self._order(*key), self.is_tabled)
            if len(self._passes) > _PASSES_KEPT:
                self._passes.popitem(last=False)
        self._passes.move_to_end(key)
        return self._passes[key]

    def _order(self, number: int, shift: int) -> EpochOrder:
        if self._passes:
            return next(reversed(self._passes.values())).order.open_epoch(number, shift)
        chunks = self.chunks
        return EpochOrder(self.member.order, chunks.samples, number, chunk_first=chunks.first, shift=shift)

    def pieces(self, number: int, turn: int, lanes: Integers, begin: Integers, end: Integers) -> LanePieces:
        """Returns the pieces that a run of samples of each of some lanes uses in a pass, cut to the run.

        Args:
            number: number of the pass.
            turn: see `add_ordinals`.
            lanes: (N,) the lanes, at least one.
            begin: (N,) number of the run's first sample in its lane.
            end: (N,) number of the sample behind its last one.
        """
        if self.member.order.shuffle == "none":
            first = self.chunks.first
            chunk_begin = int(np.searchsorted(first, int(begin[0]), side="right")) - 1
            chunk_end = int(np.searchsorted(first, int(end[0]), side="left"))
            numbers = chunk_begin + np.flatnonzero(self.chunks.samples[chunk_begin:chunk_end])
            edges = np.maximum(first[numbers], int(begin[0])), np.minimum(first[numbers + 1], int(end[0]))
            return LanePieces(np.zeros_like(numbers), numbers.astype(np.uint32), *edges)
        order = self.order(number, turn)
        order.fill(lanes)
        lane, pieces, low, high = lane_runs(order.deal, lanes, begin, end)
        return LanePieces(lane, order.piece_chunks[pieces], low, high)

    def lane_lengths(self, number: int, turn: int, lanes: Integers) -> Integers:
        """Returns the number of samples of some lanes in a pass: (N,). Arguments as for `pieces`."""
        whole, rest = divmod(self.member.samples, self.lanes)
        return whole + ((lanes - turn - number * self.member.samples) % self.lanes < rest)

    def all_chunks(self, lanes: Integers) -> Chunks:
        """Returns the numbers of the chunks that some lanes may use in any pass, whatever the turn is."""
        if not self.has_lanes or self.member.order.shuffle == "none" or self.member.order.cut == "redrawn":
            return np.flatnonzero(self.chunks.samples).astype(np.uint32)
        order = self.order(0, 0).cut.order
        stops = np.cumsum(self.chunks.samples[order], dtype=np.int64)
        whole, rest = divmod(self.member.samples, self.lanes)
        # There are l whole lanes before lane l, and as many longer ones as the shift brings there: up to min(l, rest).
        low = np.searchsorted(stops, lanes * whole, side="right")
        high = np.searchsorted(stops, (lanes + 1) * whole + np.minimum(lanes + 1, rest), side="left")
        used = np.zeros(len(order), np.bool_)
        for begin, end in zip(low.tolist(), high.tolist(), strict=True):
            used[begin : end + 1] = True
        return order[used]


class SampleCodes:
    """Encodes and decodes the samples of a mix: one number says which member, which of its passes, which sample.

    Samples go as int64 ordinals through plans, workers and messages. A mix uses such numbers as codes, where n is the
    number of samples of the member:

        code = member << 48 | turn * n + ordinal

    `turn` counts the member's passes from its first one in the epoch on. So a sample that comes twice in an epoch has
    two codes, and its two uses get different random numbers.

    Args:
        samples: n of each member, in the order of the mix; an ordinal is the number in the member's selection.
    """

    def __init__(self, samples: Sequence[int]) -> None:
        self._samples = np.array(samples, np.int64)

    def encode(self, members: Integers, turns: Integers, ordinals: Integers) -> Integers:
        """Returns codes: (N,).

        Args:
            members: (N,) number of the member.
            turns: (N,) number of its pass, less that of its first pass in the epoch.
            ordinals: (N,) number of the sample in the member's selection.
        """
        return (members << _SHIFT) + turns * self._samples[members] + ordinals

    def members(self, codes: Integers) -> Integers:
        """Returns the number of the member of each code: (N,)."""
        return codes >> _SHIFT

    def turns(self, codes: Integers) -> Integers:
        """Returns the pass of each code, less the member's first pass in the epoch (`MixSpec.first_passes`): (N,)."""
        turns: Integers = (codes & _MASK) // self._samples[codes >> _SHIFT]
        return turns

    def ordinals(self, codes: Integers) -> Integers:
        """Returns the number of each code's sample in its member's selection: (N,)."""
        ordinals: Integers = (codes & _MASK) % self._samples[codes >> _SHIFT]
        return ordinals
