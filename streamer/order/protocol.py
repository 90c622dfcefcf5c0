"""The interface of an order: `EpochOrder` for a dataset, `MixOrder` for a mix, `GrowingOrder` in rounds."""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np

from streamer.order.hashing import Chunks, Flags, Integers
from streamer.order.rank_split import RankSplit

# The answer of `SampleOrder.find_known` where nothing is decided later.
ALL_POSITIONS = 0, 1 << 62


class Batches(msgspec.Struct, frozen=True):
    """A run of batches of an epoch: batch g holds the positions origin + [g B, (g+1) B).

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
        """The position one past the last of the run."""
        return self.origin + self.end * self.size

    def number(self, positions: Integers) -> Integers:
        """The batches of some positions, clipped to the run."""
        return np.clip((positions - self.origin) // self.size, self.begin, self.end - 1)


class Needs(msgspec.Struct, frozen=True, eq=False):
    """Chunks with the batches that use them; a chunk may have several entries.

    Attributes:
        chunk: (C,) chunk numbers; those of a mix count through the chunks of all its datasets.
        first, last: (C,) batch numbers in the epoch, both inclusive.
        passes: (C,) which pass over its dataset the use belongs to; for one dataset that is the epoch.
    """

    chunk: Chunks
    first: Integers
    last: Integers
    passes: Integers


class SampleOrder(Protocol):
    """The global order of one epoch: positions origin..samples-1 to samples, the same on all machines."""

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
        """The order of another epoch, sharing what does not change from epoch to epoch."""
        ...

    def find_known(self, position: int) -> tuple[int, int]:
        """Returns the half-open positions around `position` whose samples are known as soon as its own sample is.

        That is the round of a growing dataset; `ALL_POSITIONS` where nothing is decided later.
        """
        ...

    def ordinals(self, positions: Integers) -> Integers:
        """The samples at some positions, (N,) int64; those from `samples` on are padding, and repeat samples.

        For a mix they are codes, see `streamer.order.mix.streams`.
        """
        ...

    def repeats(self, positions: Integers) -> Flags:
        """Returns which positions only repeat a sample, (N,): padding, and in a mix the rest of a group."""
        ...

    def needs(self, split: RankSplit, run: Batches) -> list[Needs]:
        """Returns the chunks that a rank uses in a run of batches, padding left out.

        The batches from first to last use of a chunk may be more than those that use it, never fewer.
        """
        ...

    def chunks(self, ordinals: Integers) -> tuple[Integers, Integers]:
        """Returns chunk and pass of some samples, both (N,)."""
        ...
