"""Decides for the engine which chunks stay on the SSD: a pure, synchronous state machine. No I/O, no clock, no asyncio.

The rule. `C` is the limit in bytes, everything counted. *Kept* chunks survive their use and take at most `C - S`;
*transit* chunks (misses in flight, waiting or open) take `S`; both together never exceed `C`. A chunk is *scheduled*
while a live session still has it ahead in its running epoch, *referenced* while a session has it open or in look-ahead,
*evictable* when it is kept and neither. *Selected* are, of each live dataset, the chunks with the highest ranks (a rank
is a hash of the key) that fit into its quota of `C - S`, known before the first epoch. For a dataset of D bytes, of
which w are open or in look-ahead, `S = 1.1 (1 - f) w + 2 chunks` with `f = min(1, C/D)`, or the mean of the misses and
two deviations, `(1 - f) w + 2 sqrt(f (1 - f) w chunk)`, where that is more. The engine may measure that `need` bytes on
their way keep the link busy (its rate times its delay). What S has beyond the mean of the misses is their margin. Then
S is at most the sum `(1 - f) o + hypot(need, margin(o))`, for the o bytes that are open.

Why this is optimal for one dataset. In an epoch each chunk of its D bytes is needed exactly once. (`quotas.py` has the
rule for several datasets: how they share the kept part, and S. What follows then holds for each of them and its quota.)

1. *No policy exceeds C/D.* A hit in epoch e+1 is on a chunk that was not fetched for this use, so it has been in the
   cache since its use in epoch e, hence at the moment between the epochs. At most C bytes are there. This holds for
   every order, even one that is known in advance; so knowing the seed buys prefetching, never hits.
2. *This rule gets (C - S)/D.* Once the kept part is full, only a blocking request can shrink it: a kept chunk is
   evicted only when it is evictable, and only for a chunk that takes its place (same bytes). Evictable means: used in
   this epoch, or not needed in it. (There are three exceptions. A kept chunk that is not selected, not scheduled, and
   referenced is moved to transit by a flag, and unlinked after the use for which it is referenced. Among engines that
   share their caches, a chunk whose home is elsewhere leaves for one whose home is here. And in a pool an unselected
   chunk leaves for a selected one that saves twice as much: at the start of a join, which uses the chunks of one side
   many times, the cache is full of the other side.) So every chunk that is kept when the epoch begins is still there
   at its use, and each such use is a hit: C - S bytes of D. The look-ahead may extend past the end of the epoch: it
   protects chunks (referenced), it never evicts a kept one.
3. *The hits are spread evenly, and what stays is written once.* While there is room, every fetched chunk is kept (a
   restarted job finds it). Then a selected chunk is kept from its fetch on, in place of an evictable one that is not
   selected, and the others pass through transit. After one epoch the kept set is the selected one, the top of the
   ranks. Ranks do not depend on the order, so the kept set is a uniform sample of the data: any window of an epoch hits
   at the same rate, and no kept chunk is written again. (If the chunks of the next uses were kept, all hits would be in
   the first part f of the epoch, and the link too slow for the rest.) A selected chunk for which nothing can be evicted
   yet passes through transit, and is promoted at its release, in place of what is evictable then.
   A cold epoch looks as far ahead as a warm one: the misses are all of the window, but a share f of them is selected
   and goes to kept; S is sized for the rest, (1 - f) w. If the need of the link makes S smaller, misses that S has no
   room for evict kept chunks that are not selected, which would leave anyway; they evict no selected one. If one of two
   live datasets does not fill its quota, the other may have chunks beyond its own. These are replaced by chunks of
   higher rank as they pass, and so are a uniform sample, too.
4. *Some session can always progress.* Open chunks of all sessions plus one chunk for each fit into C (`open_session`
   refuses otherwise). So when a blocking request finds no room, not all of C is open: either a running fetch ends
   (`Wait`, then ask again), or a chunk that is not open is evicted. Chunks that *other sessions* need later do not
   occupy transit: two jobs at different places of one dataset would otherwise each wait for what the other keeps.

How the engine (`engine/engine.py`, `engine/scheduler.py`) drives it, on one loop, with calls of some microseconds:

    policy = CachePolicy(limits, settling=True)
    policy.local(keys, file_bytes, dataset_id) per dataset in the catalog; unlink policy.fit().victims
    policy.add_dataset(id, file_bytes, keys);  policy.connect(job) ... policy.disconnect(job)
    policy.open_session(sid, job, id, open_bytes, lookahead_bytes);  policy.start_epoch(sid, remaining_chunks)
    (of a consumer with several datasets: open_sessions(job, ...), one for each; its epochs are passes over the dataset)
    policy.set_windows(...) when sessions that share chunks have come or gone, or another need of the link is measured
    for each use in schedule order: look_ahead(sid, chunk); need(sid, chunk, blocking=...)
        Hit -> nothing;  Wait -> ask again on change
        Admit -> unlink victims, fetch, resize(key, file_bytes), write the file, then publish(key) or drop_fetch(key)
    open(sid, chunk) when the reader may open the file (its lease begins);  release(sid, chunk) when it is done
    policy.close_session(*sids);  policy.silence(sid) for a hanging one;  policy.settle() some seconds after the start

Every call that returns `Freed` (or an `Admit` with victims) obliges the caller to unlink those files.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from streamer.base.sorting import unique
from streamer.cache.policy.admission import ChunkAdmission
from streamer.cache.policy.answers import Answer, CacheLimits, Freed, PolicyStatistics
from streamer.cache.policy.partitions import Outcome, Partitions
from streamer.cache.policy.quotas import SessionWindow, hit_bound, join_pools
from streamer.cache.policy.sessions import (
    PolicySession,
    SessionOpening,
    apply_values,
    refuse_if_too_large,
    sum_needs,
    sum_windows,
    take,
)
from streamer.cache.policy.table import VACANT, ArrangedKeys, ChunkState, Places, to_keys
from streamer.config import format_bytes
from streamer.errors import CacheError


class CachePolicy:
    """Decides which chunks are fetched, to which part, and which are evicted. The engine has one, used on its loop.

    Methods raise KeyError for a session that is not open.

    Args:
        limit: C in bytes, or all limits if other programs may fill the disk.
        settling: whether to evict nothing until `settle()`: an earlier engine's clients are reopening their sessions.
    """

    def __init__(self, limit: CacheLimits | int, *, settling: bool = False) -> None:
        self._partitions = Partitions(CacheLimits.make(limit))
        self._partitions.settling = settling
        self._table = self._partitions.table
        self._sessions: dict[str, PolicySession] = {}
        self._jobs: dict[str, int] = {}
        self._admission = ChunkAdmission(self._partitions, self._sessions)

    def __repr__(self) -> str:
        sums = self._partitions.kept_bytes, self._partitions.transit_bytes, self.limit_bytes
        kept, transit, limit = map(format_bytes, sums)
        return f"CachePolicy(kept {kept} + transit {transit} of {limit}, {len(self._sessions)} sessions)"

    # --- what exists -----------------------------------------------------------------------------------------

    def local(self, keys: ArrayLike, file_bytes: ArrayLike, dataset_id: str) -> None:
        """Adds chunks that are on disk: at the start, or from an index. They count as kept. Call `fit()` afterwards.

        Args:
            keys: list of 16 bytes each, or array of (M, 16) uint8, S16 or V16.
            file_bytes: length of each file.
            dataset_id: their dataset according to the catalog. The dataset that is unused for longest comes first.
        """
        group = self._table.group(dataset_id)
        self._partitions.end_use(group)
        rows = unique(self._table.rows_of(keys, file_bytes, group))
        for row in rows[self._table.state[rows] == ChunkState.ABSENT].tolist():
            self._partitions.enter(row, ChunkState.KEPT)
            self._table.queue_evictable(row)

    def below(self, keys: ArrayLike) -> None:
        """Adds chunks of a read-only layer at the start. They are always hits and cost nothing."""
        rows = self._table.rows_of(keys, np.zeros(len(to_keys(keys)), np.int64), self._table.group(""))
        self._table.state[rows[self._table.state[rows] == ChunkState.ABSENT]] = ChunkState.BELOW

    def fit(self) -> Freed:
        """Evicts chunks as `Partitions.shrink` does, so that the limit is kept; also while settling."""
        outcome = Outcome()
        self._partitions.shrink(self._admission.queues(), outcome)
        return self._partitions.translate(outcome)

    def settle(self) -> Freed:
        """Ends settling: evicts as usual from here on, as clients of an earlier engine have had time to reconnect."""
        self._partitions.settling = False
        return self._make_room(Outcome())

    @property
    def limit_bytes(self) -> int:
        """C, the limit in bytes."""
        return self._partitions.limit_bytes

    @property
    def is_full(self) -> bool:
        """Whether the kept part has no room for another chunk, so that S decides how much stays."""
        return self._partitions.is_full

    def set_limit(self, limit: CacheLimits | int) -> Freed:
        """Sets other limits, because a manifest was added or the disk fills up; may evict chunks that are not open."""
        self._partitions.limits = CacheLimits.make(limit)
        self._plan()
        return self._make_room(Outcome())

    def add_dataset(self, dataset_id: str, file_bytes: ArrayLike, keys: ArrayLike) -> None:
        """Adds one dataset by its id, lengths of files and keys, as `add_datasets` does."""
        self.add_datasets([(dataset_id, file_bytes, keys)])

    def knows(self, dataset_id: str) -> bool:
        """Whether a dataset was added by `add_datasets`; those known only from the catalog do not count."""
        return any(group.name == dataset_id and len(group.rows) > 0 for group in self._table.groups)

    def add_datasets(
        self, datasets: Sequence[tuple[str, ArrayLike, ArrayLike]], arranged: ArrangedKeys | None = None
    ) -> None:
        """Adds the datasets that are not known yet; a chunk whose key another dataset has, too, is shared with it.

        Args:
            datasets: digest of each manifest, lengths of its chunks' files as far as they are known
                (`chunkfile.file_bytes`), and keys of its chunks, as `local` takes them.
            arranged: result of `table.arrange_keys` for the keys, if it is known. Only with one dataset.
        """
        found = {name: (self._table.group(name), lengths, to_keys(keys)) for name, lengths, keys in datasets}
        self._table.add_rows([new for new in found.values() if not len(new[0].rows)], arranged)

    def forget_datasets(self, known: Container[str]) -> list[str]:
        """Drops datasets that are no longer `known` and that no session uses, but not their chunks.

        This includes datasets of live jobs: otherwise a job that moved to a new version would share its quota with all
        the old ones. The chunks then have no owner, and are evicted first.

        Returns:
            The ids of the dropped datasets.
        """
        busy = {session.group.index for session in self._sessions.values()}
        gone = [
            group
            for group in self._table.groups
            if group.name not in ("", VACANT) and group.name not in known and group.index not in busy
        ]
        if gone:
            self._partitions.disown(gone)
            self._plan()
        return [group.name for group in gone]

    def live_bytes(self, dataset_ids: Container[str]) -> int:
        """Returns the bytes of these datasets and of all datasets of live jobs."""
        return sum(group.total_bytes for group in self._table.groups if group.jobs or group.name in dataset_ids)

    def hit_bound(self, dataset_ids: Container[str]) -> float:
        """Returns the highest hit rate, by bytes, that the quotas of these datasets allow; 0 if they need nothing."""
        return hit_bound([group for group in self._table.groups if group.name in dataset_ids])

    def is_local(self, key: bytes) -> bool:
        """Whether the chunk is readable on this machine now."""
        row = self._table.find(key)
        return row is not None and self._table.is_local(row)

    def is_selected(self, key: bytes) -> bool:
        """Whether the chunk is among those that fit into the quota of a live dataset, and so stays once it is local."""
        row = self._table.find(key)
        return row is not None and self._table.is_selected(row)

    def place(self, places: Places | None) -> Freed:
        """Ranks chunks by their place among this engine's peers, or without peers if `places` is None. O(chunks)."""
        self._table.place(places)
        self._plan()
        return self._make_room(Outcome())

    def forget(self, key: bytes) -> bool:
        """Drops a chunk whose file is wrong or gone, even if it is open; sessions that use it must `need` it again.

        Returns:
            Whether the chunk was local. The caller unlinks its file, if it exists.
        """
        row = self._table.find(key)
        if row is None or not self._table.is_local(row):
            return False
        self._partitions.leave(row)
        return True

    # --- sessions --------------------------------------------------------------------------------------------

    def connect(self, job: str) -> None:
        """Notes a new connection of the job: its datasets count as live while it has a connection or a session."""
        self._jobs[job] = self._jobs.get(job, 0) + 1

    def disconnect(self, job: str) -> None:
        """Notes the end of a connection of the job, whose sessions are closed before."""
        self._jobs[job] -= 1
        if self._jobs[job]:
            return
        del self._jobs[job]
        self._partitions.end_job(job)
        self._plan()

    def open_session(self, session: str, job: str, dataset_id: str, open_bytes: int, lookahead_bytes: int) -> Freed:
        """Opens a session: one consumer of one dataset (see `SessionOpening`), whose bytes count in S.

        Sessions and connections with the same `job` belong together: their datasets are live until all have ended.

        Raises:
            CacheFullError: the open chunks of all sessions plus one each do not fit into the limit; nothing has
                changed.
            CacheError: the dataset is unknown, or the name is taken.
        """
        return self.open_sessions(job, [SessionOpening(session, dataset_id, open_bytes, lookahead_bytes)])

    def open_sessions(self, job: str, openings: Sequence[SessionOpening]) -> Freed:
        """Opens all sessions of a consumer of several datasets, or none of them; raises as `open_session` does."""
        opened = [PolicySession.make(job, one, self._table.group(one.dataset_id)) for one in openings]
        for session in opened:
            if session.name in self._sessions or not len(session.group.rows):
                raise CacheError(f"session {session.name!r}: name taken, or dataset {session.group.name} not added")
        refuse_if_too_large(self._sessions.values(), opened, self._partitions.limits.max_bytes)
        newly = any(job not in session.group.jobs for session in opened)
        for session, opening in zip(opened, openings, strict=True):
            self.connect(job)
            self._sessions[session.name] = session
            session.group.jobs.add(job)
            self.start_epoch(session.name, opening.ahead)
        if newly:
            self._partitions.adopt()
        join_pools(self._table.groups, [session.group for session in opened])
        self._plan()
        return self._make_room(Outcome())

    def set_windows(self, windows: Mapping[str, SessionWindow], link_bytes: int | None) -> Freed:
        """Sets the windows of sessions, from which S follows, and the need of the link.

        A chunk that several sessions have open counts in the window of one. Whether the sessions fit is not decided
        anew: the `open_bytes` of each stay.

        Args:
            windows: the window of each session, by its name.
            link_bytes: bytes that the link needs on their way for misses in look-ahead. None means that all get room.
        """
        self._partitions.link_bytes = link_bytes
        for session, window in windows.items():
            self._sessions[session].window = window
        self._plan()
        return self._make_room(Outcome())

    def set_values(self, values: Mapping[str, float]) -> Freed:
        """Sets new values of sessions, by name, from which new quotas follow; may evict chunks."""
        for session, value in values.items():
            self._sessions[session].value = value
        self._plan()
        return self._make_room(Outcome())

    def close_session(self, *sessions: str) -> Freed:
        """Closes sessions and releases their chunks, which stay if there is space; ignores unknown names."""
        outcome = Outcome()
        closed = [gone for name in sessions if (gone := self._sessions.pop(name, None)) is not None]
        if not closed:
            return Freed()
        for gone in closed:
            gone.end_leases(self._table)
            self.disconnect(gone.job)
        self._plan()  # first: its transit chunks may stay in the space that was set aside for it
        for gone in closed:
            self._unreference(gone.open, outcome)
            if not gone.silent:
                self._unreference(gone.ahead, outcome)
        return self._make_room(outcome)

    def start_epoch(self, session: str, remaining: ArrayLike) -> None:
        """Sets the session's running epoch: the numbers of the chunks that are still ahead in it."""
        state = self._sessions[session]
        scheduled = np.zeros_like(state.scheduled)
        scheduled[np.asarray(remaining, dtype=np.int64)] = True
        state.set_schedule(self._table, scheduled)

    def silence(self, session: str) -> Freed:
        """Marks a session as hanging until its next call: only its open chunks remain protected."""
        state = self._sessions[session]
        outcome = Outcome()
        if not state.silent:
            state.silent = True
            self._unreference(state.ahead, outcome)
        return self._make_room(outcome)

    # --- one use ---------------------------------------------------------------------------------------------

    def look_ahead(self, session: str, chunk: int) -> None:
        """References a chunk that the session will use soon, until `release`. Call it once per use, in order of use."""
        state = self._wake(session)
        row = int(state.group.rows[chunk])
        state.ahead[row] = state.ahead.get(row, 0) + 1
        self._table.referenced[row] = self._table.referenced.get(row, 0) + 1

    def need(self, session: str, chunk: int, *, blocking: bool = False) -> Answer:
        """Asks for a chunk that the session has in look-ahead or open; returns what the caller is to do.

        Args:
            session: name of the session.
            chunk: its number in the session's dataset.
            blocking: whether the session cannot continue without it. It is admitted then if anything can be evicted.

        Raises:
            CacheFullError: the request is blocking, and would wait for ever, because too much is open.
            CacheError: the chunk is not in the session's look-ahead.
        """
        state = self._wake(session)
        row = int(state.group.rows[chunk])
        if row not in state.ahead and row not in state.open:
            raise CacheError(f"session {session!r} needs chunk {chunk} that it has not announced by look_ahead")
        return self._admission.answer(state, row, blocking)

    def publish(self, key: bytes) -> Freed:
        """Ends the fetch of an admitted chunk, whose file is readable now; raises CacheError if no fetch of it runs.

        If no session references a transit chunk any more, it is promoted to kept or evicted at once.
        """
        row = self._admission.end_fetch(key)
        self._partitions.publish(row)
        outcome = Outcome()
        if row not in self._table.referenced:
            self._partitions.idle(row, outcome)
        return self._make_room(outcome)

    def resize(self, key: bytes, file_bytes: int) -> Freed:
        """Sets the file length of an admitted chunk that is about to be published; it may differ from the plan."""
        row = self._table.find(key)
        if row is not None and self._partitions.resize(row, file_bytes):
            self._plan()
        return self._make_room(Outcome())

    def drop_fetch(self, key: bytes) -> None:
        """Releases the bytes of an admitted chunk whose fetch failed or was cancelled; CacheError if none runs."""
        self._partitions.leave(self._admission.end_fetch(key))

    def open(self, session: str, chunk: int) -> bool:
        """Marks the chunk as open: its reader may open the file, and it cannot be evicted until `release`.

        Returns:
            False if the chunk is no longer local, or not in the look-ahead of the session: nothing has changed.
        """
        state = self._wake(session)
        row = int(state.group.rows[chunk])
        if not self._table.is_local(row) or row not in state.ahead:
            return False
        state.end_ahead(row)
        state.open[row] = state.open.get(row, 0) + 1
        self._table.open[row] = self._table.open.get(row, 0) + 1
        if state.scheduled[chunk]:
            state.scheduled[chunk] = False
            self._table.scheduled[row] -= 1
        return True

    def release(self, session: str, chunk: int) -> Freed:
        """Ends an open use of the chunk, else cancels one in look-ahead; raises CacheError if there is neither."""
        state = self._wake(session)
        row = int(state.group.rows[chunk])
        if row in state.open:
            take(state.open, row)
            take(self._table.open, row)
        elif row in state.ahead:
            state.end_ahead(row)
        else:
            raise CacheError(f"session {session!r} releases chunk {chunk} that it does not reference")
        outcome = Outcome()
        self._unreference({row: 1}, outcome)
        return self._make_room(outcome)

    def statistics(self) -> PolicyStatistics:
        """Returns the bytes of each part now, and counts since the start. O(open chunks)."""
        return self._admission.statistics()

    # --- inside ----------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Computes values, C, S and quotas again; evicts nothing."""
        apply_values(self._sessions.values())
        self._partitions.plan(sum_windows(self._sessions.values()), sum_needs(self._sessions.values()))

    def _make_room(self, outcome: Outcome) -> Freed:
        """Evicts down to the limits, also to one lowered earlier: a chunk that was open then may be evicted now."""
        self._partitions.trim(outcome)
        if self._partitions.total_bytes > self._partitions.limit_bytes:
            self._partitions.shrink(self._admission.queues(), outcome)
        return self._partitions.translate(outcome)

    def _wake(self, name: str) -> PolicySession:
        """Returns a session of this name, which is no longer silent; raises KeyError if it is not open."""
        session = self._sessions[name]
        session.wake(self._table)
        return session

    def _unreference(self, uses: dict[int, int], outcome: Outcome) -> None:
        """Ends references, counted by row; a chunk without any left may be promoted or evicted, noted in `outcome`."""
        for row, count in uses.items():
            take(self._table.referenced, row, count)
            if row not in self._table.referenced:
                self._partitions.idle(row, outcome)
