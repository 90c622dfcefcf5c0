"""Chooses which rows of a lane share a batch, so that every rank has the same cost; and keeps what fixes that.

`batches/rows/balance.py` makes a `BalanceSpec` of the user's `balance=`, specs (`order/spec.py`, `order/mix/`) have it
as a part, and `order/balanced_order.py` distributes rows by it. `loader/kinds/` asks for its part. A row is a row of
packed documents, or a sample that is not packed.

The rows of one lane change places inside a superwindow, a power of two of consecutive batches. Other lanes and the
number of ranks have no influence. So lanes stay with their nodes, and any number of ranks has the same batches.
"""

from __future__ import annotations

from math import gcd

import msgspec
import numpy as np

from streamer.base.sorting import unique
from streamer.errors import ConfigError
from streamer.order.hashing import Integers, Words

# Most rows of a superwindow in a lane. With 128, 256, 512, 1,024 rows, the dearest of 64 ranks with 4 rows of 8,192
# tokens each costs 1.3, 0.9, 0.6, 0.5 % more than the mean (2026-11-24).
MOST_ROWS = 1024


class BalanceSpec(msgspec.Struct, frozen=True):
    """The parts that decide which rows share a batch.

    Attributes:
        rows: rows of a rank and step, whose sum is to be the same for all ranks.
        linear, quadratic: coefficients of the cost of a document of n tokens, linear x n + quadratic x n**2; below
            2**24 and 2**4, and not both 0.
        batch: rows of the global batch.
        lengths: identity of the measured lengths of samples that are not packed; "" for packed rows.

    Raises:
        ConfigError: a part outside of these rules.
    """

    rows: int
    linear: int
    quadratic: int
    batch: int
    lengths: str = ""

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ConfigError(f"Balance: rows_per_rank={self.rows} must be at least 1", field="rows_per_rank")
        if self.batch < 1:
            raise ConfigError(f"Balance: a batch of {self.batch} samples; it must have at least 1", field="batch_size")
        # So that the cost of a superwindow of the longest rows stays below 2**62.
        if not (0 <= self.linear < 1 << 24 and 0 <= self.quadratic < 1 << 4 and self.linear + self.quadratic):
            raise ConfigError(
                f"Balance: coefficients=({self.linear}, {self.quadratic}) must be two whole numbers, the first below "
                "2**24, the second below 16, not both 0",
                field="coefficients",
            )

    def count_units(self, batch_size: int) -> int:
        """Returns how many units a batch of `batch_size` rows has: runs of rows of one lane that are made level."""
        return batch_size // gcd(self.rows, batch_size)

    def check_lanes(self, lanes: int, batch_size: int) -> None:
        """Makes sure that `lanes` divides the global batch.

        Raises:
            ConfigError: it does not.
        """
        check_lanes("balance=", lanes, batch_size)

    def resize(self, batch_size: int) -> BalanceSpec:
        """Returns the same parts for another global batch."""
        return msgspec.structs.replace(self, batch=batch_size)

    def parts(self) -> dict[str, str | int]:
        """Returns the parts by the names that messages and states use; "lengths" only where it is not empty."""
        parts = {f"balance.{name}": getattr(self, name) for name in self.__struct_fields__}
        return parts if self.lengths else {name: value for name, value in parts.items() if name != "balance.lengths"}


class NoLevel:
    """Stands for `BalanceSpec` in an order in which nothing is made level."""

    def count_units(self, batch_size: int) -> int:
        """Returns `batch_size`: each sample of a batch is a unit, see `BalanceSpec.count_units`."""
        return batch_size

    def check_lanes(self, lanes: int, batch_size: int) -> None:
        """Takes any number of lanes."""

    def resize(self, batch_size: int) -> msgspec.UnsetType:
        """Returns `UNSET`, with which a spec leaves the part out."""
        return msgspec.UNSET

    def parts(self) -> dict[str, str | int]:
        """Returns no parts."""
        return {}


def level_of(stored: BalanceSpec | msgspec.UnsetType) -> BalanceSpec | NoLevel:
    """Returns the part `balance` of a spec, or `NoLevel` where the spec leaves it out (`UNSET`)."""
    return NoLevel() if isinstance(stored, msgspec.UnsetType) else stored


def check_lanes(what: str, lanes: int, batch_size: int) -> None:
    """Makes sure that `lanes` divides the global batch.

    Args:
        what: the option that needs it, for the error.
        lanes: number of lanes.
        batch_size: the global batch.

    Raises:
        ConfigError: it does not divide the batch.
    """
    if batch_size % lanes:
        raise ConfigError(
            f"{what} needs lanes that divide the global batch: {lanes} do not divide {batch_size}", field="lanes"
        )


def superwindow(rows: int, max_rows: int) -> int:
    """Returns the number of batches of a superwindow: the largest power of two with at most `max_rows` rows of a lane.

    Args:
        rows: rows of a lane in a batch.
        max_rows: maximum number of rows of a superwindow in a lane; one batch is taken even if it has more.
    """
    return 1 << max(0, (max_rows // rows).bit_length() - 1)


def level(costs: Integers, turns: int, group: int, keys: Words, turn_keys: Words) -> Integers:
    """Distributes the rows of a lane over the batches of a superwindow.

    Rows are put in groups of `group`, whose sums of costs differ as little as possible. Groups of like cost share a
    batch, in all lanes. So a cost that cannot be made level (of a document as long as a row) comes to all ranks in the
    same step.

    Args:
        costs: (N,) the cost of each row; N is a multiple of `turns` x `group`.
        turns: number of batches of the superwindow.
        group: rows of a group.
        keys: (N / group,) hashes of the lane, which order the groups of a batch.
        turn_keys: (turns,) hashes that all lanes share, which order the batches.

    Returns:
        (N,) which row comes at each place, batch after batch.
    """
    strata = np.argsort(-costs, kind="stable").reshape(group, -1)
    groups = [strata[0]]
    sums = costs[strata[0]]
    for stratum in strata[1:]:
        # The dearest row of the stratum goes to the group with the least sum.
        placed = np.empty_like(stratum)
        placed[np.argsort(sums, kind="stable")] = stratum
        groups.append(placed)
        sums = sums + costs[placed]
    ranked = np.stack(groups, axis=1)[np.argsort(-sums, kind="stable")].reshape(turns, -1, group)
    inside = np.argsort(keys.reshape(turns, -1), axis=1, kind="stable")
    mixed = np.take_along_axis(ranked, inside[:, :, None], axis=1)
    found: Integers = mixed[np.argsort(turn_keys, kind="stable")].reshape(-1)
    return found


def level_members(costs: Integers, members: Integers, group: int, keys: Words, turn_keys: Words) -> Integers:
    """Does what `level` does in a mix: rows change places with rows of their member, so batches keep all shares.

    Args:
        costs: (N,) the cost of each row; N is a multiple of batches x `group`.
        members: (N,) number of each row's member.
        group: rows of a group.
        keys: (N / group,) hashes of the lane, which order groups of equal sums in a batch.
        turn_keys: (batches,) hashes that all lanes share, which order the batches.

    Returns:
        (N,) which row comes at each place, batch after batch.
    """
    groups = np.arange(len(costs)) // group
    ranks = np.argsort(np.argsort(turn_keys, kind="stable"))[groups * len(turn_keys) // len(keys)]
    sums = np.zeros(len(keys), np.int64)
    found = np.empty(len(costs), np.int64)
    mean = int(costs.sum()) // len(keys)
    kinds = unique(members).tolist()
    # Members that cost most come first: the others fill up what these leave unequal.
    for kind in sorted(kinds, key=lambda kind: -int(costs[members == kind].sum()) // int((members == kind).sum())):
        places = np.flatnonzero(members == kind)
        dearest = places[np.argsort(-costs[places], kind="stable")]
        turn = np.arange(len(places)) - np.searchsorted(groups[places], groups[places])
        for number in range(int(turn.max()) + 1):
            mine = places[turn == number]
            of = groups[mine]
            batch = ranks[mine]
            rows = dearest[: len(mine)]
            dearest = dearest[len(mine) :]
            least = mine[np.lexsort((keys[of], batch, sums[of]))]
            # Rows that make any group cost more than the mean go to the first batches by `ranks`, in all lanes.
            above = int(np.argmin(np.append(sums[groups[least]] + costs[rows] > mean, False)))
            first = mine[np.lexsort((keys[of], sums[of], batch))][:above]
            placed = np.append(first, least[~np.isin(least, first)])
            found[placed] = rows
            sums[groups[placed]] += costs[rows]
    return found
