"""The policy's view of its consumers. Part of `cache_policy`; plain synchronous code."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.cache.policy.quotas import NO_WINDOW, SessionWindow
from streamer.cache.policy.table import ChunkGroup, ChunkTable
from streamer.config import format_bytes
from streamer.errors import CacheFullError


class SessionOpening(msgspec.Struct, frozen=True, eq=False):
    """A session that is to be opened. A consumer of several datasets has one session for each; its epochs are passes.

    Attributes:
        session: any unique name.
        dataset_id: a dataset that was added before.
        open_bytes: most bytes that it has open (between `open` and `release`) at once.
        lookahead_bytes: most bytes that it has in look-ahead beyond those.
        value: fetched bytes that a kept byte of this dataset saves, relative to the consumer's other datasets.
        ahead: chunks that it needs first: those that are local stay, whatever else must be evicted.
        counted: whether the statistics count its needs; they leave out those of peers.
    """

    session: str
    dataset_id: str
    open_bytes: int
    lookahead_bytes: int
    value: float = 1.0
    ahead: NDArray[np.uint32] = msgspec.field(default_factory=lambda: np.empty(0, np.uint32))
    counted: bool = True


class PolicySession(msgspec.Struct):
    """One consumer: its chunks ahead in this epoch, in look-ahead (in order of use) and open, with uses counted by row.

    Attributes:
        value, counted: see `SessionOpening`.
        window: its part of what S is for: most bytes that it has open, without those that are counted of other
            sessions, and in look-ahead. What it has open alone (`open_bytes`) decides whether it fits.
        answered: answered uses among those in look-ahead: each counts once, however often it is asked for.
    """

    name: str
    job: str
    group: ChunkGroup
    open_bytes: int
    window: SessionWindow
    scheduled: NDArray[np.bool_]
    ahead: dict[int, int] = msgspec.field(default_factory=dict)
    open: dict[int, int] = msgspec.field(default_factory=dict)
    answered: dict[int, int] = msgspec.field(default_factory=dict)
    silent: bool = False
    value: float = 1.0
    counted: bool = True

    @classmethod
    def make(cls, job: str, opening: SessionOpening, group: ChunkGroup) -> PolicySession:
        """Makes a session that has not begun an epoch."""
        return cls(
            name=opening.session,
            job=job,
            group=group,
            open_bytes=opening.open_bytes,
            window=SessionWindow(opening.open_bytes, opening.lookahead_bytes),
            scheduled=np.zeros(len(group.rows), np.bool_),
            value=opening.value,
            counted=opening.counted,
        )

    def answer(self, row: int) -> bool:
        """Counts one answered use; False if all of them were answered before."""
        if self.answered.get(row, 0) >= self.ahead.get(row, 0):
            return False
        self.answered[row] = self.answered.get(row, 0) + 1
        return True

    def end_ahead(self, row: int) -> None:
        """Ends the look-ahead of one use, which is open now or was given up."""
        take(self.ahead, row)
        if row in self.answered:
            take(self.answered, row)

    def wake(self, table: ChunkTable) -> None:
        """Protects the look-ahead again when a silent session does something."""
        if self.silent:
            self.silent = False
            for row, count in self.ahead.items():
                table.referenced[row] = table.referenced.get(row, 0) + count

    def end_leases(self, table: ChunkTable) -> None:
        """Ends everything that is open or scheduled."""
        self.set_schedule(table, np.zeros_like(self.scheduled))
        for row, count in self.open.items():
            take(table.open, row, count)

    def set_schedule(self, table: ChunkTable, scheduled: NDArray[np.bool_]) -> None:
        """Replaces the bitmap of the running epoch; chunks that are no longer scheduled become evictable."""
        before = self.group.rows[self.scheduled]
        np.subtract.at(table.scheduled, before, 1)
        np.add.at(table.scheduled, self.group.rows[scheduled], 1)
        self.scheduled = scheduled
        table.queue_evictable_of(before)


def take(counts: dict[int, int], row: int, count: int = 1) -> None:
    """Lowers a count, and removes it at 0."""
    left = counts[row] - count
    if left:
        counts[row] = left
    else:
        del counts[row]


def sum_windows(sessions: Iterable[PolicySession]) -> Mapping[int, SessionWindow]:
    """Returns the bytes that are open and in look-ahead at most, by index of the dataset, none more than that."""
    sums: dict[int, SessionWindow] = {}
    for session in sessions:
        room = session.group.total_bytes
        opened = min(session.window.open_bytes, room)
        ahead = min(session.window.lookahead_bytes, room - opened)
        known = sums.get(session.group.index, NO_WINDOW)
        sums[session.group.index] = SessionWindow(known.open_bytes + opened, known.lookahead_bytes + ahead)
    return sums


def apply_values(sessions: Collection[PolicySession]) -> None:
    """Sets each dataset's value to the maximum over its sessions; without sessions it keeps its last value."""
    for session in sessions:
        session.group.value = 0.0
    for session in sessions:
        session.group.value = max(session.group.value, session.value)


def sum_needs(sessions: Iterable[PolicySession]) -> int:
    """Returns the bytes of the open chunks of all sessions and of one more for each.

    Sessions of one dataset share its chunks: together they never have more than its bytes.
    """
    sums: dict[int, list[int]] = {}
    for one in sessions:
        sums.setdefault(one.group.index, [one.group.total_bytes, 0])[1] += one.open_bytes + one.group.largest_bytes
    return sum(min(bound) for bound in sums.values())


def refuse_if_too_large(sessions: Iterable[PolicySession], opened: Sequence[PolicySession], limit_bytes: int) -> None:
    """Refuses a session if a blocking request could wait for ever: all open chunks and one more each must fit.

    Raises:
        CacheFullError: they do not fit; names the numbers and the settings.
    """
    present = list(sessions)
    others = sum_needs(present)
    wanted = sum_needs([*present, *opened]) - others
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
