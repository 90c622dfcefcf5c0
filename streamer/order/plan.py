"""One rank's epoch: its samples batch by batch, and the chunks they need."""

from __future__ import annotations

import msgspec
import numpy as np

from streamer.errors import ConfigError
from streamer.order.hashing import Flags, Integers
from streamer.order.protocol import Batches, Needs, Order
from streamer.order.rank_split import RankSplit
from streamer.order.schedule import Schedule, merge
from streamer.unique import unique

# Cells of the (batches, lanes) matrix of a block: 1 MB.
_BLOCK_CELLS = 1 << 17


class BatchIndex(msgspec.Struct, frozen=True, eq=False):
    """One rank's samples of one batch.

    Attributes:
        positions: (B/R,) places in the epoch; from n on they are padding.
        ordinals: (B/R,) samples; of a mix their codes.
        repeated: (B/R,) True where the sample only fills the batch up.
    """

    positions: Integers
    ordinals: Integers
    repeated: Flags


class RankPlan:
    """One rank's samples of one epoch; every rank has the same number of batches.

    Owned by one thread; keeps one block of computed batches.

    Args:
        order: the epoch.
        global_batch: B, samples over all ranks.
        world: R, ranks; must divide B. Any R gives the same global batches.
        rank: this rank.
        drop_last: leave an incomplete last batch out instead of filling it with marked repeats.
        start: the position of batch 0; not 0 only after a resume with another global batch.

    Raises:
        ConfigError: R does not divide B; no such rank; start outside 0..n.
    """

    def __init__(
        self,
        order: Order,
        global_batch: int,
        world: int,
        rank: int,
        drop_last: bool = False,
        *,
        start: int = 0,
    ) -> None:
        self.order = order
        self.rank_split = RankSplit(order.lanes, global_batch, world, rank)
        self.drop_last = drop_last
        if not 0 <= start <= order.samples:
            raise ConfigError(f"start={start} is not in 0..{order.samples}", field="start")
        self.start = start
        self.batches = batch_count(order.samples - start, global_batch, drop_last)
        self._block = range(0)
        self._positions: Integers = np.empty((0, self.rank_split.per_rank), dtype=np.int64)
        self._ordinals: Integers = self._positions

    def __repr__(self) -> str:
        rank_split = self.rank_split
        return (
            f"RankPlan(epoch={self.order.epoch}, rank={rank_split.rank}/{rank_split.world}, "
            f"global_batch={rank_split.global_batch}, batches={self.batches}, start={self.start}, "
            f"drop_last={self.drop_last})"
        )

    @property
    def samples(self) -> int:
        """Samples this rank yields in the epoch, repeats included."""
        return self.batches * self.rank_split.per_rank

    def position(self, batch: int) -> int:
        """Position delivered when all batches before `batch` are: what a `State` keeps."""
        return self.start + batch * self.rank_split.global_batch

    def batch(self, batch: int) -> BatchIndex:
        """This rank's samples of a batch, 0 <= batch < batches.

        Raises:
            IndexError: no such batch.
        """
        if not 0 <= batch < self.batches:
            raise IndexError(f"batch {batch} is not in 0..{self.batches - 1}")
        if batch not in self._block:
            self._compute(batch)
        row = batch - self._block.start
        positions = self._positions[row]
        return BatchIndex(positions, self._ordinals[row], positions >= self.order.samples)

    def schedule(self, start_batch: int = 0, stop_batch: int | None = None) -> Schedule:
        """The chunks of this rank's batches start_batch..stop_batch-1, clipped to these batches.

        Costs as much as the chunks of these batches, wherever they are.

        Raises:
            IndexError: not 0 <= start_batch <= stop_batch <= batches.
        """
        stop = self.batches if stop_batch is None else stop_batch
        if not 0 <= start_batch <= stop <= self.batches:
            raise IndexError(f"batches {start_batch}..{stop} are not in 0..{self.batches}")
        if start_batch == stop:
            return merge([])
        run = Batches(self.start, self.rank_split.global_batch, start_batch, stop)
        return merge([*self.order.needs(self.rank_split, run), *self._padding_needs(stop)])

    def _padding_needs(self, stop: int) -> list[Needs]:
        """Repeats may be in a chunk of a lane that only another rank draws from: looked up one by one."""
        if self.position(stop) <= self.order.samples:
            return []
        last = self.batch(stop - 1)
        chunks, passes = self.order.chunks(unique(last.ordinals[last.repeated]))
        batch = np.full(len(chunks), stop - 1, dtype=np.int64)
        return [Needs(chunks.astype(np.uint32), batch, batch, passes)]

    def _compute(self, batch: int) -> None:
        rank_split = self.rank_split
        count = min(self.order.block_samples // rank_split.per_rank, _BLOCK_CELLS // rank_split.lanes)
        first = batch - batch % max(1, count)
        self._block = range(first, min(first + max(1, count), self.batches))
        starts = np.arange(self._block.start, self._block.stop, dtype=np.int64)
        positions = rank_split.positions(self.start + starts * rank_split.global_batch)
        ordinals = self.order.ordinals(positions.ravel()).reshape(positions.shape)
        positions.flags.writeable = ordinals.flags.writeable = False
        self._positions, self._ordinals = positions, ordinals


def batch_count(samples: int, global_batch: int, drop_last: bool) -> int:
    """Number of batches of a size: whole ones only, or the last one filled up."""
    return samples // global_batch if drop_last else -(-samples // global_batch)


def worker_batches(start_batch: int, stop_batch: int, worker: int, workers: int) -> range:
    """The batches that worker `worker` of `workers` of a plain DataLoader yields, whole.

    torch asks its workers in turn, beginning with worker 0, so this restores the order of the
    batches for any number of workers. Where the dataset was not told the batch size, the plan has
    global_batch = world: one sample of this rank per "batch", and torch makes the batches.

    Args:
        start_batch: first batch after a resume, else 0.
        stop_batch: one past the last.
        worker: torch's worker id; 0 without workers.
        workers: number of workers; 1 without workers.

    Raises:
        ConfigError: no such worker.
    """
    if not 0 <= worker < workers:
        raise ConfigError(f"worker={worker} is not in 0..{workers - 1}", field="num_workers")
    return range(start_batch + worker, stop_batch, workers)
