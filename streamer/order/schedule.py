"""The schedule for the engine: from which batch to which batch a rank needs each chunk.

Chunk arithmetic only, for the chunks of the asked batches: never narrower than the truth, and
wider by less than one sample per open chunk, because slices are rounded up to whole samples.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from streamer.order.deal import slice_count
from streamer.order.epoch import EpochOrder
from streamer.order.hashing import Chunks, Integers
from streamer.unique import unique_inverse


class Schedule(msgspec.Struct, frozen=True, eq=False):
    """The chunks a rank needs, each once, sorted by first need.

    Attributes:
        chunk: (C,) chunk numbers.
        first, last: (C,) batch numbers in the epoch, both inclusive.
    """

    chunk: Chunks
    first: Integers
    last: Integers

    def __len__(self) -> int:
        return len(self.chunk)


class Batches(msgspec.Struct, frozen=True):
    """A run of batches of an epoch: batch g holds the positions start + [g B, (g+1) B).

    Attributes:
        origin: position of batch 0.
        size: B.
        begin, end: half-open batch numbers.
    """

    origin: int
    size: int
    begin: int
    end: int

    @property
    def first_position(self) -> int:
        """The first position of the run."""
        return self.origin + self.begin * self.size

    @property
    def stop_position(self) -> int:
        """One past the last position of the run."""
        return self.origin + self.end * self.size

    def number(self, positions: Integers) -> Integers:
        """The batches of some positions, clipped to the run."""
        return np.clip((positions - self.origin) // self.size, self.begin, self.end - 1)


def lane_needs(order: EpochOrder, lanes: Integers, batches: Batches) -> Iterator[tuple[Chunks, Integers, Integers]]:
    """Chunks of some lanes with the first and last batch of the run that draws from them."""
    order.fill(lanes)
    for lane in lanes.tolist():
        begin, end = _lane_run(order, lane, batches)
        if begin < end:
            yield _needs_of_lane(order, lane, (begin, end), batches)


def merge(needs: list[tuple[Chunks, Integers, Integers]]) -> Schedule:
    """One entry per chunk: the parts of a cut chunk come up together and share one fetch."""
    if not needs:
        empty = np.empty(0, dtype=np.int64)
        return Schedule(empty.astype(np.uint32), empty, empty)
    chunk, first, last = (np.concatenate(column) for column in zip(*needs, strict=True))
    chunks, _, entry = unique_inverse(chunk)
    merged_first = np.full(len(chunks), np.iinfo(np.int64).max)
    merged_last = np.full(len(chunks), -1)
    np.minimum.at(merged_first, entry, first)
    np.maximum.at(merged_last, entry, last)
    arranged = np.lexsort((chunks, merged_last, merged_first))
    return Schedule(chunks[arranged], merged_first[arranged], merged_last[arranged])


def run_needs(chunk_first: Integers, share: slice, batches: Batches, samples: int) -> tuple[Chunks, Integers, Integers]:
    """The needs of a rank without shuffle: its `share` of each batch is a run of ordinals.

    Args:
        chunk_first: (M+1,) samples before each chunk.
        share: the rank's half-open run of places in a batch.
        batches: the run.
        samples: n; places from n on are padding.
    """
    low = int(np.searchsorted(chunk_first, min(batches.first_position, samples), side="right"))
    high = int(np.searchsorted(chunk_first, min(batches.stop_position, samples), side="left"))
    chunks = np.arange(low - 1, high, dtype=np.int64)
    start, stop = chunk_first[chunks], chunk_first[chunks + 1]
    # The first batch whose run of the rank ends after `start`; the last that begins before `stop`.
    first = (start - batches.origin - share.stop) // batches.size + 1
    last = -(-(stop - batches.origin - share.start) // batches.size) - 1
    first, last = np.maximum(first, batches.begin), np.minimum(last, batches.end - 1)
    needed = (first <= last) & (stop > start)
    return chunks[needed].astype(np.uint32), first[needed], last[needed]


def _lane_run(order: EpochOrder, lane: int, batches: Batches) -> tuple[int, int]:
    """Half-open indices of the lane that the run of batches draws."""
    lanes = order.spec.lanes
    length = int(order.lane_start[lane + 1] - order.lane_start[lane])
    begin = -(-(batches.first_position - lane) // lanes)
    end = -(-(batches.stop_position - lane) // lanes)
    return min(max(begin, 0), length), min(max(end, 0), length)


def _needs_of_lane(
    order: EpochOrder, lane: int, run: tuple[int, int], batches: Batches
) -> tuple[Chunks, Integers, Integers]:
    ends = np.array([run[0], run[1] - 1], dtype=np.int64)
    low, high = order.deal.find(np.full(2, lane, dtype=np.int64), ends).tolist()
    k = order.spec.lane_window
    head = int(order.cut.piece[lane])
    pieces = int(order.cut.piece[lane + 1]) - head
    oldest = max(0, low - k + 1)
    piece = np.arange(oldest, min(high + 1, pieces), dtype=np.int64)
    prefix = order.deal.prefix[head + oldest : head + int(piece[-1]) + 2]
    size = np.diff(prefix)
    share = slice_count(piece, size, k)
    before, slack = _group_starts(size, share)
    before += prefix[0] - order.lane_start[lane]
    begin = np.maximum(before[piece - oldest], run[0])
    # The last slice with a sample in it; with fewer samples than slices it comes before slice k_j.
    after = piece - oldest + share * (size - 1) // size + 1
    end = np.minimum(before[after] + slack[after], run[1])
    used = begin < end
    stride = order.spec.lanes
    first = batches.number(lane + stride * begin[used])
    last = batches.number(lane + stride * (end[used] - 1))
    return order.piece_chunks[head + piece[used]], first, last


def _group_starts(size: Integers, share: Integers) -> tuple[Integers, Integers]:
    """Bounds of the samples that these pieces give before each group, counted from the first piece.

    A piece gives ceil(s u / k_j) in its first u groups. Where s < k_j, each sample is counted in
    its group. Else floor(s / k_j) per group is summed exactly and the rest as a line, which the
    rounding exceeds by less than one sample per piece still open.

    Returns:
        (pieces + max share + 1,) int64 lower bounds, and what must be added for an upper bound.
    """
    rest = np.where(size < share, 0, size % share)
    open_pieces = _level((rest > 0).astype(np.int64), share)
    level = _level(size // share, share)
    _add_sparse(level, size, share)
    given = np.cumsum(level) + _sum_lines(rest, share)
    before = np.concatenate([np.zeros(1, np.int64), given])
    # Group g has begun g - j slices of piece j: open before it are the pieces of group g - 1.
    slack = np.concatenate([np.zeros(1, np.int64), open_pieces + 1])
    return before, slack


def _level(amount: Integers, share: Integers) -> Integers:
    """Sum over the pieces of `amount` in each of the groups j..j+share-1."""
    pieces = len(amount)
    change = np.zeros(pieces + int(share.max()), dtype=np.int64)
    change[:pieces] += amount
    np.subtract.at(change, np.arange(pieces) + share, amount)
    level: Integers = np.cumsum(change)
    return level


def _add_sparse(level: Integers, size: Integers, share: Integers) -> None:
    """Adds the samples of the pieces with fewer samples than slices: sample i is in slice i k_j // s."""
    sparse = np.flatnonzero(size < share)
    sample = 0
    while sparse.size:
        np.add.at(level, sparse + sample * share[sparse] // size[sparse], 1)
        sample += 1
        sparse = sparse[size[sparse] > sample]


def _sum_lines(rest: Integers, share: Integers) -> Integers:
    """Rounded-down sum over the pieces of rest / share per group begun."""
    pieces = len(rest)
    slope = rest / share
    change = np.zeros(pieces + int(share.max()))
    change[:pieces] += slope
    np.subtract.at(change, np.arange(pieces) + share, slope)
    # 1e-3 samples cover what 1e7 additions of doubles can lose; the slack has a whole one.
    return np.floor(np.cumsum(np.cumsum(change)) - 1e-3).clip(0).astype(np.int64)
