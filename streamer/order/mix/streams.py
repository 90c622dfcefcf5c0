"""One member of a mix: an endless stream of passes over its samples, each in its own order; codes of its samples."""

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

# The running pass, the one before a block's first sample, and the next one, which the look-ahead plans.
_PASSES_KEPT = 3
# Lanes with fewer samples than this would be empty or mix nothing.
_SMALL = 4
# A pass with at most this many samples is computed once, as a table of two bytes per sample, which takes 1.5 ms.
# Computing a few of its places takes 0.3 ms each time: for 200 members 60 ms, every 16 batches (2 cores, 2026-11-23).
_TABLED = 4096
# The bits of a code below those of its member.
_SHIFT = 48
_MASK = (1 << _SHIFT) - 1


class MemberChunks(msgspec.Struct, frozen=True, eq=False):
    """The chunks of one member.

    Attributes:
        samples: (M,) samples per chunk, of the member's selection.
        first: (M+1,) their prefix sum.
        base: number of its chunk 0 among the chunks of the whole mix; members over one manifest may share it.
    """

    samples: Integers
    first: Integers
    base: int


class LanePieces(msgspec.Struct, frozen=True, eq=False):
    """Parts of chunks in lanes of a pass.

    Attributes:
        lane: (P,) the lane of each.
        chunk: (P,) its chunk.
        begin, end: (P,) half-open indices of the lane among which its samples are.
    """

    lane: Integers
    chunk: Chunks
    begin: Integers
    end: Integers


class _Pass:
    """One pass over a member."""

    def __init__(self, order: EpochOrder, tabled: bool) -> None:
        self.order = order
        self._tabled = tabled
        self._asked = False

    def add_ordinals(self, places: Integers, rows: Integers, together: OrdinalsTogether) -> None:
        """Adds the ordinals at some places of the pass to those of other members, at `rows`."""
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

    Attributes:
        is_tabled: whether the ordinals of a few places cost almost nothing once the pass is computed.

    Raises:
        ManifestError: the chunks do not have the member's samples.
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
        """Whether its window holds all of its chunks."""
        return int(np.count_nonzero(self.chunks.samples)) <= self.member.order.window

    @property
    def lane_opened(self) -> int:
        """See `EpochOrder.lane_opened`."""
        return self._order(0, 0).lane_opened

    def add_ordinals(self, stream: Integers, turn: int, rows: Integers, together: OrdinalsTogether) -> Integers:
        """Adds the ordinals at some stream positions to those of other members.

        Args:
            stream: (N,) positions.
            turn: position Q lies in lane (Q + turn) mod L.
            rows: (N,) their rows among those of all members.
            together: takes the ordinals.

        Returns:
            (N,) the passes.
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
        """The order of one pass: an epoch whose first position lies in the lane where the stream is."""
        return self._pass(number, turn).order

    def _pass(self, number: int, turn: int) -> _Pass:
        """Returns a pass; the few that were used last are kept."""
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
        """The chunks that runs of indices of some lanes of a pass use, each with the half-open indices of its samples.

        Args:
            number: number of the pass.
            turn: see `add_ordinals`.
            lanes: (N,) the lanes, at least one.
            begin: (N,) the first index of each run.
            end: (N,) one past its last one.
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
        """Returns the samples of some lanes in a pass: (N,)."""
        whole, rest = divmod(self.member.samples, self.lanes)
        return whole + ((lanes - turn - number * self.member.samples) % self.lanes < rest)

    def all_chunks(self, lanes: Integers) -> Chunks:
        """The chunks that some lanes may use in any pass, whatever its shift."""
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

    The loader carries samples as int64 ordinals through plans, workers and messages. A mix uses the same numbers as
    codes, where n is the number of samples of the member:

        code = member << 48 | turn * n + ordinal

    `turn` counts the member's passes from the first one that the epoch touches: a sample that comes twice in an epoch
    has two codes, so that its two uses get different random numbers.

    Args:
        samples: n of each member, in the order of the mix; an ordinal counts in the member's selection.
    """

    def __init__(self, samples: Sequence[int]) -> None:
        self._samples = np.array(samples, np.int64)

    def encode(self, members: Integers, turns: Integers, ordinals: Integers) -> Integers:
        """Returns codes: (N,).

        Args:
            members: (N,) number of each member.
            turns: (N,) its pass, less its first pass of the epoch.
            ordinals: (N,) the sample in the member.
        """
        return (members << _SHIFT) + turns * self._samples[members] + ordinals

    def members(self, codes: Integers) -> Integers:
        """Returns the member of each code: (N,)."""
        return codes >> _SHIFT

    def turns(self, codes: Integers) -> Integers:
        """Returns the pass of each code, (N,), less the member's first pass of the epoch (`MixSpec.first_passes`)."""
        turns: Integers = (codes & _MASK) // self._samples[codes >> _SHIFT]
        return turns

    def ordinals(self, codes: Integers) -> Integers:
        """Returns the sample of each code in its member: (N,)."""
        ordinals: Integers = (codes & _MASK) % self._samples[codes >> _SHIFT]
        return ordinals
