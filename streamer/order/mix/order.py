"""The order of a mix: from positions of an epoch to samples of its members, at random, without a table."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streamer.order.hashing import Integers
from streamer.order.mix.codes import SampleCodes
from streamer.order.mix.spec import MixSpec
from streamer.order.protocol import Batches, Needs
from streamer.order.rank_split import RankSplit


class MemberChunks(msgspec.Struct, frozen=True, eq=False):
    """The chunks of one member.

    Attributes:
        samples: (M,) samples per chunk, of the member's selection.
        first: (M+1,) their prefix sum.
        base: number of its chunk 0 among the chunks of the whole mix; members over one manifest may share it.
    """

    samples: Integers
    first: Integers
    base: int


class MixOrder:
    """The order of one epoch of a mix: an `Order` whose ordinals are sample codes.

    Owned by one thread: tables are filled on first use.

    Args:
        spec: what fixes the order.
        chunks: of each member, in the order of the spec.
        epoch: from 0.

    Attributes:
        codes: encodes and decodes the samples.

    Raises:
        ManifestError: a member's chunks do not have the samples that the spec says.
        ConfigError: epoch < origin_epoch of the spec, or an epoch too long for 63-bit arithmetic.
    """

    def __init__(self, spec: MixSpec, chunks: Sequence[MemberChunks], epoch: int) -> None:
        self.spec = spec
        self.epoch = epoch
        self.codes = SampleCodes([member.samples for member in spec.members])

    def at(self, epoch: int) -> MixOrder:
        """The order of another epoch, sharing what does not change from epoch to epoch."""

    @property
    def samples(self) -> int:
        """Positions of the epoch, without padding."""

    @property
    def lanes(self) -> int:
        """L."""
        return self.spec.lanes

    @property
    def block_samples(self) -> int:
        """Positions that are best computed at once: a member's tables cost the same for any small number."""

    def ordinals(self, positions: Integers) -> Integers:
        """(N,) sample codes at some positions; those from `samples` on repeat the end of their lane."""

    def needs(self, split: RankSplit, run: Batches) -> list[Needs]:
        """The chunks that a rank uses in a run of batches, by member, lane and pass."""

    def chunks(self, ordinals: Integers) -> tuple[Integers, Integers]:
        """Chunk (counted through the mix) and pass of some sample codes."""

    def drawn(self, position: int) -> Integers:
        """(M,) samples of each member among the first `position` positions of the epoch, exact."""
