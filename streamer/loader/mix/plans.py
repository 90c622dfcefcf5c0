"""The members of a mix as one process has opened them, and the plans of one rank over all of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.loader.samples.maker import SampleRules
from streamer.loader.samples.opened import OpenedDataset
from streamer.order.mix import MemberChunks, MixOrder, MixSpec
from streamer.order.mix.explain import MemberSize
from streamer.order.plan import LastBatch, RankPlan

Integers = npt.NDArray[np.int64]

# The running epoch and the next one, which the look-ahead plans.
_PLANS_KEPT = 2


class MemberRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker process needs to make the samples of one member.

    Attributes:
        manifest_path: the manifest's folder.
        selection: digest of the selection, and the folder of its file; None: all samples.
        rules: of making samples.
    """

    manifest_path: Path
    selection: tuple[str, Path] | None
    rules: SampleRules

    def open(self) -> OpenedDataset:
        """Opens the manifest in this process."""
        return OpenedDataset.open(self.manifest_path, self.selection)


class Members:
    """The members in their order. The chunks of each are numbered after those of the members before it.

    Attributes:
        each: the members.
    """

    def __init__(self, members: Sequence[OpenedDataset]) -> None:
        self.each = list(members)

    def __repr__(self) -> str:
        return f"Members({self.each})"

    @cached_property
    def first_chunks(self) -> list[int]:
        """(members + 1,) number of the first chunk of each."""
        counts = [member.manifest.chunks for member in self.each]
        return [0, *np.cumsum(counts).tolist()]

    @cached_property
    def chunk_bytes(self) -> Integers:
        """Bytes of each chunk, over all members."""
        return np.concatenate([member.manifest.chunk_local_bytes for member in self.each])

    @property
    def sizes(self) -> list[MemberSize]:
        """Chunks and bytes of each member, as far as they are selected."""
        return [MemberSize(int(np.count_nonzero(one.chunk_samples)), one.stored_bytes) for one in self.each]

    def order(self, spec: MixSpec, epoch: int) -> MixOrder:
        """The order of an epoch."""
        chunks = [
            MemberChunks(member.chunk_samples, member.chunk_first, base)
            for member, base in zip(self.each, self.first_chunks, strict=False)
        ]
        return MixOrder(spec, chunks, epoch)


class MixGeometry(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a mix's recipe that plans need.

    Attributes:
        spec: the order.
        rank, world_size: of this rank.
        global_batch: samples of a batch over all ranks.
        last_batch: what becomes of an incomplete last batch.
        entry: epoch and position at which a resumed run began: the batches of that epoch are numbered from there.
    """

    spec: MixSpec
    rank: int
    world_size: int
    global_batch: int
    last_batch: LastBatch
    entry: tuple[int, int] = (0, 0)


class MixPlans:
    """Caches the plans of the last epochs.

    Args:
        geometry: of the batches.
        members: opened.
    """

    def __init__(self, geometry: MixGeometry, members: Members) -> None:
        self._geometry = geometry
        self._order = members.order(geometry.spec, max(geometry.entry[0], geometry.spec.origin_epoch))
        self._kept: OrderedDict[int, tuple[MixOrder, RankPlan]] = OrderedDict()

    def order(self, epoch: int) -> MixOrder:
        """The order of an epoch."""
        return self._of(epoch)[0]

    def plan(self, epoch: int) -> RankPlan:
        """The rank's plan of an epoch."""
        return self._of(epoch)[1]

    def _of(self, epoch: int) -> tuple[MixOrder, RankPlan]:
        if epoch not in self._kept:
            self._kept[epoch] = self._build(epoch)
            while len(self._kept) > _PLANS_KEPT:
                self._kept.popitem(last=False)
        return self._kept[epoch]

    def _build(self, epoch: int) -> tuple[MixOrder, RankPlan]:
        # From the order of the last epoch, which has computed the parts that are equal in all epochs.
        self._order = self._order.at(epoch)
        geometry = self._geometry
        start = geometry.entry[1] if epoch == geometry.entry[0] else 0
        batch, world, rank = geometry.global_batch, geometry.world_size, geometry.rank
        return self._order, RankPlan(self._order, batch, world, rank, geometry.last_batch, start=start)
