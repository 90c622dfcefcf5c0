"""Mixes the pieces of a lane, of which k are open at a time: deals them to groups, and finds a sample's group.

Used by `order/epoch.py` and `order/growing/order.py` (whose rounds are dealt as epochs are), and by `order/decode.py`
and `order/schedule.py`, which ask for groups. A piece is the part of a chunk that one lane has.

Piece j of a lane is cut in k_j = min(k, j+1) slices, and slice t goes to group j+t. So the groups follow each other,
each opens one new piece, and at most k pieces are open. A piece of fewer samples than slices leaves some slices empty:
it is spread over the window as the others are. (Cutting it in as many slices as it has samples would close it early:
with 4 samples per chunk, 256 open chunks, 8 lanes and a batch of 256, the variance of a batch's mean was 3.33 x that of
a full shuffle instead of 1.04 x; 2026-11.)

Everything here follows from the prefix sum of the pieces' sizes: the samples before group g are those of the pieces
before g-k+1, and at most k-1 terms. There is no array over samples.
"""

from __future__ import annotations

import msgspec
import numpy as np

from streamer.order.hashing import Integers

# Elements of one (groups, k) matrix; 8 matrices live at once, 4 MB in all.
_MATRIX = 1 << 16


class Slices(msgspec.Struct, frozen=True, eq=False):
    """The k slices of each of G groups, that of the oldest piece first. A missing slice has no samples.

    Attributes:
        piece: (G, k) number of the piece in its lane; negative, or too large, for a missing slice.
        begin, end: (G, k) half-open run of places in the piece's own order.
        size: (G, k) number of samples of the piece.
        start: (G,) number of samples of the lane before the group.
    """

    piece: Integers
    begin: Integers
    end: Integers
    size: Integers
    start: Integers


class Deal(msgspec.Struct, frozen=True, eq=False):
    """The groups of all L lanes of one epoch or round, with T pieces in all.

    Attributes:
        window: k, number of pieces that are open together in a lane.
        prefix: (T+1,) number of samples before each piece, through all lanes.
        first: (L+1,) number of pieces before each lane.
        start: (L+1,) number of samples before each lane.
    """

    window: int
    prefix: Integers
    first: Integers
    start: Integers

    def slices(self, lanes: Integers, groups: Integers) -> Slices:
        """Returns the slices of some groups; `parts` says how many groups to ask for at a time.

        Args:
            lanes: (G,) lane of each group.
            groups: (G,) number of each group in its lane, from 0. Groups past the last one are empty.
        """
        k = self.window
        turn = np.arange(k - 1, -1, -1, dtype=np.int64)
        piece = groups[:, None] - turn
        pieces = (self.first[lanes + 1] - self.first[lanes])[:, None]
        flat = self.first[lanes][:, None] + np.clip(piece, 0, np.maximum(pieces - 1, 0))
        size = self.prefix[flat + 1] - self.prefix[flat]
        size[(piece < 0) | (piece >= pieces)] = 0
        share = slice_count(piece, size, k)
        begin = _slice_start(size, turn, share)
        end = _slice_start(size, turn + 1, share)
        oldest = self.first[lanes] + np.clip(groups - k + 1, 0, pieces[:, 0])
        start = self.prefix[oldest] - self.start[lanes] + begin.sum(axis=1)
        return Slices(piece=piece, begin=begin, end=end, size=size, start=start)

    def find(self, lanes: Integers, indices: Integers) -> Integers:
        """Returns, for each of some samples, the number of the group that has it, counted in its lane: (N,).

        Args:
            lanes: (N,) lane of each sample.
            indices: (N,) number of each sample in its lane as it is dealt, from 0.
        """
        found = np.empty(len(lanes), dtype=np.int64)
        for part in self.parts(len(lanes)):
            lane = lanes[part]
            index = indices[part]
            # Group g starts between the starts of the pieces g-k+1 and g, so that k groups are possible.
            low = np.searchsorted(self.prefix, self.start[lane] + index, side="right") - 1
            low = low - self.first[lane]
            high = low + self.window
            while np.any(high - low > 1):
                middle = (low + high) >> 1
                before = self.slices(lane, middle).start <= index
                low, high = np.where(before, middle, low), np.where(before, high, middle)
            found[part] = low
        return found

    def parts(self, rows: int) -> list[slice]:
        """Divides `rows` groups or samples into runs for which (run, k) matrices are small."""
        step = max(1, _MATRIX // self.window)
        return [slice(i, i + step) for i in range(0, rows, step)]


def slice_count(piece: Integers, size: Integers, window: int) -> Integers:
    """Returns k_j, the number of slices of each piece; it is small at the start of a lane, so that the window grows.

    A piece of one sample has it in the first slice, however many there are: such a piece gets 1.

    Args:
        piece: number of each piece in its lane.
        size: samples of each piece, in the same shape as `piece`.
        window: k.
    """
    return np.where(size > 1, np.maximum(1, np.minimum(piece + 1, window)), 1)


def _slice_start(size: Integers, turn: Integers, share: Integers) -> Integers:
    return (size * np.minimum(turn, share) + share - 1) // share
