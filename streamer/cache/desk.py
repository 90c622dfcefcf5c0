"""Answers the needs of sessions and keeps count of them: the third part of the policy (see `policy` for the rule)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamer.cache.decision import Admit, Answer, Hit, Place, PolicyStatistics, Wait
from streamer.cache.emergency import Queues
from streamer.cache.room import STAGING_CHUNKS, STAGING_MARGIN, Room
from streamer.cache.sessions import Session
from streamer.cache.table import State
from streamer.config import format_bytes
from streamer.errors import CacheError, CacheFullError

# A session with fewer hits than this share of a warm epoch's is cold: its look-ahead may borrow spent chunks. Without
# the loan a cold epoch at f = 0.5 looked 26 chunks ahead of the 48 it asked for; always lending moved 10 % of the
# data between kept and transit in each warm epoch (2,000 chunks, 48 open, 2026-11-20).
COLD_SHARE = 0.7


@dataclass(slots=True)
class _Counters:
    needs: int = 0
    hits: int = 0
    needed_bytes: int = 0
    admitted_bytes: int = 0
    admitted_kept_bytes: int = 0


class Desk:
    """Hit, admit or wait; and which fetches are under way. Owned by one policy; plain synchronous code.

    Args:
        room: bytes and victims.
        sessions: the policy's, by name.
    """

    def __init__(self, room: Room, sessions: Mapping[str, Session]) -> None:
        self._room = room
        self._table = room.table
        self._sessions = sessions
        self._flying: dict[bytes, int] = {}
        self._count = _Counters()

    def answer(self, session: Session, row: int, head: bool) -> Answer:
        """One need of a session.

        Raises:
            CacheFullError: a head of line, and everything on the disk is open.
        """
        answer = self._decide(row, head)
        self._record(row, session, answer)
        return answer

    def landed(self, key: bytes) -> int:
        """The row of a fetch that has ended.

        Raises:
            CacheError: there is none of that key.
        """
        row = self._flying.pop(key, None)
        if row is None:
            raise CacheError(f"chunk {key.hex()} was not admitted, or its fetch has ended already")
        return row

    def queues(self) -> Queues:
        """The look-ahead of each session that is not silent."""
        return [list(one.ahead) for one in self._sessions.values() if not one.silent]

    def statistics(self) -> PolicyStatistics:
        """Bytes by kind now, and counts since the start. O(open chunks)."""
        room, chunks = self._room, self._room.chunks
        return PolicyStatistics(
            limit_bytes=room.limit_bytes,
            staging_bytes=room.staging_bytes,
            kept_bytes=room.kept_bytes,
            transit_bytes=room.transit_bytes,
            open_bytes=self._open_bytes(),
            kept_chunks=chunks[State.KEPT],
            transit_chunks=chunks[State.TRANSIT],
            fetching_chunks=chunks[State.FETCHING_KEPT] + chunks[State.FETCHING_TRANSIT],
            sessions=len(self._sessions),
            evicted_chunks=room.evicted,
            promoted_chunks=room.promoted,
            due_evicted_chunks=room.due_evicted,
            **{name: getattr(self._count, name) for name in _Counters.__slots__},
        )

    def _open_bytes(self) -> int:
        return sum(int(self._table.cost[row]) for row in self._table.open)

    def _decide(self, row: int, head: bool) -> Answer:
        key = self._table.key(row)
        state = self._table.state[row]
        if self._table.is_local(row):
            return Hit(key)
        if state != State.ABSENT:
            return Wait(key, fetching=True)
        granted = self._room.admit(row, self._loan_bytes)
        if granted is None and head:
            granted = self._room.force(row, self.queues())
            self._refuse_if_stuck(granted is None)
        if granted is None:
            return Wait(key, fetching=False)
        self._flying[key] = row
        place = Place.KEPT if granted[0] == State.FETCHING_KEPT else Place.TRANSIT
        return Admit(key, place, tuple(map(self._table.key, granted[1])))

    def _refuse_if_stuck(self, refused: bool) -> None:
        """A refused head may wait for fetches, other heads and the clients of an earlier engine, not for ever."""
        room = self._room
        fetching = room.chunks[State.FETCHING_KEPT] + room.chunks[State.FETCHING_TRANSIT]
        if not refused or fetching or room.settling:
            return
        opened = self._open_bytes()
        raise CacheFullError(
            f"no room for the next chunk: of the cache limit of {format_bytes(room.limit_bytes)},"
            f" {format_bytes(opened)} are open in {len(self._sessions)} sessions; raise cache_bytes"
            " or lower shuffle_window",
            limit_bytes=room.limit_bytes,
            open_bytes=opened,
            sessions=len(self._sessions),
        )

    def _record(self, row: int, session: Session, answer: Answer) -> None:
        cost = int(self._table.cost[row])
        if isinstance(answer, Admit):
            self._count.admitted_bytes += cost
            self._count.admitted_kept_bytes += cost if answer.place is Place.KEPT else 0
        if (isinstance(answer, Wait) and not answer.fetching) or not session.answer(row):
            return
        self._count.needs += 1
        self._count.needed_bytes += cost
        self._count.hits += not isinstance(answer, Admit)
        session.miss(isinstance(answer, Admit))

    def _loan_bytes(self) -> int:
        """What transit may grow to while more is missing than in a warm epoch: S with the measured share of misses."""
        windows = [(self._missing(one), one.window_bytes) for one in self._sessions.values()]
        largest = max(one.group.largest_bytes for one in self._sessions.values())
        return int(STAGING_MARGIN * sum(share * window for share, window in windows)) + STAGING_CHUNKS * largest

    def _missing(self, session: Session) -> float:
        """Its share of misses: as measured while that is far from a warm epoch's, else 0 (S is made for those)."""
        return session.missing if 1.0 - session.missing < COLD_SHARE * self._room.warm_share else 0.0
