"""Computes the schedule for the engine: the first and the last batch for which a rank needs each chunk.

Orders (`order/epoch.py`, `order/growing/order.py`, `order/mix/streams.py`) ask it which pieces of a lane a run of
batches uses; `order/plan.py` merges the needs of all lanes. A piece is the part of a chunk that one lane has, and its
slices are dealt to groups (`order/deal.py`).

A schedule is computed from chunks, not from samples, for the requested batches alone. It is never narrower than the
exact one, and wider by less than one sample per open chunk, because slices are rounded up to whole samples.
"""

from __future__ import annotations

import msgspec
import numpy as np

from streamer.base.sorting import unique_inverse
from streamer.order.deal import Deal, slice_count
from streamer.order.hashing import Chunks, Integers
from streamer.order.protocol import Batches, Needs


class Schedule(Needs, frozen=True, eq=False):
    """The chunks that a rank needs, each once per pass, by first use, then by last use."""

    def __len__(self) -> int:
        return len(self.chunk)


def merge(needs: list[Needs]) -> Schedule:
    """Joins needs to one entry per chunk and pass, from first to last use: parts of a chunk share one fetch."""
    if not needs:
        empty = np.empty(0, dtype=np.int64)
        return Schedule(empty.astype(np.uint32), empty, empty, empty)
    columns = zip(*map(msgspec.structs.astuple, needs), strict=True)
    chunk, first, last, passes = map(np.concatenate, columns)
    uses, _, entry = unique_inverse(passes << 32 | chunk)
    merged_first = np.full(len(uses), np.iinfo(np.int64).max)
    merged_last = np.full(len(uses), -1)
    np.minimum.at(merged_first, entry, first)
    np.maximum.at(merged_last, entry, last)
    arranged = np.lexsort((uses, merged_last, merged_first))
    uses = uses[arranged]
    chunks = (uses & 0xFFFFFFFF).astype(np.uint32)
    return Schedule(chunks, merged_first[arranged], merged_last[arranged], uses >> 32)


def run_needs(chunk_first: Integers, share: slice, batches: Batches, samples: int) -> tuple[Chunks, Integers, Integers]:
    """Returns the needs of a rank without shuffle: chunks, and the first and last batch that uses each, inclusive.

    Args:
        chunk_first: (M+1,) samples before each chunk.
        share: the rank's half-open run of places in a batch, which are consecutive ordinals.
        batches: the run of batches.
        samples: n; positions from n on are padding, which is left out.
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


def piece_runs(deal: Deal, lane: int, run: tuple[int, int]) -> tuple[Integers, Integers, Integers]:
    """Finds the pieces that a run of a lane's samples draws from.

    Args:
        deal: the groups of the lanes; those of this lane are filled.
        lane: the lane.
        run: half-open numbers of samples of the lane as it is dealt, not empty.

    Returns:
        The pieces, numbered through all lanes, and for each the half-open run of numbers in the lane, cut to `run`,
        among which its samples are: (P,) each.
    """
    k = deal.window
    head = int(deal.first[lane])
    pieces = int(deal.first[lane + 1]) - head
    # The first group of the run, and the last one or a later one. The ends of a lane need no search; with many short
    # lanes that was half of the cost (2026-11-23).
    at_ends = (run[0] == 0, run[1] == deal.start[lane + 1] - deal.start[lane])
    ends = [end for end, at_end in zip((run[0], run[1] - 1), at_ends, strict=True) if not at_end]
    groups = deal.find(np.full(len(ends), lane, dtype=np.int64), np.array(ends, dtype=np.int64)).tolist()
    low = 0 if at_ends[0] else groups[0]
    high = pieces if at_ends[1] else groups[-1]
    oldest = max(0, low - k + 1)
    piece = np.arange(oldest, min(high + 1, pieces), dtype=np.int64)
    prefix = deal.prefix[head + oldest : head + int(piece[-1]) + 2]
    size = np.diff(prefix)
    share = slice_count(piece, size, k)
    before, slack = _group_starts(size, share)
    before += prefix[0] - deal.start[lane]
    begin = np.maximum(before[piece - oldest], run[0])
    # The last slice with a sample in it; with fewer samples than slices it comes before slice k_j.
    after = piece - oldest + share * (size - 1) // size + 1
    end = np.minimum(before[after] + slack[after], run[1])
    used = begin < end
    return head + piece[used], begin[used], end[used]


def lane_runs(
    deal: Deal, lanes: Integers, begin: Integers, end: Integers
) -> tuple[Integers, Integers, Integers, Integers]:
    """Does what `piece_runs` does for several lanes. The first array that it returns is the lane of each piece.

    If one piece is open at a time, as in a mix of many members, a piece is a run of its lane, and no loop over lanes is
    needed.

    Args:
        deal: the groups of the lanes.
        lanes: (N,) the lanes, at least one.
        begin: (N,) number of the first sample of a run of each lane.
        end: (N,) number of the sample behind its last one. The run is not empty.
    """
    if deal.window > 1:
        runs = zip(lanes.tolist(), begin.tolist(), end.tolist(), strict=True)
        found = [piece_runs(deal, lane, (low, high)) for lane, low, high in runs]
        piece, first, stop = (np.concatenate(column) for column in zip(*found, strict=True))
        return np.repeat(lanes, [len(run[0]) for run in found]), piece, first, stop
    start = deal.start[lanes]
    low = np.searchsorted(deal.prefix, start + begin, side="right") - 1
    counts = np.searchsorted(deal.prefix, start + end) - low
    number = np.repeat(np.arange(len(lanes)), counts)
    piece = np.arange(len(number)) + (low - np.cumsum(counts) + counts)[number]
    edges = deal.prefix[piece] - start[number], deal.prefix[piece + 1] - start[number]
    # The runs are one sample wider, as those of `piece_runs` are.
    return lanes[number], piece, np.maximum(edges[0], begin[number]), np.minimum(edges[1] + 1, end[number])


def _group_starts(size: Integers, share: Integers) -> tuple[Integers, Integers]:
    """Returns bounds of the samples that these pieces give before each group, counted from the first piece's group.

    A piece of s samples in k slices gives ceil(s u / k) to its first u groups. Where s < k, each sample is counted in
    its group. Else floor(s / k) per group is summed exactly, and the rest as a line: the exact sum exceeds it by less
    than one sample per piece that is open.

    Args:
        size: (P,) s of each piece.
        share: (P,) k of each piece.

    Returns:
        Lower bounds, and what must be added to each for an upper bound: (P + max share + 1,) int64 each.
    """
    rest = np.where(size < share, 0, size % share)
    open_pieces = _level((rest > 0).astype(np.int64), share)
    level = _level(size // share, share)
    # Sample i of a piece with fewer samples than slices is in slice i k_j // s.
    sparse = np.flatnonzero(size < share)
    sample = 0
    while sparse.size:
        np.add.at(level, sparse + sample * share[sparse] // size[sparse], 1)
        sample += 1
        sparse = sparse[size[sparse] > sample]
    # The line is the sum of rest / share over the open pieces, rounded down. Before that, 1e-3 samples are taken off,
    # more than 1e7 additions of doubles can lose. The slack has a whole sample for it.
    pieces = len(rest)
    slope = rest / share
    change = np.zeros(pieces + int(share.max()))
    change[:pieces] += slope
    np.subtract.at(change, np.arange(pieces) + share, slope)
    lines = np.floor(np.cumsum(np.cumsum(change)) - 1e-3).clip(0).astype(np.int64)
    given = np.cumsum(level) + lines
    before = np.concatenate([np.zeros(1, np.int64), given])
    # Group g has begun g - j slices of piece j: open before it are the pieces of group g - 1.
    slack = np.concatenate([np.zeros(1, np.int64), open_pieces + 1])
    return before, slack


def _level(amount: Integers, share: Integers) -> Integers:
    """Returns the sum in each group of the amounts of its pieces; piece j is in the groups j..j+share-1."""
    pieces = len(amount)
    change = np.zeros(pieces + int(share.max()), dtype=np.int64)
    change[:pieces] += amount
    np.subtract.at(change, np.arange(pieces) + share, amount)
    level: Integers = np.cumsum(change)
    return level
