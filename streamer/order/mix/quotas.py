"""The amount of each member in the epochs: exact over any number of epochs, in whole units in each.

A binary tree halves the list of members until one is left. Each node splits its units between its two halves by one
integer division whose remainder is kept, so that what an epoch rounds away comes in a later one. Every count only
grows, whatever the weights; a plain difference of rounded sums does not have that property.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec

# A remainder is kept as a fraction of the node's weight, in this many bits.
_BITS = 62


class Stage(msgspec.Struct, frozen=True):
    """The shares of the members from one epoch on.

    Attributes:
        epoch: the first epoch of the stage.
        weights: of each member, integers; 0: the member pauses, or it has whole passes instead.
        units: units of `MixSpec.unit` samples in each epoch, of these members together; 0 if all weights are.
    """

    epoch: int
    weights: tuple[int, ...]
    units: int


def drawn_units(stages: Sequence[Stage], epoch: int) -> list[int]:
    """Units of each member in the epochs from the first stage's on, up to but without `epoch`.

    Costs one pass over the members for each stage that has begun.
    """
    members = len(stages[0].weights)
    drawn = [0] * members
    remainders = [1 << (_BITS - 1)] * members
    stops = [*(stage.epoch for stage in stages[1:]), epoch]
    for stage, stop in zip(stages, stops, strict=True):
        epochs = min(stop, epoch) - stage.epoch
        if epochs > 0:
            before = [0, *accumulate(stage.weights)]
            _split((0, members), epochs * stage.units, before, drawn, remainders)
    return drawn


def _split(members: tuple[int, int], units: int, before: list[int], drawn: list[int], remainders: list[int]) -> None:
    """Gives units to a run of members: `before` are the weights before each member."""
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
    _split((low, middle), left, before, drawn, remainders)
    _split((middle, high), units - left, before, drawn, remainders)
