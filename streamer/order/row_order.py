"""Orders rows of packed documents: as samples are ordered, with sets in place of chunks and rows in place of samples.

`batches/rows/planned.py` makes it where documents are packed, `batches/rows/explain.py` for predictions, and
`order/balanced_order.py` builds on `OuterOrder`. All that the order of samples promises holds for rows: it is a
bijection, the same for any number of ranks, and known at any position without the positions before it. Only what a rank
needs from the cache is counted in chunks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, cast

import numpy as np

from streamer.order.epoch import EpochOrder
from streamer.order.hashing import Chunks, Flags, Integers
from streamer.order.protocol import Batches, Needs, SampleOrder
from streamer.order.rank_split import RankSplit
from streamer.order.rows.sets import Sets
from streamer.order.spec import auto_window

if TYPE_CHECKING:
    from streamer.order.growing import GrowingOrder
    from streamer.order.mix.order import MixOrder


Inner = TypeVar("Inner", bound=SampleOrder)


class OuterOrder(Generic[Inner]):
    """Gives the answers of another order; subclasses change some, and add the rest of a `SampleOrder`.

    Attributes:
        inner: the other order, of rows or samples, which are called rows below.
    """

    def __init__(self, inner: Inner) -> None:
        self.inner = inner

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self.inner.epoch

    @property
    def origin(self) -> int:
        """The first position of the epoch."""
        return self.inner.origin

    @property
    def samples(self) -> int:
        """The position one past the last of the epoch."""
        return self.inner.samples

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return self.inner.lanes

    @property
    def block_samples(self) -> int:
        """Positions that one call of `ordinals` should have."""
        return self.inner.block_samples

    def find_known(self, position: int) -> tuple[int, int]:
        """Returns the half-open positions that are known with `position`; see `SampleOrder.find_known`."""
        return self.inner.find_known(position)

    def ordinals(self, positions: Integers) -> Integers:
        """Returns the rows at some positions: (N,); in a mix or growing dataset their codes."""
        return self.inner.ordinals(positions)

    def repeats(self, positions: Integers) -> Flags:
        """Returns which positions only fill a batch up: (N,)."""
        return self.inner.repeats(positions)

    def chunks(self, ordinals: Integers) -> tuple[Integers, Integers]:
        """Returns chunk and pass of some rows; see `SampleOrder.chunks`."""
        return self.inner.chunks(ordinals)


class RowOrder(OuterOrder["EpochOrder | MixOrder | GrowingOrder"]):
    """The order of rows: says which chunks they need, where the inner order says which sets. Owned by one thread.

    Args:
        inner: the order of one epoch; its "chunks" are the sets, numbered through all members of a mix.
        sets: the chunks of each set, numbered through all members of a mix.
    """

    def __init__(self, inner: EpochOrder | MixOrder | GrowingOrder, sets: Sets) -> None:
        super().__init__(inner)
        self._sets = sets

    def __repr__(self) -> str:
        return f"RowOrder({self.inner!r}, {len(self._sets)} sets)"

    def open_epoch(self, epoch: int) -> RowOrder:
        """Returns the order of another epoch over the same sets."""
        return RowOrder(self.inner.open_epoch(epoch), self._sets)

    def needs(self, split: RankSplit, run: Batches) -> list[Needs]:
        """Returns the chunks that a rank uses in a run of batches: all chunks of a set for each of its rows."""
        found = []
        for needs in self.inner.needs(split, run):
            chunks, place = self._sets.expand(needs.chunk.astype(np.int64))
            found.append(Needs(chunks, needs.first[place], needs.last[place], needs.passes[place]))
        return found

    def chunks(self, ordinals: Integers) -> tuple[Integers, Integers]:
        """Returns the chunks of the sets of some rows, and the pass of each, both (N',): several for each row."""
        sets, passes = self.inner.chunks(ordinals)
        chunks, place = self._sets.expand(sets)
        return chunks.astype(np.int64), passes[place]

    def chunk_lanes(self, chunks: int) -> Integers:
        """Returns the lane of each chunk's set, (M,), or -1 for a chunk without documents. For one dataset only.

        Args:
            chunks: M, number of chunks of the dataset.
        """
        assert isinstance(self.inner, EpochOrder)
        lanes = np.full(chunks, -1, np.int64)
        members, place = self._sets.expand(np.arange(len(self._sets)))
        lanes[members] = self.inner.chunk_lanes(len(self._sets))[place]
        return lanes

    def count_drawn(self, position: int) -> Integers:
        """Returns how many rows of each member of a mix come before a position; see `MixOrder.count_drawn`."""
        return cast("MixOrder", self.inner).count_drawn(position)


def join_sets(members: list[tuple[Sets, int]]) -> Sets:
    """Returns the sets of all members of a mix, from those of each and the number of its first chunk in the mix."""
    chunks: list[Chunks] = [(sets.all_chunks + base).astype(np.uint32) for sets, base in members]
    counts = np.concatenate([np.diff(sets.first) for sets, _ in members])
    return Sets(np.concatenate(chunks), np.append(0, np.cumsum(counts)))


def row_window(sets: int, chunks: int, global_batch: int, lanes: int, shuffle_window: int | None) -> int:
    """Returns how many sets are open together: as many chunks as without rows, but at least one set of each lane.

    If the window is chosen here, at most a 16th of the sets are open, but at least four of them.

    Args:
        sets: number of sets with rows.
        chunks: number of chunks with documents.
        global_batch: rows of a batch over all ranks.
        lanes: number of lanes.
        shuffle_window: window of the user in chunks, or None if it is chosen here.
    """
    if shuffle_window is not None:
        return max(lanes, shuffle_window * sets // chunks)
    return max(lanes, min(4, sets), min(auto_window(chunks, global_batch) * sets // chunks, sets // 16))
