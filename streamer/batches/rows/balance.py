"""The option `balance=` of a dataset: how batches are made level, so that they cost every rank the same.

`Balance` is public, and datasets of the loader take it (`loader/dataset.py`). `batches/samples/opened.py` opens the
lengths of samples for it.
"""

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
    """A dataset whose samples have lengths: `OpenedDataset`, which imports this module and so is not imported here."""

    def measure(self, lengths: str | Estimate | None) -> None:
        """Opens the lengths of the samples, see `OpenedDataset.measure`."""
        ...


@check_options
@dataclass(frozen=True)
class Balance:
    """Makes batches that cost every rank the same in every step, without communication. See docs/sequences.md.

    Rows of one lane, or samples that are not packed, change places with others that come at about the same time. Which
    rows a batch has depends on the global batch, not on the number of ranks; a run goes on with another one.

    Args:
        rows_per_rank: number of rows, or samples, that one rank has in a step: so many are made level together. A run
            that goes on with fewer ranks, and more rows for each, keeps this number. With 1, rows of like cost share a
            step, and batches differ more from each other.
        coefficients: (a, b) of the cost of a document, or sample, of n tokens: a x n + b x n**2, whole numbers. The
            default is that of a transformer of hidden size 4,096: 6 x 4,096 x n + n**2.
        lengths: length n of each sample, as `lengths` of `Packing`, and only for samples that are not packed. More than
            2**24 count as 2**24. With an `Estimate`, ranks are only as level as the estimate is right.

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
        """Text for the name of a stream, with a comma before it."""
        return f", balance {self.rows_per_rank}"

    def check(self, shuffle: str, packing: AnyPacking, growing: AnyGrowing) -> None:
        """Refuses options of the dataset with which batches cannot be made level.

        Args:
            shuffle: "none", "block" or "sample".
            packing: how samples are packed.
            growing: whether the dataset grows.

        Raises:
            ConfigError: the dataset is not shuffled, grows, or is packed and this option has `lengths`.
        """
        if shuffle == "none":
            raise ConfigError("balance= with shuffle=False: it changes the order; leave one out", field="balance")
        packing.check_lengths(self.lengths)
        growing.check_balance()

    def drop_source(self) -> Balance:
        """Returns the same balance without the source of its lengths."""
        return with_options(self, lengths=None)

    def measure(self, data: Measurable) -> None:
        """Opens the lengths of a dataset's samples, in the dataset.

        Raises:
            ConfigError: nothing says how long a sample is, or the file with the lengths does not fit the dataset.
        """
        data.measure(self.lengths)

    def spec(self, batch: int, lengths: str = "") -> BalanceSpec:
        """Returns the parts that decide which rows share a batch, for the spec of the order.

        Args:
            batch: rows of the global batch.
            lengths: identity of the measured lengths, or "" where rows are packed or the format knows the lengths.

        Raises:
            ConfigError: coefficients or numbers are not allowed.
        """
        return BalanceSpec(self.rows_per_rank, *self.coefficients, batch, lengths)


@dataclass(frozen=True, repr=False)
class NoBalance:
    """Stands for `balance=None`: batches are not made level. It has the methods of `Balance`, and refuses nothing."""

    name: ClassVar[str] = ""

    def __repr__(self) -> str:
        return "None"

    def check(self, shuffle: str, packing: AnyPacking, growing: AnyGrowing) -> None:
        """Refuses nothing: all options of the dataset are allowed."""

    def drop_source(self) -> NoBalance:
        """Returns itself, since it has no lengths."""
        return self

    def spec(self, batch: int, lengths: str = "") -> UnsetType:
        """Returns UNSET: the spec of such an order has no part for it."""
        return UNSET

    def measure(self, data: Measurable) -> None:
        """Does nothing: the lengths of samples are not needed."""


NO_BALANCE = NoBalance()
AnyBalance: TypeAlias = Balance | NoBalance


def read_balance(given: object) -> AnyBalance:
    """Returns the argument `balance=` of a dataset, or `NO_BALANCE` for None.

    Raises:
        ConfigError: the argument is neither None nor a `Balance`.
    """
    if given is None:
        return NO_BALANCE
    if not isinstance(given, Balance):
        raise ConfigError(f"balance={given!r} is not a streamer.Balance", field="balance")
    return given
