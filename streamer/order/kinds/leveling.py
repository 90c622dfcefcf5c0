"""Says whether the samples of a lane change places, so that batches cost every rank the same: an object, either way.

`batches/samples/plans.py` applies it to the order of an epoch, `batches/samples/recipe.py` asks it for the coefficients
of costs, and `order/adopt.py` asks it before a mix is changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

from msgspec import UnsetType

from streamer.errors import StateError
from streamer.order.epoch import EpochOrder
from streamer.order.hashing import Integers
from streamer.order.level import BalanceSpec
from streamer.order.protocol import SampleOrder

# Returns the int64 cost of rows, from the epoch, what the order calls the rows, and the two coefficients.
Costs = Callable[[int, Integers, tuple[int, int]], Integers]


class Leveling(ABC):
    """The interface: makes the costs of ranks level, or does not (`NoLeveling`)."""

    @abstractmethod
    def apply(self, order: SampleOrder, costs: Costs) -> SampleOrder:
        """Returns the order in which samples of the given one have changed places, or the given one."""

    @abstractmethod
    def coefficients(self, usual: tuple[int, int]) -> tuple[int, int]:
        """Returns the coefficients of n and of n**2 in the cost of a document of n tokens.

        Args:
            usual: the coefficients where nothing is made level.
        """

    @abstractmethod
    def check_inside(self) -> None:
        """Refuses a state inside an epoch if samples change places, since those delivered may not be the first.

        Raises:
            StateError: samples change places.
        """


class NoLeveling(Leveling):
    """Leaves all samples in their places."""

    def apply(self, order: SampleOrder, costs: Costs) -> SampleOrder:
        """See `Leveling`."""
        return order

    def coefficients(self, usual: tuple[int, int]) -> tuple[int, int]:
        """See `Leveling`."""
        return usual

    def check_inside(self) -> None:
        """See `Leveling`."""


class LaneLeveling(Leveling):
    """Lets samples of a lane change places inside superwindows (`order/level.py`)."""

    def __init__(self, spec: BalanceSpec) -> None:
        self._spec = spec

    def apply(self, order: SampleOrder, costs: Costs) -> SampleOrder:
        """See `Leveling`."""
        # Imported here, since other orders do not need it.
        from streamer.order.balanced_order import BalancedOrder

        own = self._spec.linear, self._spec.quadratic
        return BalancedOrder(cast("EpochOrder", order), self._spec, lambda rows, epoch: costs(epoch, rows, own))

    def coefficients(self, usual: tuple[int, int]) -> tuple[int, int]:
        """See `Leveling`."""
        return self._spec.linear, self._spec.quadratic

    def check_inside(self) -> None:
        """See `Leveling`."""
        raise StateError(
            "the state is of a run with balance=, inside an epoch: go on with the same mix, or with a state from an "
            "epoch's end",
            field="balance",
        )


def find_level(stored: BalanceSpec | UnsetType) -> Leveling:
    """Returns the object for the part `balance` of a spec, which is `UNSET` where nothing is made level."""
    return NoLeveling() if isinstance(stored, UnsetType) else LaneLeveling(stored)
