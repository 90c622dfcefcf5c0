"""Defines the interface of an order, `SampleOrder`, and the chunks that a run of batches needs of it.

Orders have it: `EpochOrder`, `MixOrder`, `GrowingOrder`, and those around them (`order/row_order.py`,
`order/balanced_order.py`). `order/plan.py` and `loader/kinds/growing/session.py` ask them, and `batches/` opens them.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np

from streamer.order.hashing import Chunks, Flags, Integers
from streamer.order.rank_split import RankSplit

# The positions that `SampleOrder.find_known` returns where nothing is decided later: all.
ALL_POSITIONS = 0, 1 << 62


class Batches(msgspec.Struct, frozen=True):
    """A run of batches of an epoch: batch g has the positions origin + [g B, (g+1) B).

    Attributes:
        origin: position at which batch 0 begins.
        size: B, samples of a batch over all ranks.
        begin, end: half-open numbers of the batches.
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
        """The position one past the last of the run."""
        return self.origin + self.end * self.size

    def number(self, positions: Integers) -> Integers:
        """Returns the number of the batch that has each position, or the nearest batch of the run."""
        return np.clip((positions - self.origin) // self.size, self.begin, self.end - 1)


class Needs(msgspec.Struct, frozen=True, eq=False):
    """Chunks with the batches that use them; a chunk may have several entries.

    Attributes:
        chunk: (C,) chunk numbers. Those of a mix count through the chunks of all its datasets.
        first, last: (C,) numbers of the first and the last batch that uses it, both inclusive.
        passes: (C,) number of the pass over its dataset to which the use belongs: for one dataset the epoch, for a
            growing one the use.
    """

    chunk: Chunks
    first: Integers
    last: Integers
    passes: Integers


class SampleOrder(Protocol):
    """The global order of one epoch: maps positions origin..samples-1 to samples, the same on all machines."""

    @property
    def epoch(self) -> int:
        """Number of the epoch, from 0."""
        ...

    @property
    def origin(self) -> int:
        """The first position of the epoch: 0 where each epoch counts anew."""
        ...

    @property
    def samples(self) -> int:
        """The position one past the last of the epoch."""
        ...

    @property
    def lanes(self) -> int:
        """The number of lanes, L: position p lies in lane p mod L."""
        ...

    @property
    def block_samples(self) -> int:
        """Positions that one call of `ordinals` should have, so that its fixed cost does not count."""
        ...

    def open_epoch(self, epoch: int) -> SampleOrder:
        """Returns the order of another epoch, which shares with this one what does not change between epochs.

        Raises:
            ConfigError: an epoch before the first one.
        """
        ...

    def find_known(self, position: int) -> tuple[int, int]:
        """Returns the half-open positions around `position` whose samples are known as soon as its own sample is.

        They are those of the round of a growing dataset; `ALL_POSITIONS` where nothing is decided later.

        Raises:
            IndexError: the round is not known.
        """
        ...

    def ordinals(self, positions: Integers) -> Integers:
        """Returns the samples at some positions: (N,) int64. Those from `samples` on are padding, and repeat samples.

        A sample is its number in the dataset's selection; in a mix or a growing dataset its code.

        Raises:
            ConfigError: a negative position.
            IndexError: a position in a round that is not known.
        """
        ...

    def repeats(self, positions: Integers) -> Flags:
        """Returns which positions only repeat a sample: (N,). They are padding, and in a mix what fills up a group."""
        ...

    def needs(self, split: RankSplit, run: Batches) -> list[Needs]:
        """Returns the chunks that a rank uses in a run of batches, without what padding needs.

        The batches from first to last use of a chunk may be more than those that use it, never fewer.

        Args:
            split: the rank's place in every batch.
            run: the batches.

        Raises:
            IndexError: a batch is in a round that is not known.
        """
        ...

    def chunks(self, ordinals: Integers) -> tuple[Integers, Integers]:
        """Returns the chunk of each sample, and the pass of its use: (N,) each; a row has several (`RowOrder`)."""
        ...
