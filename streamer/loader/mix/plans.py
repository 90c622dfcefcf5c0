"""The members of a mix as one process has opened them, and the plans of one rank over all of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.loader.samples.maker import SampleRules
from streamer.loader.samples.recipe import open_selection
from streamer.manifest.reader_lock import open_held
from streamer.manifest.table import Manifest
from streamer.order.mix import MemberChunks, MixOrder, MixSpec
from streamer.order.mix.explain import MemberSize
from streamer.order.plan import LastBatch, RankPlan

if TYPE_CHECKING:
    from streamer.manifest.selection import Selection

Integers = npt.NDArray[np.int64]

# The running epoch and the next one, which the look-ahead plans.
_PLANS_KEPT = 2
# Samples that are located at once: 50 MB.
_BLOCK = 1 << 20


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

    def open(self) -> Member:
        """Opens the manifest in this process."""
        manifest = open_held(self.manifest_path)
        return Member(manifest, None if self.selection is None else open_selection(manifest, *self.selection))


class Member:
    """One dataset of a mix, opened in this process.

    Args:
        manifest: of the dataset.
        selection: the selected samples; None: all.
    """

    def __init__(self, manifest: Manifest, selection: Selection | None) -> None:
        self.manifest = manifest
        self.selection = selection

    def __repr__(self) -> str:
        return f"Member({self.manifest!r}, {self.selection!r})"

    @property
    def selection_file(self) -> tuple[str, Path] | None:
        """Digest of the selection, and the folder of its file; None: all samples."""
        return None if self.selection is None else (self.selection.digest, self.selection.path.parent)

    @property
    def samples(self) -> int:
        """Number of selected samples."""
        return self.manifest.samples if self.selection is None else self.selection.samples

    @property
    def size(self) -> MemberSize:
        """Chunks with selected samples, and the bytes of the selected samples, by their share."""
        share = self.samples / max(1, self.manifest.samples)
        chunks = int(np.count_nonzero(self.chunk_samples))
        return MemberSize(chunks, int(self.manifest.chunk_local_bytes.sum() * share))

    @cached_property
    def bytes(self) -> int:
        """Of the selected samples, exactly; takes 0.1 us for each."""
        manifest, samples = self.manifest, self.samples
        if self.selection is None:
            return int(manifest.chunk_local_bytes.sum())
        blocks = (np.arange(first, min(first + _BLOCK, samples)) for first in range(0, samples, _BLOCK))
        located = (manifest.locate(self.to_manifest(block)) for block in blocks)
        return sum(int((stop - start).sum()) for _, start, stop in located)

    @property
    def digest(self) -> str:
        """Identity of the selected samples."""
        return self.manifest.digest if self.selection is None else self.selection.digest

    @property
    def chunk_samples(self) -> Integers:
        """(M,) selected samples per chunk."""
        return self.manifest.chunk_samples if self.selection is None else self.selection.chunk_samples

    @property
    def chunk_first(self) -> Integers:
        """(M+1,) selected samples before each chunk."""
        return self.manifest.chunk_first if self.selection is None else _prefix(self.selection.chunk_samples)

    def number(self, ordinal: int) -> int:
        """Ordinal in the manifest -> number in the selection, which `dataset[i]` takes."""
        return ordinal if self.selection is None else self.selection.number(ordinal)

    def to_manifest(self, ordinals: Integers) -> Integers:
        """Ordinals in the selection -> ordinals in the manifest."""
        return ordinals if self.selection is None else self.selection.to_base(ordinals)


class Members:
    """The members in their order. The chunks of each are numbered after those of the members before it.

    Attributes:
        each: the members.
    """

    def __init__(self, members: Sequence[Member]) -> None:
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
        return [member.size for member in self.each]

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


def _prefix(sizes: Integers) -> Integers:
    first = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=first[1:])
    return first
