"""Defines what fixes the rows of a dataset: equal specs over equal costs give equal rows, on any machines.

`batches/rows/options.py` makes it of the user's `packing=`; specs (`order/spec.py`) and states keep it.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias, get_args

import msgspec

from streamer.errors import ConfigError

Policy: TypeAlias = Literal["best_fit", "concat", "buckets"]
Overflow: TypeAlias = Literal["split", "truncate", "drop", "error"]

# Raised whenever the same parts would give other rows; part of every order_id with rows.
ROWS_FORMAT = 1
LEAST_LENGTH = 16
MOST_LENGTH = 1 << 24


class RowSpec(msgspec.Struct, frozen=True):
    """The parts that decide which tokens share a row.

    Attributes:
        length: tokens of a row, estimated ones where costs are estimates. With "buckets" it is the budget of tokens.
        policy: "best_fit": no document that fits into a row is cut. "concat": documents one after the other, cut at
            the end of each row. "buckets": whole documents of like length, each taking as much as the longest.
        overflow: what becomes of documents longer than a row: "split" into pieces, "truncate" to the first `length`
            tokens, "drop", or "error".
        multiple_of: every item takes a multiple of so many tokens in its row, and it divides `length`.
        set_rows: wanted rows of a set on average; the last one may have half as many.
        costs: where the costs come from: "" for the format, else the digest of a measured column, or an estimate.
        version: `ROWS_FORMAT` of the rules by which rows are made.
        most: most documents of a row, with "buckets", else `UNSET`, which is left out of the parts.

    Raises:
        ConfigError: a part outside of these rules.
    """

    # The words of an audit, which can only count them.
    counted_only: ClassVar[str] = "rows of packed documents"

    length: int
    policy: Policy = "best_fit"
    overflow: Overflow = "split"
    multiple_of: int = 1
    set_rows: int = 256
    costs: str = ""
    version: int = ROWS_FORMAT
    most: int | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        for name, given, words in (("policy", self.policy, Policy), ("overflow", self.overflow, Overflow)):
            if given not in get_args(words):
                expected = ", ".join(f'"{word}"' for word in get_args(words))
                raise ConfigError(f"Packing: {name}={given!r} must be one of {expected}", field=name)
        if not LEAST_LENGTH <= self.length <= MOST_LENGTH:
            raise ConfigError(
                f"Packing: length={self.length} must be {LEAST_LENGTH} to {MOST_LENGTH} tokens", field="length"
            )
        if self.multiple_of < 1 or self.length % self.multiple_of:
            raise ConfigError(
                f"Packing: multiple_of={self.multiple_of} must divide length={self.length}", field="multiple_of"
            )
        if self.set_rows < 1:
            raise ConfigError(f"Packing: rows_per_set={self.set_rows} must be at least 1", field="rows_per_set")
        if (self.most is msgspec.UNSET) == (self.policy == "buckets") or (self.most != msgspec.UNSET and self.most < 1):
            raise ConfigError(f"Buckets: max_samples={self.most} must be at least 1", field="max_samples")
        if self.version != ROWS_FORMAT:
            raise ConfigError(
                f"rows of version {self.version} cannot be made; this streamer makes those of version {ROWS_FORMAT}: "
                "use the version that saved the state",
                field="version",
            )

    @property
    def room(self) -> str:
        """What a document may be too long for, in words, for messages."""
        return f"the budget of {self.length} tokens" if self.policy == "buckets" else f"a row of {self.length} tokens"

    def parts(self) -> dict[str, str | int]:
        """Returns the parts that are set, as plain values, by the names that messages and states use."""
        parts = msgspec.structs.asdict(self)
        return {f"packing.{name}": value for name, value in parts.items() if value is not msgspec.UNSET}


class NoRowSpec:
    """Stands for `RowSpec` in an order of samples."""

    counted_only = ""

    def parts(self) -> dict[str, str | int]:
        """Returns no parts."""
        return {}


def row_spec_of(stored: RowSpec | msgspec.UnsetType) -> RowSpec | NoRowSpec:
    """Returns the part `rows` of a spec, or `NoRowSpec` where the spec leaves it out (`UNSET`)."""
    return NoRowSpec() if isinstance(stored, msgspec.UnsetType) else stored
