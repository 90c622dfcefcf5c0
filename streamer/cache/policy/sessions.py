"""The policy's view of its consumers. Part of `cache_policy`; plain synchronous code."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.cache.policy.table import ChunkTable, Group
from streamer.config import format_bytes
from streamer.errors import CacheFullError


class Session(msgspec.Struct):
    """One consumer: what it has ahead in this epoch, in look-ahead (in order of use) and open; uses counted by row.

    Attributes:
        answered: of the uses in look-ahead, those whose need was answered: each counts once, however often it is asked.
    """

    name: str
    job: str
    group: Group
    open_bytes: int
    lookahead_bytes: int
    scheduled: NDArray[np.bool_]
    ahead: dict[int, int] = msgspec.field(default_factory=dict)
    open: dict[int, int] = msgspec.field(default_factory=dict)
    answered: dict[int, int] = msgspec.field(default_factory=dict)
    silent: bool = False

    @property
    def window_bytes(self) -> int:
        """The most bytes it has open and in look-ahead; never more than its dataset."""
        return min(self.open_bytes + self.lookahead_bytes, self.group.total_bytes)

    def answer(self, row: int) -> bool:
        """Counts one answered use; False: all of them were answered before."""
        if self.answered.get(row, 0) >= self.ahead.get(row, 0):
            return False
        self.answered[row] = self.answered.get(row, 0) + 1
        return True

    def end_ahead(self, row: int) -> None:
        """One use is not ahead any more: it is open, or given up."""
        take(self.ahead, row)
        if row in self.answered:
            take(self.answered, row)

    def wake(self, table: ChunkTable) -> None:
        """A silent session did something: its look-ahead is protected again."""
        if self.silent:
            self.silent = False
            for row, count in self.ahead.items():
                table.referenced[row] = table.referenced.get(row, 0) + count

    def set_scheduled(self, table: ChunkTable, scheduled: NDArray[np.bool_]) -> None:
        """Replaces the bitmap of the running epoch; chunks that are not scheduled any more become evictable."""
        before = self.group.rows[self.scheduled]
        np.subtract.at(table.scheduled, before, 1)
        np.add.at(table.scheduled, self.group.rows[scheduled], 1)
        self.scheduled = scheduled
        table.queue_evictable_of(before)


def take(counts: dict[int, int], row: int, count: int = 1) -> None:
    """Lowers a count; removes it at 0."""
    left = counts[row] - count
    if left:
        counts[row] = left
    else:
        del counts[row]


def refuse_if_too_large(sessions: Iterable[Session], group: Group, open_bytes: int, limit_bytes: int) -> None:
    """The open chunks of all sessions and one more for each must fit: then a blocking request can always be admitted.

    Raises:
        CacheFullError: they do not; names the numbers and the knobs.
    """
    others = sum(one.open_bytes + one.group.largest_bytes for one in sessions)
    wanted = open_bytes + group.largest_bytes
    if others + wanted > limit_bytes:
        raise CacheFullError(
            f"the cache limit of {format_bytes(limit_bytes)} is too small: this session needs"
            f" {format_bytes(wanted)} for its open chunks and one more, other sessions need"
            f" {format_bytes(others)}; raise cache_bytes to at least {format_bytes(others + wanted)},"
            " or lower shuffle_window",
            limit_bytes=limit_bytes,
            wanted_bytes=wanted,
            others_bytes=others,
        )
