"""Makes the samples of a growing dataset, in workers and in the rank. Imports no torch.

Samples are numbered by codes, ordinal + n t, where t is another number for each use of a sample: each use gets random
numbers of its own. Which samples a batch has depends on admissions, which only the rank knows: a worker is told the
rounds of a batch with the batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.client.chunk_reader import ChunkReader
from streamer.loader.batch.placement import Rows
from streamer.loader.samples.maker import CachedBytes, SampleLocation, SampleMaker
from streamer.loader.samples.opened import OpenedDataset
from streamer.loader.samples.recipe import DatasetReader, SampleRecipe
from streamer.loader.samples.row_reader import RowReader
from streamer.order.growing import Cohorts, GrowingOrder, GrowingPlan, Round, Rounds
from streamer.order.rank_split import RankSplit
from streamer.order.spec import OrderSpec

Integers = npt.NDArray[np.int64]
# Enough for the batches of a worker, and for one that it repeats.
_ROUNDS_KEPT = 4


class GrowingRecipe(msgspec.Struct, frozen=True):
    """All that a worker process needs to make the samples of a growing dataset.

    Attributes:
        base: of the samples; its `entry` is an epoch and a position of the stream.
        epoch_samples: E, of an epoch over all ranks.
    """

    base: SampleRecipe
    epoch_samples: int

    def open(self) -> GrowingReader:
        """Opens the manifest in this process."""
        return GrowingReader(self)


class KnownRounds:
    """The rounds that a worker was told last.

    Args:
        cohorts: of the dataset.
    """

    def __init__(self, cohorts: Cohorts) -> None:
        self.cohorts = cohorts
        self._rounds: list[Round] = []

    def set_rounds(self, rounds: Sequence[Round]) -> None:
        """The rounds of the next batch."""
        # Not of the same number with other cohorts: after a state was loaded.
        numbers = {of.number for of in rounds}
        kept = [of for of in self._rounds if of.number not in numbers]
        # A batch that is larger than the data is in any number of rounds.
        self._rounds = [*kept, *rounds][-max(_ROUNDS_KEPT, len(rounds)) :]

    def at(self, position: int) -> Round:
        """The round of a position of the stream; an IndexError if it was not told."""
        for of in reversed(self._rounds):
            if of.start <= position < of.stop:
                return of
        raise IndexError(f"position {position} is in none of {self._rounds}")


class SampleNumbers:
    """What the codes of a dataset stand for.

    Args:
        spec: of the order.
        data: the selected samples.

    Attributes:
        cohorts: of the selected samples.
    """

    def __init__(self, spec: OrderSpec, data: OpenedDataset) -> None:
        self._data = data
        self.cohorts = Cohorts(spec, data.chunk_samples)

    def turns(self, codes: Integers) -> Integers:
        """A number for the use of each code."""
        turns: Integers = codes // self.cohorts.samples
        return turns

    def to_manifest(self, codes: Integers) -> Integers:
        """Codes -> ordinals in the manifest."""
        return self._data.to_manifest(codes % self.cohorts.samples)


class GrowingPlans:
    """The plans of one rank.

    Args:
        recipe: of the samples.
        rounds: the known ones.

    Attributes:
        split: the rank's place in every global batch.
        lanes: that it draws from.
        order: in positions of the stream.
    """

    def __init__(self, recipe: GrowingRecipe, rounds: Rounds) -> None:
        self._base, self._epoch_samples = recipe.base, recipe.epoch_samples
        lanes, batch = self._base.spec.lanes, self._base.global_batch
        self.split = RankSplit(lanes, batch, self._base.world_size, self._base.rank)
        # Else the batches of each epoch begin in other lanes; only after a resume with another batch size.
        level = self._epoch_samples % batch == 0 or batch % lanes == 0
        self.lanes = self.split.rank_lanes(self._base.entry[1]) if level else np.arange(lanes, dtype=np.int64)
        self.order = GrowingOrder(rounds, self.lanes, self._epoch_samples, 0)
        self._last: GrowingPlan | None = None

    def plan(self, epoch: int) -> GrowingPlan:
        """The rank's plan of an epoch."""
        # Read once: the trainer's thread may ask for the epoch before meanwhile.
        if (plan := self._last) is None or plan.order.epoch != epoch:
            base, order = self._base, self.order.at(epoch)
            start = base.entry[1] if epoch == base.entry[0] else epoch * self._epoch_samples
            batch, world = base.global_batch, base.world_size
            self._last = plan = GrowingPlan(order, batch, world, base.rank, base.last_batch, start=start)
        return plan


class UseLocation(SampleLocation, frozen=True):
    """The location of a sample for one of its uses.

    Attributes:
        ordinal: the code.
        turn: the number of the use.
        own: the location, with the ordinal in the manifest.
    """

    turn: int
    own: SampleLocation


class GrowingMaker:
    """Turns codes into samples. Used by one thread at a time.

    Args:
        maker: of the samples.
        numbers: of the samples.
    """

    def __init__(self, maker: SampleMaker, numbers: SampleNumbers) -> None:
        self._maker = maker
        self._numbers = numbers

    def places(self, codes: Integers) -> list[UseLocation]:
        """Locates samples by their codes."""
        places = self._maker.places(self._numbers.to_manifest(codes))
        columns = (codes.tolist(), self._numbers.turns(codes).tolist(), places)
        return [
            UseLocation(own.sample, own.start, own.stop, code, own.chunk, turn, own)
            for code, turn, own in zip(*columns, strict=True)
        ]

    def make(self, epoch: int, place: SampleLocation) -> object:
        """Reads, decodes and transforms one sample; its random numbers depend on the use, not on the epoch."""
        assert isinstance(place, UseLocation)
        return self._maker.make(place.turn, place.own)


class GrowingReader(DatasetReader):
    """Makes the samples of one rank's batches, in a worker process.

    Args:
        recipe: of the samples.

    Raises:
        ManifestError: there is no manifest at the recipe's path.
    """

    def __init__(self, recipe: GrowingRecipe) -> None:
        base = self._base = recipe.base
        data = OpenedDataset.open(base.manifest_path, base.selection)
        content = CachedBytes(data.manifest, ChunkReader(base.roots))
        numbers = SampleNumbers(base.spec, data)
        self._rounds = KnownRounds(numbers.cohorts)
        self._plans = GrowingPlans(recipe, self._rounds)
        super().__init__(SampleMaker(data.manifest, content, base.rules, data.number))
        self._codes = GrowingMaker(self._maker, numbers)
        self._reader = RowReader(self._maker, content)
        self._places: list[UseLocation] = []

    def __repr__(self) -> str:
        return f"GrowingReader(rank {self._base.rank} of {self._base.world_size}, {self._base.manifest_path.name})"

    def set_rounds(self, rounds: Sequence[tuple[int, ...]]) -> None:
        """The rounds of the next batch, as `Round` has them."""
        self._rounds.set_rounds([Round(*numbers) for numbers in rounds])

    def batch(self, epoch: int, batch: int) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """This rank's samples of one batch: codes, and which are repeats."""
        index = self._plans.plan(epoch).batch(batch)
        return index.ordinals, index.repeated

    def load(self, epoch: int, ordinal: int) -> object:
        """One sample from its code."""
        return self._codes.make(epoch, self._locate(ordinal))

    def begin(self, ordinals: Integers, rows: Rows | None, at: Callable[[int], None]) -> None:
        """Locates the samples of a batch; see `SampleReader.begin`.

        Args:
            ordinals: int64 (samples,), codes.
            rows: the rows to which arrays may be written; None: no rows.
            at: called with the index of the first sample of each chunk that is read.

        Raises:
            ChunkUnreadableError: the bytes of a sample are missing or wrong.
        """
        started = time.perf_counter_ns()
        self._places = self._codes.places(ordinals)
        self._reader.begin({index: place.own for index, place in enumerate(self._places)}, rows, at)
        self._maker.spent(0, started)

    def load_at(self, epoch: int, ordinal: int, index: int) -> object:
        """One sample for an index of the current batch; see `SampleMaker.make`."""
        place = self._places[index]
        if place.ordinal != ordinal:
            place = self._locate(ordinal)
        return self._reader.load_at(place.turn, place.own, index)

    def _locate(self, code: int) -> UseLocation:
        return self._codes.places(np.array([code], np.int64))[0]
