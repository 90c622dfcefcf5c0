"""Makes a rank's samples in a worker process: the recipe that is sent, and the reader that it opens there.

Imports no torch: without it a worker starts in a tenth of the time, with a fifth of the memory.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.client.chunk_reader import ChunkReader
from streamer.loader.batch.placement import Rows
from streamer.loader.contracts import BatchSource
from streamer.loader.samples.maker import CachedBytes, SampleLocation, SampleMaker, SampleRules
from streamer.loader.samples.opened import OpenedDataset
from streamer.loader.samples.row_reader import RowReader
from streamer.order.epoch import EpochOrder
from streamer.order.lane_split import LaneRun
from streamer.order.plan import LastBatch, RankPlan
from streamer.order.spec import OrderSpec

# The running epoch and the next one, which the look-ahead plans.
_PLANS_KEPT = 2


class SampleRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker process needs to make samples; small, and without torch unless the transform uses it.

    Attributes:
        manifest_path: the manifest's folder.
        spec: the order.
        rank, world_size: of this rank.
        global_batch: samples of a batch over all ranks.
        last_batch: what becomes of an incomplete last batch.
        roots: cache folders.
        rules: of making samples.
        selection: digest of the selection, and the folder of its file; None: all samples.
        entry: epoch and position at which a resumed run began: the batches of that epoch are numbered from there.
        runs: the rank's samples of each lane of a batch, where each rank reads what its node holds.
    """

    manifest_path: Path
    spec: OrderSpec
    rank: int
    world_size: int
    global_batch: int
    last_batch: LastBatch
    roots: tuple[Path, ...]
    rules: SampleRules
    selection: tuple[str, Path] | None = None
    entry: tuple[int, int] = (0, 0)
    runs: tuple[LaneRun, ...] = ()

    def open(self) -> SampleReader:
        """Opens the manifest in this process."""
        return SampleReader(self)


class Plans:
    """Caches the plans of the last epochs; building one costs tens of milliseconds for large manifests."""

    def __init__(self, recipe: SampleRecipe, data: OpenedDataset) -> None:
        self._recipe = recipe
        words = data.manifest.chunk_words if recipe.spec.cut == "common" else None
        self._order = EpochOrder(recipe.spec, data.chunk_samples, recipe.entry[0], chunk_words=words)
        self._kept: OrderedDict[int, RankPlan] = OrderedDict()

    @property
    def samples(self) -> int:
        """Number of selected samples."""
        return self._order.samples

    def chunk_lanes(self) -> npt.NDArray[np.int64]:
        """(M,) the lane of each chunk; -1: none of its samples is selected. Not for a redrawn cut."""
        return self._order.cut.chunk_lanes(len(self._order.chunk_samples))

    def plan(self, epoch: int) -> RankPlan:
        """The rank's plan of an epoch."""
        if epoch not in self._kept:
            self._kept[epoch] = self._build(epoch)
            while len(self._kept) > _PLANS_KEPT:
                self._kept.popitem(last=False)
        return self._kept[epoch]

    def _build(self, epoch: int) -> RankPlan:
        recipe = self._recipe
        start = recipe.entry[1] if epoch == recipe.entry[0] else 0
        # From the order of the last epoch, which has computed the parts that are equal in all epochs.
        self._order = self._order.at(epoch)
        geometry = recipe.global_batch, recipe.world_size, recipe.rank, recipe.last_batch
        return RankPlan(self._order, *geometry, start=start, runs=recipe.runs)


class DatasetReader(BatchSource):
    """What readers of one dataset have in common.

    Args:
        maker: of the samples.
    """

    def __init__(self, maker: SampleMaker) -> None:
        self._maker = maker

    @property
    def draws(self) -> bool:
        """Whether user code runs for a sample."""
        return self._maker.draws

    @property
    def user_code(self) -> tuple[object, ...]:
        """Transform and decoders."""
        return self._maker.user_code

    @property
    def takes_rows(self) -> bool:
        """Whether decoders or the transform can write to rows."""
        return self._maker.takes_rows

    def stage_nanoseconds(self) -> tuple[int, int, int]:
        """Read, decode, transform: nanoseconds since it was opened."""
        return self._maker.stage_nanoseconds()

    def close(self) -> None:
        """Does nothing: no descriptor and no mapping is kept between samples."""


class SampleReader(DatasetReader):
    """Makes the samples of one rank's batches, in a worker process.

    Args:
        recipe: of the samples.

    Raises:
        ManifestError: there is no manifest at the recipe's path.
    """

    def __init__(self, recipe: SampleRecipe) -> None:
        self._recipe = recipe
        self._data = OpenedDataset.open(recipe.manifest_path, recipe.selection)
        content = CachedBytes(self._data.manifest, ChunkReader(recipe.roots))
        self._plans = Plans(recipe, self._data)
        super().__init__(SampleMaker(self._data.manifest, content, recipe.rules, self._data.number))
        self._reader = RowReader(self._maker, content)
        self._places: list[SampleLocation] = []

    def __repr__(self) -> str:
        return f"SampleReader(rank {self._recipe.rank} of {self._recipe.world_size}, {self._recipe.manifest_path.name})"

    def batch(self, epoch: int, batch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """This rank's samples of one batch: manifest ordinals, and which are repeats."""
        index = self._plans.plan(epoch).batch(batch)
        return self._data.to_manifest(index.ordinals), index.repeated

    def load(self, epoch: int, ordinal: int) -> object:
        """One sample from its manifest ordinal; see `SampleMaker.make`."""
        return self._maker.make(epoch, self._maker.places(np.array([ordinal], np.int64))[0])

    def begin(self, ordinals: npt.NDArray[np.int64], rows: Rows | None, at: Callable[[int], None]) -> None:
        """Locates the samples of a batch, and reads raw arrays and raw bytes directly to the slot.

        Args:
            ordinals: int64 (samples,).
            rows: the rows to which arrays may be written; None: no rows.
            at: called with the index of the first sample of each chunk that is read.

        Raises:
            ChunkUnreadableError: the bytes of a sample are missing or wrong.
        """
        started = time.perf_counter_ns()
        self._places = self._maker.places(ordinals)
        self._reader.begin(dict(enumerate(self._places)), rows, at)
        self._maker.spent(0, started)

    def load_at(self, epoch: int, ordinal: int, index: int) -> object:
        """One sample for an index of the current batch; see `SampleMaker.make`."""
        place = self._places[index]
        if place.ordinal != ordinal:
            place = self._maker.places(np.array([ordinal], np.int64))[0]
        return self._reader.load_at(epoch, place, index)
