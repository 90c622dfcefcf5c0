"""The inputs of a mix's order, resolved to numbers: equal specs give equal orders on any machines, for every epoch."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Literal, TypeAlias

import msgspec

from streamer.order.mix.quotas import Stage
from streamer.order.spec import OrderSpec

Batching: TypeAlias = Literal["stratified", "random", "homogeneous"]

# Raised whenever the same parts would give another order; part of every order_id.
MIX_FORMAT = 1
MOST_MEMBERS = 4096


class MixMember(msgspec.Struct, frozen=True):
    """One dataset of a mix: an endless stream of passes over its samples, of which each epoch takes the next part.

    Stream position Q lies in pass Q div n, at place Q mod n of it, in lane (Q + turn) mod L.

    Attributes:
        name: as the user calls it.
        order: the order of a pass, with the pass number as epoch; its lanes are those of the mix.
        samples: n, of its selection.
        passes: whole passes in each epoch; 0: it gets its share by the stages' weights.
        origin: stream position at the mix's `origin_epoch`; a multiple of n where `passes` is not 0.
        turn: places the stream in the lanes; not used where `passes` is not 0, see `MixSpec.turns`.
    """

    name: str
    order: OrderSpec
    samples: int
    passes: int = 0
    origin: int = 0
    turn: int = 0

    def parts(self) -> dict[str, str | int]:
        """The parts by name, plain values."""
        order = self.order.parts()
        del order["lanes"]
        return {
            "name": self.name,
            **order,
            "samples": self.samples,
            "passes": self.passes,
            "origin": self.origin,
            "turn": self.turn,
        }


class MixSpec(msgspec.Struct, frozen=True, dict=True):
    """The parts of a mix's order. `MixRequest.spec` makes one from what the user says.

    Attributes:
        members: at least one.
        stages: shares of the members without `passes`; at least one, the first from `origin_epoch` on.
        seed: of the mixing; members have their own.
        batching: "stratified": every batch has every member's share, rounded; "random": every `window` batches have;
            "homogeneous": every batch is of one member.
        lanes: L, of the mix and of each member.
        slots: W, places of a lane in a batch; W L is the batch that the mix is stratified for.
        window: T, batches that are mixed together; a power of two.
        origin_epoch: the epoch at which the members are at their `origin`; not 0 after `adopt`.

    Raises:
        ConfigError: a part outside of these rules.
    """

    members: tuple[MixMember, ...]
    stages: tuple[Stage, ...]
    seed: int
    batching: Batching
    lanes: int
    slots: int
    window: int
    origin_epoch: int = 0

    # ------------------------------------------------------------- what an epoch takes

    @property
    def unit(self) -> int:
        """Samples that a member without `passes` gets a whole number of: one per lane, or one batch if homogeneous."""
        return self.lanes * (self.slots if self.batching == "homogeneous" else 1)

    def drawn(self, epoch: int) -> tuple[int, ...]:
        """Stream position of each member at the start of an epoch: samples taken from it in all epochs before."""

    def quotas(self, epoch: int) -> tuple[int, ...]:
        """Samples of each member in an epoch."""
        return tuple(b - a for a, b in zip(self.drawn(epoch), self.drawn(epoch + 1), strict=True))

    def samples(self, epoch: int) -> int:
        """Samples of an epoch over all members and ranks, without padding."""
        return sum(self.quotas(epoch))

    def first_passes(self, epoch: int) -> tuple[int, ...]:
        """The first pass of each member that an epoch touches; the passes in sample codes count from there."""
        return tuple(q // m.samples for q, m in zip(self.drawn(epoch), self.members, strict=True))

    def passes(self, epoch: int) -> tuple[float, ...]:
        """Passes over each member in an epoch: what a cached byte of it saves."""
        return tuple(q / m.samples for q, m in zip(self.quotas(epoch), self.members, strict=True))

    def turns(self, epoch: int) -> tuple[int, ...]:
        """Of each member: stream position Q lies in lane (Q + turn) mod L."""

    # ------------------------------------------------------------- identity

    @cached_property
    def order_id(self) -> str:
        """32 hex characters: the digest of all parts and of the format of the order."""
        text = json.dumps({"mix": MIX_FORMAT, **self.parts()}, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def parts(self) -> dict[str, object]:
        """All parts as plain values: what a state keeps."""

    def facts(self) -> dict[str, str | int]:
        """The same, flat, with readable names: what ranks compare."""
