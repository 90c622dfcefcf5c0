"""Defines what fixes the order of a mix, as numbers: equal specs give equal orders on any machines, for every epoch.

`order/mix/request.py` makes a `MixSpec` of what the user says, the other modules of `order/mix/` order by it, a state
keeps it (`order/state.py`), and `order/adopt.py` and `loader/kinds/mix.py` read it. L is the number of lanes.

The amount of each member is exact over any number of epochs, and a whole number of units in each (`MixSpec.unit`). A
binary tree halves the list of members until one is left. Each node splits its units between its two halves by one
integer division whose remainder is kept, so that what an epoch rounds away comes in a later one. Every count only
grows, whatever the weights are; a difference of rounded sums would not have that property.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar, Literal, TypeAlias, get_args

import msgspec

from streamer.errors import ConfigError
from streamer.order.level import BalanceSpec, level_of
from streamer.order.spec import OrderSpec

# Bits of a remainder, which is kept as a fraction of its node's weight.
_BITS = 62


class Stage(msgspec.Struct, frozen=True):
    """The shares of the members from one epoch on.

    Attributes:
        epoch: the first epoch of the stage.
        weights: weight of each member, an integer, or 0 if the member pauses, or has whole passes instead.
        units: number of units of `MixSpec.unit` samples in each epoch, of all members with weights together, 0 if there
            are none.
    """

    epoch: int
    weights: tuple[int, ...]
    units: int


def count_drawn_units(stages: Sequence[Stage], epoch: int) -> list[int]:
    """Returns the units of each member in all epochs before `epoch`, from that of the first stage on.

    Takes time for each stage that has begun, not for each epoch.
    """
    members = len(stages[0].weights)
    drawn = [0] * members
    remainders = [1 << (_BITS - 1)] * members
    stops = [*(stage.epoch for stage in stages[1:]), epoch]
    for stage, stop in zip(stages, stops, strict=True):
        epochs = min(stop, epoch) - stage.epoch
        if epochs > 0:
            before = [0, *accumulate(stage.weights)]
            _split(members=(0, members), units=epochs * stage.units, before=before, drawn=drawn, remainders=remainders)
    return drawn


def _split(members: tuple[int, int], units: int, before: list[int], drawn: list[int], remainders: list[int]) -> None:
    """Splits units between the members of a run; adds to `drawn`, and updates `remainders`.

    Args:
        members: half-open numbers of the members.
        units: units of all of them.
        before: sum of the weights before each member.
        drawn: units of each member.
        remainders: remainder of each node, by its middle member.
    """
    low, high = members
    weight = before[high] - before[low]
    if weight == 0:
        return
    if high - low == 1:
        drawn[low] += units
        return
    middle = (low + high) // 2
    kept = remainders[middle] * weight >> _BITS
    left, rest = divmod(units * (before[middle] - before[low]) + kept, weight)
    remainders[middle] = (rest << _BITS) // weight
    _split(members=(low, middle), units=left, before=before, drawn=drawn, remainders=remainders)
    _split(members=(middle, high), units=units - left, before=before, drawn=drawn, remainders=remainders)


Batching: TypeAlias = Literal["stratified", "random", "homogeneous"]
Unit: TypeAlias = Literal["samples", "bytes"]

# Raised whenever the same parts would give another order; part of every `order_id`.
MIX_FORMAT = 1
MOST_MEMBERS = 4096


@dataclass(frozen=True)
class Homogeneous:
    """Batches whose samples are of one member, or that consist of groups of which each is of one member.

        MixedDataset(members, batching=Homogeneous(group=32))

    `batching="homogeneous"` is `batching=Homogeneous()`.

    Args:
        group: samples of a batch that are of one member, such as the batch of one rank; None means the whole batch. It
            divides the global batch, and the number of groups divides the lanes.

    Raises:
        ConfigError: an invalid value.
    """

    group: int | None = None

    def __post_init__(self) -> None:
        if self.group is None:
            return
        try:
            group = operator.index(self.group)
        except TypeError:
            group = 0
        if isinstance(self.group, bool) or group < 1:
            raise ConfigError(f"group={self.group!r} is not a whole number of at least 1", field="group")
        object.__setattr__(self, "group", group)


class MixMember(msgspec.Struct, frozen=True):
    """One dataset of a mix: an endless stream of passes over its samples, of which each epoch takes the next part.

    Stream position Q is in pass Q div n, at position Q mod n of it, in lane (Q + turn) mod L.

    Attributes:
        name: name that the user gives it.
        order: order of a pass, with the number of the pass as epoch. Its lanes are those of the mix.
        samples: n, number of samples of its selection.
        passes: number of whole passes in each epoch, or 0 if the weights of the stages decide its share.
        origin: stream position at the start of the mix's `origin_epoch`, a multiple of n where `passes` is not 0.
        turn: says in which lane the stream is, see above; not used where `passes` is not 0, see `MixSpec.turns`.
    """

    name: str
    order: OrderSpec
    samples: int
    passes: int = 0
    origin: int = 0
    turn: int = 0

    def parts(self) -> dict[str, str | int]:
        """Returns the parts but the member's name, by name of the part, and without the lanes, which are the mix's."""
        order = self.order.parts()
        del order["lanes"]
        return {**order, "samples": self.samples, "passes": self.passes, "origin": self.origin, "turn": self.turn}


class MixSpec(msgspec.Struct, frozen=True, dict=True):
    """The parts of a mix's order. `MixRequest.spec` makes one from what the user says.

    Attributes:
        members: the members, at least one.
        stages: shares of the members without `passes`, at least one, the first from `origin_epoch` on.
        seed: seed of the mixing. Members have seeds of their own.
        batching: "stratified": every batch has every member's share, rounded. "random": every `window` batches have
            every member's share. "homogeneous": every batch, or each group of it, is of one member.
        lanes: L, number of lanes of the mix and of each member.
        slots: places of a lane in a batch. Times L it is the batch for which the mix is made.
        window: number of batches that are mixed together, a power of two.
        origin_epoch: the epoch at whose start the members are at their `origin`, not 0 after `adopt`.
        groups: number of groups of a homogeneous batch; each has L / groups consecutive lanes.
        balance: what fixes which samples share a batch, where their costs decide it, else `UNSET`.

    Raises:
        ConfigError: a part outside of its rule, or parts that do not fit each other.
    """

    # See `OrderSpec` for these words.
    kind: ClassVar[str] = "mix"
    words: ClassVar[str] = "a MixedDataset"
    advice: ClassVar[str] = ", or continue with the changed mix: load_state_dict(state, strict=False)"
    remedies: ClassVar[dict[str, str]] = {"": "load_state_dict(state, strict=False) lets its member go on from there"}
    each_once: ClassVar[bool] = False

    members: tuple[MixMember, ...]
    stages: tuple[Stage, ...]
    seed: int
    batching: Batching
    lanes: int
    slots: int
    window: int
    origin_epoch: int = 0
    groups: int = 1
    balance: BalanceSpec | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        _check_members(self)
        epochs = [stage.epoch for stage in self.stages]
        if not epochs or epochs[0] != self.origin_epoch or sorted(set(epochs)) != epochs:
            raise ConfigError(f"stages from epochs {epochs} do not ascend from {self.origin_epoch}", field="weights")
        for stage in self.stages:
            weights = stage.weights
            if len(weights) != len(self.members) or min(weights) < 0 or (stage.units > 0) != any(weights):
                raise ConfigError(
                    f"{stage} must have a weight for each of {len(self.members)} members, and units", field="weights"
                )
        if self.batching not in get_args(Batching):
            raise ConfigError(f"batching={self.batching!r} is not one of {get_args(Batching)}", field="batching")
        if min(self.lanes, self.slots, self.window) < 1 or self.window & (self.window - 1):
            raise ConfigError(
                f"lanes={self.lanes} and slots={self.slots} must be at least 1, window={self.window} a power of two",
                field="lanes",
            )
        if self.groups < 1 or (self.groups > 1 and self.batching != "homogeneous"):
            raise ConfigError(f"groups={self.groups} of a batch that is {self.batching}", field="group")
        if self.lanes % self.groups:
            raise ConfigError(
                f"the {self.groups} groups of a batch do not divide the lanes, {self.lanes}; pass "
                f"Order(lanes={self.groups}), or a multiple of it",
                field="group",
            )

    # ------------------------------------------------------------- what an epoch takes

    @property
    def unit(self) -> int:
        """Samples of a unit, of which members without `passes` get a whole number: one per lane, or a batch.

        It is a batch where batches are homogeneous. There, any member has a whole number of units of positions: what
        whole passes leave of the last one is filled up with repeats.
        """
        return self.lanes * (self.slots if self.batching == "homogeneous" else 1)

    def stream_starts(self, epoch: int) -> tuple[int, ...]:
        """Returns the stream position of each member at the start of an epoch.

        Raises:
            ConfigError: an epoch before `origin_epoch`; all methods that take an epoch raise it.
        """
        if epoch < self.origin_epoch:
            raise ConfigError(
                f"epoch={epoch} comes before epoch {self.origin_epoch}, in which this mix began", field="epoch"
            )
        epochs = epoch - self.origin_epoch
        units = count_drawn_units(self.stages, epoch)
        return tuple(
            member.origin + (epochs * member.passes * member.samples if member.passes else share * self.unit)
            for member, share in zip(self.members, units, strict=True)
        )

    def quotas(self, epoch: int) -> tuple[int, ...]:
        """Returns the number of samples of each member in an epoch.

        Raises:
            ConfigError: see `stream_starts`.
        """
        return tuple(
            stop - start for start, stop in zip(self.stream_starts(epoch), self.stream_starts(epoch + 1), strict=True)
        )

    def places(self, epoch: int) -> tuple[int, ...]:
        """Returns the positions of each member in an epoch: its quota, and repeats that fill up homogeneous batches.

        Raises:
            ConfigError: see `stream_starts`.
        """
        whole = self.unit if self.batching == "homogeneous" else 1
        return tuple(-(-quota // whole) * whole for quota in self.quotas(epoch))

    def samples(self, epoch: int) -> int:
        """Returns the number of positions of an epoch over all members and ranks, without padding at its end.

        Raises:
            ConfigError: see `stream_starts`.
        """
        return sum(self.places(epoch))

    @property
    def counted_only(self) -> str:
        """What an audit can only count, in words; see `OrderSpec.counted_only`."""
        return next(filter(None, (order.counted_only for order in self.orders)), "")

    def code_ranges(self, epoch: int, own: Callable[[], int]) -> list[tuple[int, int]]:
        """Returns, for each member, how many codes a pass has, and an epoch at most; see `OrderSpec.code_ranges`."""
        passes = zip(self.members, self.passes(epoch), strict=True)
        return [(member.samples, member.samples * (int(most) + 2)) for member, most in passes]

    def samples_in(self, epoch: int, counts: Sequence[int]) -> int:
        """Returns the number of positions of an epoch, whatever `counts` are; see `OrderSpec.samples_in`."""
        return self.samples(epoch)

    @property
    def orders(self) -> tuple[OrderSpec, ...]:
        """The order of a pass over each member."""
        return tuple(member.order for member in self.members)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the members."""
        return tuple(member.name for member in self.members)

    def first_passes(self, epoch: int) -> tuple[int, ...]:
        """Returns the number of the first pass of each member in an epoch; passes of codes count from there.

        Raises:
            ConfigError: see `stream_starts`.
        """
        return tuple(start // m.samples for start, m in zip(self.stream_starts(epoch), self.members, strict=True))

    def passes(self, epoch: int) -> tuple[float, ...]:
        """Returns the number of passes over each member in an epoch: so often a cached byte of it saves a fetch.

        Raises:
            ConfigError: see `stream_starts`.
        """
        return tuple(quota / m.samples for quota, m in zip(self.quotas(epoch), self.members, strict=True))

    def turns(self, epoch: int) -> tuple[int, ...]:
        """Returns the turn of each member: its stream position Q is in lane (Q + turn) mod L.

        Members with whole passes need not fill the lanes evenly. Each begins in the lane behind the last one of the
        member before, so that the lanes of the mix stay equal; such a turn changes only between two passes.

        Raises:
            ConfigError: see `stream_starts`.
        """
        turns = []
        before = 0
        for member, start in zip(self.members, self.stream_starts(epoch), strict=True):
            turns.append((before - start) % self.lanes if member.passes else member.turn)
            before += member.passes * member.samples
        return tuple(turns)

    # ------------------------------------------------------------- identity

    @cached_property
    def order_id(self) -> str:
        """The digest of all parts and of the format of the order: 32 hex characters."""
        text = json.dumps({"mix": MIX_FORMAT, **self.parts()}, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def to_state_parts(self) -> tuple[dict[str, object], dict[str, object]]:
        """Returns the fields that a state has before epoch and position, and those that it has after them."""
        return {"mix": self.parts()}, {"kind": self.kind}

    def parts(self) -> dict[str, object]:
        """Returns all parts as plain values, as states and `order_id` have them."""
        parts: dict[str, object] = json.loads(msgspec.json.encode(self))
        if self.groups == 1:
            # Orders without groups keep the ids that they had before there were any.
            del parts["groups"]
        return parts

    def facts(self) -> dict[str, str | int]:
        """Returns all parts by readable names ("member books: seed"), by which ranks and states are compared."""
        found: dict[str, str | int] = {"members": ", ".join(member.name for member in self.members)}
        for name in ("batching", "seed", "lanes", "slots", "window", "groups", "origin_epoch"):
            found[name] = getattr(self, name)
        for member in self.members:
            found |= {f"member {member.name}: {part}": value for part, value in member.parts().items()}
        for stage in self.stages:
            for member, weight in zip(self.members, stage.weights, strict=True):
                share = f"{weight / max(1, sum(stage.weights)):.6%}"
                found[f"member {member.name}: weight from epoch {stage.epoch}"] = share
            found[f"samples of an epoch, from epoch {stage.epoch}"] = stage.units * self.unit
        return found | level_of(self.balance).parts()


def _check_members(spec: MixSpec) -> None:
    """Raises ConfigError for members that do not fit the mix."""
    for member in spec.members:
        if member.order.lanes != spec.lanes:
            raise ConfigError(
                f"member {member.name}: lanes={member.order.lanes} is not the mix's {spec.lanes}", field="lanes"
            )
        numbers = {name: getattr(member, name) for name in ("samples", "passes", "origin", "turn")}
        wrong = [f"{name}={number}" for name, number in numbers.items() if number < (name == "samples")]
        if wrong:
            raise ConfigError(f"member {member.name}: {', '.join(wrong)} is too small", field="members")
        if member.passes and member.origin % member.samples:
            raise ConfigError(
                f"member {member.name}: repeat= begins with a whole pass, but {member.origin % member.samples} of its "
                f"{member.samples} samples are read; give it a weight until the pass ends",
                field="repeat",
            )
