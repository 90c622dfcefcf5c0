"""The policy's view of its consumers. Part of `cache_policy`; plain synchronous code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.cache.policy.table import ChunkTable, Group
from streamer.config import format_bytes
from streamer.errors import CacheFullError


class Opening(msgspec.Struct, frozen=True, eq=False):
    """A session that is to be opened. A consumer of several datasets has one session for each, its epochs are passes.

    Attributes:
        session: any unique name.
        dataset_id: added before.
        open_bytes: the most it has open (between `opened` and `release`) at once.
        lookahead_bytes: what it asks for beyond that.
        value: what a kept byte of this dataset saves, beside those of the consumer's other ones.
        ahead: chunks that it will ask for at once: those that are here stay, whatever else must go.
        counted: its needs are in the statistics; those of peers are not.
    """

    session: str
    dataset_id: str
    open_bytes: int
    lookahead_bytes: int
    value: float = 1.0
    ahead: NDArray[np.uint32] = msgspec.field(default_factory=lambda: np.empty(0, np.uint32))
    counted: bool = True


class Session(msgspec.Struct):
    """One consumer: what it has ahead in this epoch, in look-ahead (in order of use) and open; uses counted by row.

    Attributes:
        value, counted: see `Opening`.
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
    value: float = 1.0
    counted: bool = True

    @classmethod
    def of(cls, job: str, opening: Opening, group: Group) -> Session:
        """A session that has begun nothing."""
        sums, scheduled = (opening.open_bytes, opening.lookahead_bytes), np.zeros(len(group.rows), np.bool_)
        return cls(opening.session, job, group, *sums, scheduled, value=opening.value, counted=opening.counted)

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

    def end_leases(self, table: ChunkTable) -> None:
        """Nothing is open or scheduled any more."""
        self.set_scheduled(table, np.zeros_like(self.scheduled))
        for row, count in self.open.items():
            take(table.open, row, count)

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


def windows(sessions: Iterable[Session]) -> Mapping[int, int]:
    """The bytes that are open and in look-ahead at most, by index of the dataset."""
    sums: Counter[int] = Counter()
    for session in sessions:
        sums[session.group.index] += session.window_bytes
    return sums


def apply_values(sessions: Collection[Session]) -> None:
    """A dataset has the largest value that a session gives it; without one the last it had."""
    for session in sessions:
        session.group.value = 0.0
    for session in sessions:
        session.group.value = max(session.group.value, session.value)


def needed(sessions: Iterable[Session]) -> int:
    """The bytes of the open chunks of all sessions and of one more for each."""
    return sum(one.open_bytes + one.group.largest_bytes for one in sessions)


def refuse_if_too_large(sessions: Iterable[Session], opened: Sequence[Session], limit_bytes: int) -> None:
    """The open chunks of all sessions and one more for each must fit: then a blocking request can always be admitted.

    Raises:
        CacheFullError: they do not; names the numbers and the knobs.
    """
    others, wanted = needed(sessions), needed(opened)
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
