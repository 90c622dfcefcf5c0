"""Keeps what each session of the cache policy has ahead and open, and whether all sessions fit. Plain synchronous code.

`cache_policy.py` keeps the sessions. `engine/session.py`, `peers/serving.py` and `tools/planning/simulate.py` make the
openings.
"""

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
    """A session that is to be opened. A consumer of several datasets has one for each.

    An epoch of such a session is one pass over its dataset.

    Attributes:
        session: a unique name.
        dataset_id: digest of a dataset that was added before.
        open_bytes: maximum number of bytes that it has open (between `open` and `release`) at once.
        lookahead_bytes: maximum number of bytes that it has in look-ahead beyond those.
        value: fetched bytes that a kept byte of this dataset saves, relative to the consumer's other datasets.
        ahead: numbers of the chunks that it needs first, which count as scheduled from the start.
        counted: whether the statistics count its needs. They leave out those of peers.
    """

    session: str
    dataset_id: str
    open_bytes: int
    lookahead_bytes: int
    value: float = 1.0
    ahead: NDArray[np.uint32] = msgspec.field(default_factory=lambda: np.empty(0, np.uint32))
    counted: bool = True


class PolicySession(msgspec.Struct):
    """One session of the policy: one consumer of one dataset. A row is a chunk's row in `ChunkTable`.

    Attributes:
        open_bytes: maximum number of bytes that it has open at once, which, with one more chunk, decide whether the
            session fits.
        scheduled: (chunks,) whether each chunk of the dataset is still ahead in the running epoch.
        ahead: number of uses in look-ahead, by row, in order of the first use.
        open: number of open uses, by row.
        silent: whether it hangs. Its look-ahead is not protected then, until its next call.
        job: name of the job that the session belongs to.
        group: chunks of its dataset.
        name: unique name of the session.
        value, counted: see `SessionOpening`.
        window: what it adds to the transit part (S in `cache_policy.py`): the maximum of its open bytes, less those
            that are counted with other sessions, and the maximum of its bytes in look-ahead.
        answered: number of uses in look-ahead that the statistics have counted already, by row.
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
        """Makes a session of a job on a dataset, which has not begun an epoch."""
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
        """Counts one use of a chunk in look-ahead as answered; returns False if all its uses were counted before."""
        if self.answered.get(row, 0) >= self.ahead.get(row, 0):
            return False
        self.answered[row] = self.answered.get(row, 0) + 1
        return True

    def end_ahead(self, row: int) -> None:
        """Takes one use of a chunk out of the look-ahead: it is open now, or was given up."""
        take(self.ahead, row)
        if row in self.answered:
            take(self.answered, row)

    def wake(self, table: ChunkTable) -> None:
        """References the look-ahead of a silent session again, which is silent no more; else does nothing."""
        if self.silent:
            self.silent = False
            for row, count in self.ahead.items():
                table.referenced[row] = table.referenced.get(row, 0) + count

    def end_leases(self, table: ChunkTable) -> None:
        """Takes its open and scheduled chunks out of the table's counts at its end; the caller ends the references."""
        self.set_schedule(table, np.zeros_like(self.scheduled))
        for row, count in self.open.items():
            take(table.open, row, count)

    def set_schedule(self, table: ChunkTable, scheduled: NDArray[np.bool_]) -> None:
        """Replaces `scheduled`, and queues the chunks that become evictable by that.

        Args:
            table: the table of the policy, whose counts change.
            scheduled: whether each chunk of the dataset is still ahead in the running epoch, (chunks,).
        """
        before = self.group.rows[self.scheduled]
        np.subtract.at(table.scheduled, before, 1)
        np.add.at(table.scheduled, self.group.rows[scheduled], 1)
        self.scheduled = scheduled
        table.queue_evictable_of(before)


def take(counts: dict[int, int], row: int, count: int = 1) -> None:
    """Lowers the count of a row, and removes the row at 0; raises KeyError if it has no count."""
    left = counts[row] - count
    if left:
        counts[row] = left
    else:
        del counts[row]


def sum_windows(sessions: Iterable[PolicySession]) -> Mapping[int, SessionWindow]:
    """Returns the sums of the windows by index of the dataset.

    Each session counts at most the bytes of its dataset that are in no read-only layer.
    """
    sums: dict[int, SessionWindow] = {}
    for session in sessions:
        room = session.group.total_bytes
        opened = min(session.window.open_bytes, room)
        ahead = min(session.window.lookahead_bytes, room - opened)
        known = sums.get(session.group.index, NO_WINDOW)
        sums[session.group.index] = SessionWindow(known.open_bytes + opened, known.lookahead_bytes + ahead)
    return sums


def apply_values(sessions: Collection[PolicySession]) -> None:
    """Sets the value of each dataset to the highest among its sessions; one without sessions keeps its last value."""
    for session in sessions:
        session.group.value = 0.0
    for session in sessions:
        session.group.value = max(session.group.value, session.value)


def sum_needs(sessions: Iterable[PolicySession]) -> int:
    """Returns how many bytes the open chunks of all sessions can take at most, with one more chunk for each session.

    Sessions of one dataset share its chunks. So together they count at most its bytes that are in no read-only layer.
    """
    sums: dict[int, list[int]] = {}
    for one in sessions:
        sums.setdefault(one.group.index, [one.group.total_bytes, 0])[1] += one.open_bytes + one.group.largest_bytes
    return sum(min(bound) for bound in sums.values())


def refuse_if_too_large(sessions: Iterable[PolicySession], opened: Sequence[PolicySession], limit_bytes: int) -> None:
    """Refuses sessions with which a blocking request could wait for ever: all open chunks and one more each must fit.

    Args:
        sessions: sessions that are open already.
        opened: sessions that are to be opened.
        limit_bytes: bytes that must suffice for all.

    Raises:
        CacheFullError: they do not suffice. The text names the numbers and the settings.
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
