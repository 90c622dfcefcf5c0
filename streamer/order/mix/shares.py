"""Checks the proportions of a mix that the user gives, and turns them into amounts for members of known sizes.

`loader/mixed_dataset.py` reads the user's arguments by it, `order/mix/request.py` asks for the amounts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from itertools import pairwise
from numbers import Integral
from typing import Literal, TypeAlias, get_args

import msgspec
import numpy as np

from streamer.errors import ConfigError
from streamer.order.mix.spec import Unit
from streamer.removed import check_options

Stop: TypeAlias = Literal["first_exhausted", "all_exhausted"]
Amounts: TypeAlias = Mapping[str, float]
# Stages, each as the epoch from which on it counts, and its weights by name.
WeightStages: TypeAlias = Sequence[tuple[int, Amounts]]

# Weights become integers with this sum: their relative errors of 2**-32 are one sample in 4e9.
_SCALE = 1 << 32
# Parts of a sample in which absolute amounts are counted: so `repeat=0.25` is exact for any number of samples.
_PART = 1 << 16


class Amount(msgspec.Struct, frozen=True):
    """The amounts of the members in the epochs of one stage.

    Attributes:
        epoch: the first epoch of the stage.
        passes: number of whole passes of each member in every epoch, or 0 if its weight decides.
        weights: weight of each member, an integer, or 0 if it has whole passes.
        samples: number of samples of all members with weights together in one epoch, before rounding.
    """

    epoch: int
    passes: tuple[int, ...]
    weights: tuple[int, ...]
    samples: int


@check_options
@dataclass(frozen=True)
class Weights:
    """Shares of the members on any scale, with the unit that they count in and the length of an epoch.

        MixedDataset(members, weights=Weights({"web": 0.9, "books": 0.1}, epoch_samples=1_000_000))

    `weights={...}` is `weights=Weights({...})`: an epoch has as many samples as all members with a share together.

    Args:
        weights: shares by name, 0 leaves a member out; or stages `[(0, {...}), (10, {...})]`, each from its epoch on.
        temperature: instead of `weights`: shares `samples ** (1 / temperature)`: 1 by size, a large number equal.
        unit: what the shares are of: "samples", or "bytes" of the samples in the store.
        epoch_samples: samples of an epoch, over all ranks, rounded to whole batches. None means as many as all members
            with a share have.
        stopping_strategy: instead of `epoch_samples`: an epoch ends when the first member ("first_exhausted"), or every
            member ("all_exhausted"), has made one pass.

    Raises:
        ConfigError: an invalid value, neither `weights` nor `temperature` or both, or both `epoch_samples` and
            `stopping_strategy`.
    """

    weights: Amounts | WeightStages | None = None
    _: KW_ONLY
    temperature: float | None = None
    unit: Unit = "samples"
    epoch_samples: int | None = None
    stopping_strategy: Stop | None = None

    def __post_init__(self) -> None:
        if (self.weights is None) == (self.temperature is None):
            both = "neither weights nor temperature" if self.weights is None else "both weights and temperature"
            raise ConfigError(f"Weights has {both}: give the shares of the members by one of them", field="weights")
        warmth: object = self.temperature
        if warmth is not None and not (isinstance(warmth, int | float | np.number) and 0 < warmth < math.inf):
            raise ConfigError(f"temperature={self.temperature} is not a positive number", field="temperature")
        if self.unit not in get_args(Unit):
            raise ConfigError(f"unit={self.unit!r} must be one of {get_args(Unit)}", field="unit")
        count: object = self.epoch_samples
        if count is not None and (not isinstance(count, Integral) or count < 1):
            raise ConfigError(f"epoch_samples={count!r} must be at least 1, a whole number", field="epoch_samples")
        ending = self.stopping_strategy
        if ending not in (None, *get_args(Stop)):
            raise ConfigError(
                f"stopping_strategy={ending!r} must be one of {get_args(Stop)}", field="stopping_strategy"
            )
        if self.epoch_samples is not None and ending is not None:
            raise ConfigError(
                "epoch_samples and stopping_strategy both fix the length of an epoch: pass one",
                field="stopping_strategy",
            )


class Shares(msgspec.Struct, frozen=True):
    """The proportions, checked. Without weights, repeat, choose and temperature, every sample comes once per epoch.

    Attributes:
        weights: stages of (first epoch, weight by name), empty if they are not given.
        repeat: passes per epoch by name, empty if they are not given.
        choose: samples per epoch by name, empty if they are not given.
        temperature: 0 if it is not given. Else a member of n samples (or bytes) has the weight n ** (1 / temperature).
        epoch_samples: length of an epoch, with `weights` or `temperature`, or 0 if it is not given.
        stop: `stopping_strategy` of `Weights`, or None if it is not given.
        unit: unit of the shares, as in `Weights`.
    """

    weights: tuple[tuple[int, dict[str, float]], ...] = ()
    repeat: dict[str, float] = {}
    choose: dict[str, int] = {}
    temperature: float = 0.0
    epoch_samples: int = 0
    stop: Stop | None = None
    unit: Unit = "samples"

    @classmethod
    def from_arguments(
        cls,
        names: Sequence[str],
        *,
        weights: Amounts | WeightStages | Weights | None = None,
        repeat: Amounts | float | None = None,
        choose: Mapping[str, int] | None = None,
    ) -> Shares:
        """Makes shares of the arguments of a mix, of which one at most is given.

        Args:
            names: names of the members, in their order.
            weights: weights as the user gives them, or None.
            repeat: passes per epoch by name, or one number for all, or None.
            choose: samples per epoch by name, or None.

        Raises:
            ConfigError: an unknown or missing member, a number that cannot be a share, only shares of zero, or two of
                the three arguments. The error names the argument.
        """
        given = {"weights": weights, "repeat": repeat, "choose": choose}
        chosen = [name for name, value in given.items() if value is not None]
        if len(chosen) > 1:
            raise ConfigError(f"{' and '.join(chosen)} both fix the shares of the members: pass one", field=chosen[1])
        if weights is not None:
            rule = weights if isinstance(weights, Weights) else Weights(weights)
            return cls(
                weights=_weight_stages(names, rule.weights),
                temperature=rule.temperature or 0.0,
                epoch_samples=rule.epoch_samples or 0,
                stop=rule.stopping_strategy,
                unit=rule.unit,
            )
        if isinstance(repeat, int | float):
            repeat = dict.fromkeys(names, float(repeat))
        return cls(
            repeat=_check_shares("repeat", names, repeat),
            choose={name: int(value) for name, value in _check_shares("choose", names, choose).items()},
        )

    def amounts(self, samples: Mapping[str, int], sizes: Mapping[str, int] | None = None) -> tuple[Amount, ...]:
        """Returns the amounts of members of known sizes, an entry for each stage.

        Args:
            samples: number of samples of each member by name, in the order of the mix.
            sizes: size of each member by name, in the unit of the shares; None if the unit is samples.
        """
        if self.choose:
            return (_absolute([(0, Fraction(self.choose[name])) for name in samples]),)
        if self.weights or self.temperature:
            return self._relative(samples, sizes or samples)
        repeat = self.repeat or dict.fromkeys(samples, 1.0)
        whole = {name: int(passes) if passes == int(passes) else 0 for name, passes in repeat.items()}
        return (_absolute([(whole[name], Fraction(repeat[name]) * n) for name, n in samples.items()]),)

    def _relative(self, samples: Mapping[str, int], sizes: Mapping[str, int]) -> tuple[Amount, ...]:
        """Returns the amounts by weights, or by temperature, for members of these sizes in the unit.

        All stages have epochs of one length. With `stop`, the weights of the first stage alone fix it.
        """
        stages = self.weights or ((0, {name: n ** (1 / self.temperature) for name, n in sizes.items()}),)
        none = (0,) * len(samples)
        # A share of the bytes is a share of the samples over their mean size.
        means = {name: max(1, sizes[name]) / n for name, n in samples.items()}
        scaled = []
        for epoch, by_name in stages:
            shares = [by_name[name] / means[name] for name in samples]
            total = math.fsum(shares)
            # The integers sum to about 2**32, and a positive share stays positive.
            integers = (max(1, round(share / total * _SCALE)) if share else 0 for share in shares)
            scaled.append((epoch, tuple(integers)))
        counts = list(samples.values())
        if self.epoch_samples:
            length = self.epoch_samples
        elif self.stop is None:
            length = sum(count for i, count in enumerate(counts) if any(weights[i] for _, weights in scaled))
        else:
            weights = scaled[0][1]
            passes = [count * sum(weights) // weight for count, weight in zip(counts, weights, strict=True) if weight]
            length = min(passes) if self.stop == "first_exhausted" else max(passes)
        return tuple(Amount(epoch, none, weights, length) for epoch, weights in scaled)


def _absolute(amounts: Sequence[tuple[int, Fraction]]) -> Amount:
    """Makes the amounts of a single stage from (whole passes, samples) of each member.

    Members with whole passes keep them; of the others the samples are the weights, in parts of 1/65,536.
    """
    weights = tuple(0 if passes else round(size * _PART) for passes, size in amounts)
    return Amount(0, tuple(passes for passes, _ in amounts), weights, round(Fraction(sum(weights), _PART)))


def _weight_stages(
    names: Sequence[str], weights: Amounts | WeightStages | None
) -> tuple[tuple[int, dict[str, float]], ...]:
    """Returns weights as stages of (first epoch, weight by name), or () for None; raises ConfigError."""
    if weights is None:
        return ()
    stages = [(0, weights)] if isinstance(weights, Mapping) else weights
    rows = list(stages) if isinstance(stages, list | tuple) else []
    good = [row for row in rows if isinstance(row, list | tuple) and len(row) == 2 and isinstance(row[0], int)]
    epochs = [row[0] for row in good] if len(good) == len(rows) else []
    if epochs[:1] != [0] or any(a >= b for a, b in pairwise(epochs)):
        raise ConfigError(
            f"weights={weights!r} must be a mapping, or [(0, mapping), (epoch, mapping), ...] with ascending epochs",
            field="weights",
        )
    return tuple((epoch, _check_shares("weights", names, by_name)) for epoch, by_name in stages)


def _check_shares(field: str, names: Sequence[str], values: object) -> dict[str, float]:
    """Returns the values in the order of the members, {} for None; raises ConfigError for what cannot be shares."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ConfigError(f"{field}={values!r} is not a mapping from the names of the members", field=field)
    unknown = [name for name in values if name not in names]
    missing = [name for name in names if name not in values]
    if unknown or missing:
        wrong = [
            *([f"values for {unknown}, which are not members"] if unknown else []),
            *([f"none for the members {missing} (0 leaves a member out)"] if missing else []),
        ]
        raise ConfigError(f"{field} has {', and '.join(wrong)}; members: {list(names)}", field=field)
    for name, value in values.items():
        if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
            raise ConfigError(f"{field}: {name}={value!r} is not a number of at least 0", field=field)
        if field == "choose" and value != int(value):
            raise ConfigError(f"choose: {name}={value!r} is not a whole number of samples", field=field)
    if not any(values.values()):
        raise ConfigError(f"{field}={dict(values)} leaves every member out", field=field)
    return {name: values[name] for name in names}


def whole_passes_as_weights(amount: Amount, sizes: Sequence[int], members: Sequence[bool]) -> Amount:
    """Returns the amounts with the whole passes of some members as weights.

    The shares stay the same, but they are rounded in each epoch.

    Args:
        amount: amounts of a stage.
        sizes: number of samples of each member.
        members: whether the whole passes of each member become a weight.
    """
    changed = [passes if change else 0 for passes, change in zip(amount.passes, members, strict=True)]
    added = [passes * n for passes, n in zip(changed, sizes, strict=True)]
    return Amount(
        amount.epoch,
        tuple(0 if change else passes for passes, change in zip(amount.passes, changed, strict=True)),
        tuple(weight + samples * _PART for weight, samples in zip(amount.weights, added, strict=True)),
        amount.samples + sum(added),
    )
