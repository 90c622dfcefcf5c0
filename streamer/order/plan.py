"""Plans one rank's epoch: its samples batch by batch, and the chunks that they need.

`batches/samples/plans.py` keeps a `RankPlan` for each epoch, in the rank and in its workers; `loader/` and `tools/` use
the rules of the last batch.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from streamer.base.sorting import unique
from streamer.errors import ConfigError
from streamer.order.hashing import Flags, Integers
from streamer.order.protocol import Batches, Needs, SampleOrder
from streamer.order.rank_split import LaneRun, LaneSplit, RankSplit
from streamer.order.schedule import Schedule, merge

# Most cells of the (batches, lanes) matrix of batches that are computed together: 1 MB.
_BLOCK_CELLS = 1 << 17

LastBatch = Literal["fill", "short", "drop"]
"""What becomes of the last batch if samples are missing: "fill" it with marked repeats, make it "short", "drop" it."""


class BatchIndex(msgspec.Struct, frozen=True, eq=False):
    """One rank's samples of one batch.

    Attributes:
        positions: positions in the epoch; those behind its end are padding.
        ordinals: the sample at each position: its ordinal, or in a mix or growing dataset its code.
        repeated: whether each sample is there only to fill the batch up.
    """

    positions: Integers
    ordinals: Integers
    repeated: Flags


class RankPlan:
    """One rank's samples of one epoch; every rank has the same number of batches.

    Owned by one thread. Keeps one block of computed batches.

    Args:
        order: order of the epoch. Where it is decided in rounds, only batches of known rounds can be asked for.
        global_batch: samples of a batch over all ranks.
        world: number of ranks, which divides `global_batch`. Any number gives the same global batches.
        rank: number of this rank.
        last_batch: what becomes of an incomplete last batch. "short" is for a single rank only.
        start: position of batch 0. It differs from the order's origin only after a resume with another global batch.
        runs: samples of each lane that this rank takes of a batch (see `LaneSplit`), empty if the ranks share a batch
            in equal runs.

    Attributes:
        order, last_batch, start: the same.
        rank_split: the rank's place in every batch.
        batches: number of batches of the epoch.

    Raises:
        ConfigError: the ranks cannot share the batch equally, there is no such rank, `start` is negative or behind the
            end of the epoch, or "short" is given for several ranks.
    """

    def __init__(
        self,
        order: SampleOrder,
        global_batch: int,
        world: int,
        rank: int,
        last_batch: LastBatch = "fill",
        *,
        start: int = 0,
        runs: tuple[LaneRun, ...] = (),
    ) -> None:
        self.order = order
        whole = RankSplit(order.lanes, global_batch, world, rank)
        self.rank_split = LaneSplit(order.lanes, global_batch, world, rank, runs=runs) if runs else whole
        self.last_batch = check_last_batch(last_batch, world)
        if not 0 <= start <= order.samples:
            raise ConfigError(f"start={start} is not in 0..{order.samples}", field="start")
        self.start = start
        self.batches = batch_count(order.samples - start, global_batch, last_batch)
        self._block = range(0)
        self._positions: Integers = np.empty((0, self.rank_split.per_rank), dtype=np.int64)
        self._ordinals: Integers = self._positions

    def __repr__(self) -> str:
        rank_split = self.rank_split
        return (
            f"RankPlan(epoch={self.order.epoch}, rank={rank_split.rank}/{rank_split.world}, "
            f"global_batch={rank_split.global_batch}, batches={self.batches}, start={self.start}, "
            f"last_batch={self.last_batch!r})"
        )

    @property
    def samples(self) -> int:
        """Number of samples that this rank yields in the epoch, repeats included."""
        return sample_count(self.order.samples - self.start, self.rank_split, self.last_batch)

    def position(self, batch: int) -> int:
        """Returns the position at which a batch begins: a `State` keeps it when all batches before are delivered."""
        return self.start + batch * self.rank_split.global_batch

    def batch(self, batch: int) -> BatchIndex:
        """Returns this rank's samples of a batch; computes and keeps those of some batches around it, too.

        Raises:
            IndexError: there is no such batch, or it is in a round that is not known.
        """
        self._check_batch(batch)
        if batch not in self._block:
            rank_split = self.rank_split
            count = max(1, min(self.order.block_samples // rank_split.per_rank, _BLOCK_CELLS // rank_split.lanes))
            begin, end = self.order.find_known(self.position(batch))
            size = rank_split.global_batch
            block_start = batch - batch % count
            first = max(block_start, -(-(begin - self.start) // size))
            stop = min(block_start + count, self.batches, (end - self.start) // size)
            # A batch may be alone in its round.
            block = range(first, stop) if first <= batch < stop else range(batch, batch + 1)
            starts = np.arange(block.start, block.stop, dtype=np.int64)
            positions = rank_split.positions(self.start + starts * rank_split.global_batch)
            ordinals = self.order.ordinals(positions.ravel()).reshape(positions.shape)
            positions.flags.writeable = ordinals.flags.writeable = False
            self._block = block
            self._positions = positions
            self._ordinals = ordinals
        row = batch - self._block.start
        positions = self._positions[row]
        ordinals = self._ordinals[row]
        if self.last_batch == "short":
            real = positions < self.order.samples
            positions = positions[real]
            ordinals = ordinals[real]
        return BatchIndex(positions, ordinals, self.order.repeats(positions))

    def find_repeats(self, batch: int) -> Flags:
        """Returns `BatchIndex.repeated` of this rank's batch, without computing the samples.

        Raises:
            IndexError: there is no such batch.
        """
        self._check_batch(batch)
        positions = self.rank_split.positions(np.array([self.position(batch)], np.int64))[0]
        if self.last_batch == "short":
            positions = positions[positions < self.order.samples]
        return self.order.repeats(positions)

    def schedule(self, start_batch: int = 0, stop_batch: int | None = None) -> Schedule:
        """Returns the chunks of this rank's batches start_batch..stop_batch-1, and their uses in these batches.

        Takes time for the chunks of these batches, not for those of earlier ones.

        Args:
            start_batch: the first batch.
            stop_batch: the batch behind the last one; None means the end of the epoch.

        Raises:
            IndexError: not 0 <= start_batch <= stop_batch <= batches, or a round is not known.
        """
        stop = self.batches if stop_batch is None else stop_batch
        if not 0 <= start_batch <= stop <= self.batches:
            raise IndexError(f"batches {start_batch}..{stop} are not in 0..{self.batches}")
        if start_batch == stop:
            return merge([])
        run = Batches(self.start, self.rank_split.global_batch, start_batch, stop)
        needs = list(self.order.needs(self.rank_split, run))
        if self.position(stop) > self.order.samples and self.last_batch != "short":
            # Repeats may be in a chunk of a lane that only another rank draws from: they are looked up one by one.
            positions = self.rank_split.positions(np.array([self.position(stop - 1)], np.int64))[0]
            padding = positions[positions >= self.order.samples]
            if padding.size:
                chunks, passes = self.order.chunks(unique(self.order.ordinals(padding)))
                last = np.full(len(chunks), stop - 1, dtype=np.int64)
                needs.append(Needs(chunks.astype(np.uint32), last, last, passes))
        return merge(needs)

    def _check_batch(self, batch: int) -> None:
        if not 0 <= batch < self.batches:
            raise IndexError(f"batch {batch} is not in 0..{self.batches - 1}")


def check_last_batch(last_batch: LastBatch | None, world: int) -> LastBatch:
    """Returns what becomes of the last batch; None means "short" on one rank and "fill" on several.

    Raises:
        ConfigError: "short" on several ranks.
    """
    if last_batch == "short" and world > 1:
        raise ConfigError(
            f"last_batch='short' on {world} ranks: they would make different numbers of steps; take 'fill', which "
            "marks the repeats, or 'drop'",
            field="last_batch",
        )
    return last_batch or ("short" if world == 1 else "fill")


def batch_count(samples: int, global_batch: int, last_batch: LastBatch) -> int:
    """Returns the number of batches of so many samples: only whole ones with "drop", else rounded up."""
    return samples // global_batch if last_batch == "drop" else -(-samples // global_batch)


def sample_count(samples: int, rank_split: RankSplit, last_batch: LastBatch) -> int:
    """Returns the number of samples that a rank yields of `samples` over all ranks, repeats included."""
    if last_batch == "short":
        return samples
    return batch_count(samples, rank_split.global_batch, last_batch) * rank_split.per_rank


def worker_batches(start_batch: int, stop_batch: int, worker: int, workers: int) -> range:
    """Returns the batches that one worker of a plain torch DataLoader yields, each as a whole.

    torch asks its workers in turn, beginning with worker 0. So every `workers`-th batch restores the order of the
    batches for any number of workers. Where the dataset was not told the batch size, the plan has global_batch = world:
    a "batch" is one sample of this rank, and torch makes the batches.

    Args:
        start_batch: first batch after a resume, else 0.
        stop_batch: the batch behind the last one.
        worker: torch's worker id, or 0 without workers.
        workers: number of workers, or 1 without workers.

    Raises:
        ConfigError: there is no such worker.
    """
    if not 0 <= worker < workers:
        raise ConfigError(f"worker={worker} is not in 0..{workers - 1}", field="num_workers")
    return range(start_batch + worker, stop_batch, workers)
