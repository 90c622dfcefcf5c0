"""The order of rows: that of a dataset or a mix whose chunks are sets, and whose samples are the rows of the sets.

All that the order of samples promises holds for rows: it is a bijection, the same for any number of ranks, and known
at any position without the positions before it. Only what it needs from the cache is in chunks.
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
    """A `SampleOrder` of rows that answers as another order does; subclasses have answers of their own.

    Attributes:
        inner: the other order.
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
        """Rows of the epoch."""
        return self.inner.samples

    @property
    def lanes(self) -> int:
        """L."""
        return self.inner.lanes

    @property
    def block_samples(self) -> int:
        """Positions that one call of `ordinals` should have."""
        return self.inner.block_samples

    def find_known(self, position: int) -> tuple[int, int]:
        """Returns all positions; of a growing dataset those of the round."""
        return self.inner.find_known(position)

    def ordinals(self, positions: Integers) -> Integers:
        """Returns the rows at some positions, (N,); of a mix their codes."""
        return self.inner.ordinals(positions)

    def repeats(self, positions: Integers) -> Flags:
        """Returns which positions only fill a batch up: (N,)."""
        return self.inner.repeats(positions)

    def chunks(self, ordinals: Integers) -> tuple[Integers, Integers]:
        """Returns the chunks of some rows and the passes of their uses."""
        return self.inner.chunks(ordinals)


class RowOrder(OuterOrder["EpochOrder | MixOrder | GrowingOrder"]):
    """A `SampleOrder` of rows. Owned by one thread.

    Args:
        inner: the order of one epoch; its chunks are the sets, numbered through all members of a mix.
        sets: their chunks, numbered through all members of a mix.
    """

    def __init__(self, inner: EpochOrder | MixOrder | GrowingOrder, sets: Sets) -> None:
        super().__init__(inner)
        self._sets = sets

    def __repr__(self) -> str:
        return f"RowOrder({self.inner!r}, {len(self._sets)} sets)"

    def open_epoch(self, epoch: int) -> RowOrder:
        """Returns the order of another epoch."""
        return RowOrder(self.inner.open_epoch(epoch), self._sets)

    def needs(self, split: RankSplit, run: Batches) -> list[Needs]:
        """Returns the chunks that a rank uses in a run of batches: all chunks of a set for each of its rows."""
        found = []
        for needs in self.inner.needs(split, run):
            chunks, place = self._sets.expand(needs.chunk.astype(np.int64))
            found.append(Needs(chunks, needs.first[place], needs.last[place], needs.passes[place]))
        return found

    def chunks(self, ordinals: Integers) -> tuple[Integers, Integers]:
        """Returns the chunks of some rows and the passes of their uses, both (N',): several for each row."""
        sets, passes = self.inner.chunks(ordinals)
        chunks, place = self._sets.expand(sets)
        return chunks.astype(np.int64), passes[place]

    def chunk_lanes(self, chunks: int) -> Integers:
        """Returns the lane of each chunk's set in one dataset, (M,), or -1 for a chunk without documents."""
        assert isinstance(self.inner, EpochOrder)
        lanes = np.full(chunks, -1, np.int64)
        members, place = self._sets.expand(np.arange(len(self._sets)))
        lanes[members] = self.inner.chunk_lanes(len(self._sets))[place]
        return lanes

    def count_drawn(self, position: int) -> Integers:
        """Returns the rows of each member of a mix among the first positions; see `MixOrder.count_drawn`."""
        return cast("MixOrder", self.inner).count_drawn(position)


def join_sets(members: list[tuple[Sets, int]]) -> Sets:
    """Returns the sets of a mix: those of each member, whose chunks are numbered from a base on."""
    chunks: list[Chunks] = [(sets.all_chunks + base).astype(np.uint32) for sets, base in members]
    counts = np.concatenate([np.diff(sets.first) for sets, _ in members])
    return Sets(np.concatenate(chunks), np.append(0, np.cumsum(counts)))


def row_window(sets: int, chunks: int, global_batch: int, lanes: int, shuffle_window: int | None) -> int:
    """Returns K in sets: as many chunks are open as without rows, but at least one set of each lane.

    Args:
        sets: S, with rows.
        chunks: M, with documents.
        global_batch: B, rows over all ranks.
        lanes: L.
        shuffle_window: Window of the user in chunks, or None if it is chosen.
    """
    if shuffle_window is not None:
        return max(lanes, shuffle_window * sets // chunks)
    return max(lanes, min(4, sets), min(auto_window(chunks, global_batch) * sets // chunks, sets // 16))
