"""Equal cost per rank: which rows of a lane share a batch, chosen among those that come at about the same time.

The rows of one lane change places inside a superwindow, a power of two of consecutive batches. Nothing of another lane
enters, and nothing of the number of ranks: lanes stay with their nodes, and batches stay elastic.
"""

from __future__ import annotations

from math import gcd

import msgspec
import numpy as np

from streamer.base.sorting import unique
from streamer.errors import ConfigError
from streamer.order.hashing import Integers, Words

# Rows of a superwindow in a lane: with 128, 256, 512, 1,024 the dearest of 64 ranks with 4 rows of 8,192 tokens each
# costs 1.3, 0.9, 0.6, 0.5 % more than the mean (2026-11-24).
MOST_ROWS = 1024


class BalanceSpec(msgspec.Struct, frozen=True):
    """The parts that decide which rows share a batch.

    Attributes:
        rows: rows of a rank and step that are made level together.
        linear, quadratic: cost of a document of n tokens: linear x n + quadratic x n**2.
        batch: B, rows of the global batch that it is made for.
        lengths: identity of the measured lengths of samples that are not packed; left out of the parts where empty.

    Raises:
        ConfigError: a part outside of these rules.
    """

    rows: int
    linear: int
    quadratic: int
    batch: int
    lengths: str = ""

    def __post_init__(self) -> None:
        if self.rows < 1 or self.batch < 1:
            raise ConfigError(f"Balance: rows_per_rank={self.rows} must be at least 1", field="rows_per_rank")
        # So that the cost of a superwindow of the longest rows stays below 2**62.
        if not (0 <= self.linear < 1 << 24 and 0 <= self.quadratic < 1 << 4 and self.linear + self.quadratic):
            raise ConfigError(
                f"Balance: coefficients=({self.linear}, {self.quadratic}) must be two whole numbers, the first below "
                "2**24, the second below 16, not both 0",
                field="coefficients",
            )

    def count_units(self, batch_size: int) -> int:
        """Returns the units of a batch of which each is of one lane: rows that are made level together."""
        return batch_size // gcd(self.rows, batch_size)

    def check_lanes(self, lanes: int, batch_size: int) -> None:
        """Makes sure that lanes divide a global batch.

        Raises:
            ConfigError: they do not.
        """
        check_lanes("balance=", lanes, batch_size)

    def resize(self, batch_size: int) -> BalanceSpec:
        """Returns the same for another global batch."""
        return msgspec.structs.replace(self, batch=batch_size)

    def parts(self) -> dict[str, str | int]:
        """Returns the parts by the names that messages use."""
        parts = {f"balance.{name}": getattr(self, name) for name in self.__struct_fields__}
        return parts if self.lengths else {name: value for name, value in parts.items() if name != "balance.lengths"}


class NoLevel:
    """The level of an order in which nothing is made level."""

    def count_units(self, batch_size: int) -> int:
        """Returns the units of a batch of which each is of one lane: its samples."""
        return batch_size

    def check_lanes(self, lanes: int, batch_size: int) -> None:
        """Takes any lanes."""

    def resize(self, batch_size: int) -> msgspec.UnsetType:
        """Returns `UNSET`, with which a spec leaves the part out."""
        return msgspec.UNSET

    def parts(self) -> dict[str, str | int]:
        """Returns no parts."""
        return {}


def level_of(stored: BalanceSpec | msgspec.UnsetType) -> BalanceSpec | NoLevel:
    """Returns the level of a spec: its `BalanceSpec`, or `NoLevel` where the spec leaves the part out (`UNSET`)."""
    return NoLevel() if isinstance(stored, msgspec.UnsetType) else stored


def check_lanes(what: str, lanes: int, batch_size: int) -> None:
    """Makes sure that lanes divide the global batch, for what needs that.

    Raises:
        ConfigError: they do not.
    """
    if batch_size % lanes:
        raise ConfigError(
            f"{what} needs lanes that divide the global batch: {lanes} do not divide {batch_size}", field="lanes"
        )


def superwindow(rows: int, max_rows: int) -> int:
    """Returns T, the batches that are made level together: the largest power of two with at most `max_rows` rows.

    Args:
        rows: Rows of a lane in a batch.
        max_rows: Rows of a superwindow in a lane; at least one batch is taken.
    """
    return 1 << max(0, (max_rows // rows).bit_length() - 1)


def level(costs: Integers, turns: int, group: int, keys: Words, turn_keys: Words) -> Integers:
    """Distributes the rows of a lane over the batches of a superwindow.

    Groups of `group` rows are made level as far as possible. Groups of like cost share a batch, in all lanes, so that
    what cannot be made level (a document as long as a row) comes to all ranks in the same step.

    Args:
        costs: (N,) the cost of each row; N is a multiple of `turns` x `group`.
        turns: number of batches of the superwindow.
        group: rows that are made level together.
        keys: (N / group,) hashes of the lane, which place groups inside of a batch.
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
    """Does the same as `level` in a mix: rows change places with rows of their own member, so batches keep its shares.

    Args:
        costs: (N,) the cost of each row; N is a multiple of batches x `group`.
        members: (N,) number of the member in each place.
        group: rows that are made level together.
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
            # Rows that make any group too dear are in the first batches of that order, in all lanes.
            above = int(np.argmin(np.append(sums[groups[least]] + costs[rows] > mean, False)))
            first = mine[np.lexsort((keys[of], sums[of], batch))][:above]
            placed = np.append(first, least[~np.isin(least, first)])
            found[placed] = rows
            sums[groups[placed]] += costs[rows]
    return found
