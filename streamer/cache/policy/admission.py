"""Answers the needs of sessions for chunks (hit, fetch it, or wait), and counts them.

`cache_policy.py` uses it and has the rule by which chunks are admitted.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from streamer.cache.policy.answers import Admit, Answer, CachePart, Hit, PolicyStatistics, Wait
from streamer.cache.policy.partitions import Partitions
from streamer.cache.policy.sessions import PolicySession
from streamer.cache.policy.table import ChunkState
from streamer.cache.policy.victims import Queues
from streamer.config import format_bytes
from streamer.errors import CacheError, CacheFullError


class _Counters(msgspec.Struct):
    needs: int = 0
    hits: int = 0
    needed_bytes: int = 0
    admitted_bytes: int = 0
    admitted_kept_bytes: int = 0


class ChunkAdmission:
    """Decides hit, admit or wait, and knows the running fetches. One policy has it. Plain synchronous code.

    Args:
        partitions: the parts of the cache, which admit chunks and evict others.
        sessions: the policy's sessions by name, a mapping that the policy changes.
    """

    def __init__(self, partitions: Partitions, sessions: Mapping[str, PolicySession]) -> None:
        self._partitions = partitions
        self._table = partitions.table
        self._sessions = sessions
        self._fetching: dict[bytes, int] = {}
        self._count = _Counters()

    def answer(self, session: PolicySession, row: int, blocking: bool) -> Answer:
        """Answers one need of a session for a chunk, and counts the answer.

        If the answer is Admit, the chunk counts as being fetched from here on, and its victims are evicted.

        Args:
            session: the session that needs the chunk.
            row: row of the chunk.
            blocking: whether the session cannot continue without it.

        Raises:
            CacheFullError: the request is blocking and would wait for ever: too little can be evicted for it, no fetch
                is running, and the policy does not settle.
        """
        answer = self._decide(row, blocking)
        self._record(row, session, answer)
        return answer

    def end_fetch(self, key: bytes) -> int:
        """Forgets the running fetch of a chunk; returns the row of the chunk.

        Raises:
            CacheError: no fetch of that key is running.
        """
        row = self._fetching.pop(key, None)
        if row is None:
            raise CacheError(f"chunk {key.hex()} was not admitted, or its fetch has ended already")
        return row

    def queues(self) -> Queues:
        """Returns the rows in look-ahead of each session that is not silent, in order of use."""
        return [list(one.ahead) for one in self._sessions.values() if not one.silent]

    def statistics(self) -> PolicyStatistics:
        """Returns the bytes of each part now, and counts since the start. O(open chunks)."""
        partitions = self._partitions
        chunks = self._partitions.chunks
        return PolicyStatistics(
            limit_bytes=partitions.limit_bytes,
            staging_bytes=partitions.staging_bytes,
            kept_bytes=partitions.kept_bytes,
            transit_bytes=partitions.transit_bytes,
            open_bytes=self._open_bytes(),
            kept_chunks=chunks[ChunkState.KEPT],
            transit_chunks=chunks[ChunkState.TRANSIT],
            fetching_chunks=chunks[ChunkState.FETCHING_KEPT] + chunks[ChunkState.FETCHING_TRANSIT],
            sessions=len(self._sessions),
            evicted_chunks=partitions.evicted,
            promoted_chunks=partitions.promoted,
            scheduled_evicted_chunks=partitions.scheduled_evicted,
            **msgspec.structs.asdict(self._count),
        )

    def _open_bytes(self) -> int:
        return sum(int(self._table.cost[row]) for row in self._table.open)

    def _decide(self, row: int, blocking: bool) -> Answer:
        """Returns the answer; admits the chunk where there is space. Raises as `answer`."""
        key = self._table.key(row)
        state = self._table.state[row]
        if self._table.is_local(row):
            return Hit(key)
        if state != ChunkState.ABSENT:
            return Wait(key, fetching=True)
        granted = self._partitions.admit(row)
        if granted is None and blocking:
            granted = self._partitions.force(row, self.queues())
            self._refuse_if_stuck(granted is None)
        if granted is None:
            return Wait(key, fetching=False)
        self._fetching[key] = row
        place = CachePart.KEPT if granted[0] == ChunkState.FETCHING_KEPT else CachePart.TRANSIT
        return Admit(key, place, tuple(map(self._table.key, granted[1])))

    def _refuse_if_stuck(self, refused: bool) -> None:
        """Raises if a refused blocking request would wait for ever.

        It may wait for running fetches, and for clients of an earlier engine to reconnect.
        """
        partitions = self._partitions
        fetching = partitions.chunks[ChunkState.FETCHING_KEPT] + partitions.chunks[ChunkState.FETCHING_TRANSIT]
        if not refused or fetching or partitions.settling:
            return
        opened = self._open_bytes()
        raise CacheFullError(
            f"no room for the next chunk: of the cache limit of {format_bytes(partitions.limit_bytes)},"
            f" {format_bytes(opened)} are open in {len(self._sessions)} sessions; raise cache_bytes"
            " or lower shuffle_window",
            limit_bytes=partitions.limit_bytes,
            open_bytes=opened,
            sessions=len(self._sessions),
        )

    def _record(self, row: int, session: PolicySession, answer: Answer) -> None:
        """Counts the bytes of each Admit, and each use once: at its first answer that does not lack space."""
        if not session.counted:
            return
        cost = int(self._table.cost[row])
        if isinstance(answer, Admit):
            self._count.admitted_bytes += cost
            self._count.admitted_kept_bytes += cost if answer.place is CachePart.KEPT else 0
        if (isinstance(answer, Wait) and not answer.fetching) or not session.answer(row):
            return
        self._count.needs += 1
        self._count.needed_bytes += cost
        self._count.hits += not isinstance(answer, Admit)
