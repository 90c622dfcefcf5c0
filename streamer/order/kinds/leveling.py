"""Whether the samples of a lane change places, so that batches cost every rank the same: an object, either way."""

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

# (epoch, rows as the order calls them, coefficients) -> int64 cost of each.
Costs = Callable[[int, Integers, tuple[int, int]], Integers]


class Leveling(ABC):
    """What is made level."""

    @abstractmethod
    def apply(self, order: SampleOrder, costs: Costs) -> SampleOrder:
        """Returns the order after its samples have changed places."""

    @abstractmethod
    def coefficients(self, usual: tuple[int, int]) -> tuple[int, int]:
        """Returns the cost of a document of n tokens, of n and of n**2.

        Args:
            usual: the cost where nothing is made level.
        """

    @abstractmethod
    def check_inside(self) -> None:
        """Refuses a state inside an epoch where the samples before it are not the first of each member.

        Raises:
            StateError: they are not.
        """


class NoLeveling(Leveling):
    """Nothing changes places."""

    def apply(self, order: SampleOrder, costs: Costs) -> SampleOrder:
        """See `Leveling`."""
        return order

    def coefficients(self, usual: tuple[int, int]) -> tuple[int, int]:
        """See `Leveling`."""
        return usual

    def check_inside(self) -> None:
        """See `Leveling`."""


class LaneLeveling(Leveling):
    """Samples of a lane change places inside superwindows."""

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
    """Returns what a spec says of it; specs leave the part out where nothing is made level."""
    return NoLeveling() if isinstance(stored, UnsetType) else LaneLeveling(stored)
