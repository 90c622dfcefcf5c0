"""How batches are made level, so that they cost every rank the same: the user's option."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as with_options
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

from msgspec import UNSET, UnsetType

from streamer.batches import checks
from streamer.batches.rows.options import ROW_COST, AnyPacking, Estimate, settle_source
from streamer.errors import ConfigError
from streamer.order.level import BalanceSpec
from streamer.removed import check_options

if TYPE_CHECKING:
    from streamer.order.growing.options import AnyGrowing


class Measurable(Protocol):
    """A dataset whose samples have lengths. It cuts the import of `batches.samples`, which asks this option."""

    def measure(self, lengths: str | Estimate | None) -> None:
        """Opens the lengths of the samples."""
        ...


@check_options
@dataclass(frozen=True)
class Balance:
    """Makes batches that cost every rank the same in every step, without communication. See docs/sequences.md.

    Rows of one lane, or samples that are not packed, change places with others that come at about the same time. Which
    rows a batch has depends on the global batch, not on the number of ranks; a run goes on with another one.

    Args:
        rows_per_rank: rows of a rank in a step; so many are made level together. For fewer ranks with more rows each it
            stays as it is. With 1, rows of like cost share a step, and batches differ more from each other.
        coefficients: (a, b) of the cost of a document, or sample, of n tokens: a x n + b x n**2, whole numbers. The
            default is that of a transformer of hidden size 4,096: 6 x 4,096 x n + n**2.
        lengths: without packing, n of each sample: as `lengths` of `Packing`. More than 2**24 count as 2**24. With an
            `Estimate`, ranks are as level as it is right.

    Raises:
        ConfigError: an invalid value.
    """

    rows_per_rank: int
    coefficients: tuple[int, int] = ROW_COST
    lengths: str | Estimate | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows_per_rank", checks.at_least("rows_per_rank", self.rows_per_rank, 1))
        given: object = self.coefficients
        if not isinstance(given, Sequence) or len(given) != 2:
            raise ConfigError(
                f"coefficients={given!r}: give a pair of whole numbers, as (24576, 1)", field="coefficients"
            )
        object.__setattr__(self, "coefficients", tuple(checks.whole("coefficients", part) for part in given))
        object.__setattr__(self, "lengths", settle_source("lengths", self.lengths))
        self.spec(1)

    @property
    def name(self) -> str:
        """What the name of a stream says of it."""
        return f", balance {self.rows_per_rank}"

    def check(self, shuffle: str, packing: AnyPacking, growing: AnyGrowing) -> None:
        """Refuses options of the dataset with which batches cannot be made level.

        Raises:
            ConfigError: one of them.
        """
        if shuffle == "none":
            raise ConfigError("balance= with shuffle=False: it changes the order; leave one out", field="balance")
        packing.check_lengths(self.lengths)
        growing.check_balance()

    def drop_source(self) -> Balance:
        """Returns the same balance but for the source of its lengths."""
        return with_options(self, lengths=None)

    def measure(self, data: Measurable) -> None:
        """Opens the lengths of the samples of a dataset.

        Raises:
            ConfigError: nothing says how long a sample is.
        """
        data.measure(self.lengths)

    def spec(self, batch: int, lengths: str = "") -> BalanceSpec:
        """Returns the parts that decide which rows share a batch.

        Args:
            batch: rows of the global batch.
            lengths: identity of the measured lengths.
        """
        return BalanceSpec(self.rows_per_rank, *self.coefficients, batch, lengths)


@dataclass(frozen=True, repr=False)
class NoBalance:
    """The balance of a dataset whose batches are not made level: it takes any option."""

    name: ClassVar[str] = ""

    def __repr__(self) -> str:
        return "None"

    def check(self, shuffle: str, packing: AnyPacking, growing: AnyGrowing) -> None:
        """Takes any options of the dataset."""

    def drop_source(self) -> NoBalance:
        """Returns itself: it has no lengths."""
        return self

    def spec(self, batch: int, lengths: str = "") -> UnsetType:
        """Returns the parts that decide which rows share a batch: there are none."""
        return UNSET

    def measure(self, data: Measurable) -> None:
        """Leaves the samples of a dataset unmeasured."""


NO_BALANCE = NoBalance()
AnyBalance: TypeAlias = Balance | NoBalance


def read_balance(given: object) -> AnyBalance:
    """Returns the balance of an argument, which may be left out.

    Raises:
        ConfigError: something else.
    """
    if given is None:
        return NO_BALANCE
    if not isinstance(given, Balance):
        raise ConfigError(f"balance={given!r} is not a streamer.Balance", field="balance")
    return given
