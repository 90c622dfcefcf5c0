"""Decides which chunk enters the kept or the transit part of the cache, and which chunks are evicted for it.

`cache_policy.py`, which explains the rule and its proof, and `admission.py` use it. This module knows chunks and
datasets (groups), not sessions. A chunk is a row of `ChunkTable` here. C is the limit of all chunks and S the size of
the transit part.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import msgspec
import numpy as np

from streamer.base.sorting import unique
from streamer.cache.policy.answers import CacheLimits, Freed
from streamer.cache.policy.quotas import SessionWindow, compute_staging_bytes, share_out
from streamer.cache.policy.table import RANK_BITS, ChunkGroup, ChunkState, ChunkTable, charge
from streamer.cache.policy.victims import Queues, Victims

# Quotas are planned again when sizes of a dataset's chunks have changed by this share of its bytes: the size of a
# recoded chunk is known only when it has been fetched. A plan takes 10 ms for a million chunks.
_DRIFT_SHARE = 1 / 16


class Outcome(msgspec.Struct):
    """Rows that were evicted and rows that were promoted during one call of the policy; `Partitions` adds to it."""

    victims: list[int] = msgspec.field(default_factory=list)
    promoted: list[int] = msgspec.field(default_factory=list)


class Partitions:
    """Keeps the two parts of the cache within their limits. One policy has it. Plain synchronous code.

    Kept and transit together are within C after every admission. An open chunk leaves only by `CachePolicy.forget`.

    Args:
        limits: the limits at the start.

    Attributes:
        table: all chunks and datasets.
        limits: the limits, which the policy sets anew; `plan` applies them.
        limit_bytes: C, as of the last `plan`.
        staging_bytes: S, as of the last `plan`.
        max_staging_bytes: size that S would have if all misses in look-ahead got room.
        link_bytes: bytes of S for misses in look-ahead that the link needs. None means that all get room.
        kept_bytes, transit_bytes: bytes of the chunks of each part, with those that are being fetched to it.
        settling: whether to evict nothing for new chunks, because an earlier engine's clients are reconnecting.
        tick: number of ends of use of datasets, which orders them.
        chunks: number of chunks in each state (`ChunkState`) but ABSENT.
        evicted, scheduled_evicted, promoted: numbers of chunks since the start.
    """

    def __init__(self, limits: CacheLimits) -> None:
        self.table = ChunkTable()
        self.limits = limits
        self.limit_bytes = limits.limit_bytes
        self.staging_bytes = 0
        self.link_bytes: int | None = None
        self.max_staging_bytes = 0
        self._largest_bytes = 0
        self.kept_bytes = 0
        self.transit_bytes = 0
        self.settling = False
        self.tick = 0
        self.chunks = [0] * ChunkState.COUNT
        self.evicted = self.scheduled_evicted = self.promoted = 0
        self._victims = Victims(self.table)

    @property
    def total_bytes(self) -> int:
        """Bytes of both parts, on the disk or reserved."""
        return self.kept_bytes + self.transit_bytes

    @property
    def kept_limit_bytes(self) -> int:
        """Limit of the kept part, C - S, in bytes."""
        return max(0, self.limit_bytes - self.staging_bytes)

    @property
    def is_full(self) -> bool:
        """Whether the largest chunk of a live dataset does not fit into the kept part."""
        return self.kept_bytes + self._largest_bytes > self.kept_limit_bytes

    # --- sums ------------------------------------------------------------------------------------------------

    def plan(self, windows: Mapping[int, SessionWindow], needed_bytes: int) -> None:
        """Computes C, S and the quotas again, and selects the chunks of each dataset; evicts nothing.

        Readers lose nothing when other programs fill the disk: C is at least the bytes that they must have open, and as
        much of their look-ahead as fits into memory.

        Args:
            windows: bytes open and in look-ahead over all sessions, by index of the dataset.
            needed_bytes: bytes of the open chunks of all sessions and one more for each.
        """
        limits = self.limits
        window = min(needed_bytes + sum(window.total_bytes for window in windows.values()), limits.passing_bytes)
        self.limit_bytes = max(limits.limit_bytes, window, min(needed_bytes, limits.max_bytes))
        live = [group for group in self.table.groups if group.jobs]
        self._largest_bytes = max((group.largest_bytes for group in live), default=0)
        self.staging_bytes = self.max_staging_bytes = compute_staging_bytes(live, self.limit_bytes, windows)
        if self.link_bytes is not None:
            self.staging_bytes = compute_staging_bytes(live, self.limit_bytes, windows, self.link_bytes)
        share_out(live, self.kept_limit_bytes)
        for group in self.table.groups:
            group.drift_bytes = 0
            self.select(group)

    def select(self, group: ChunkGroup) -> None:
        """Selects the chunks of a dataset that fit into its quota, and none if the dataset is finished."""
        if group.jobs:
            self.table.select(group)
        else:
            group.least_rank = 1 << RANK_BITS

    def enter(self, row: int, state: int) -> None:
        """Moves an absent chunk to a state (`ChunkState`), and adds its bytes to the part of that state."""
        cost = int(self.table.cost[row])
        self._move(row, state)
        if state in (ChunkState.KEPT, ChunkState.FETCHING_KEPT):
            self.kept_bytes += cost
            self.table.groups[self.table.owner[row]].kept_bytes += cost
        else:
            self.transit_bytes += cost

    def leave(self, row: int) -> None:
        """Makes a chunk absent, and subtracts its bytes from its part."""
        cost = int(self.table.cost[row])
        state = self.table.state[row]
        self._move(row, ChunkState.ABSENT)
        if state in (ChunkState.KEPT, ChunkState.FETCHING_KEPT):
            self.kept_bytes -= cost
            self.table.groups[self.table.owner[row]].kept_bytes -= cost
        elif state in (ChunkState.TRANSIT, ChunkState.FETCHING_TRANSIT):
            self.transit_bytes -= cost

    def publish(self, row: int) -> None:
        """Marks a fetched chunk as readable, in the part for which it was fetched."""
        fetching_kept = self.table.state[row] == ChunkState.FETCHING_KEPT
        self._move(row, ChunkState.KEPT if fetching_kept else ChunkState.TRANSIT)

    def resize(self, row: int, file_bytes: int) -> bool:
        """Changes the bytes of a chunk that is being fetched; returns whether the quotas have to be planned again.

        Args:
            row: row of the chunk.
            file_bytes: length of its file, now known.
        """
        state = self.table.state[row]
        # The sums of its owner alone change. Those of other datasets with this chunk stay until the next start.
        group = self.table.groups[self.table.owner[row]]
        change = charge(file_bytes) - int(self.table.cost[row])
        self.table.cost[row] += change
        if state == ChunkState.FETCHING_KEPT:
            self.kept_bytes += change
            group.kept_bytes += change
        else:
            self.transit_bytes += change
        group.data_bytes += change
        group.total_bytes += change
        group.largest_bytes = max(group.largest_bytes, charge(file_bytes))
        group.drift_bytes += abs(change)
        return bool(group.drift_bytes > _DRIFT_SHARE * group.total_bytes)

    def _move(self, row: int, state: int) -> None:
        self.chunks[self.table.state[row]] -= 1
        self.chunks[state] += 1
        self.table.state[row] = state

    # --- admission -------------------------------------------------------------------------------------------

    def admit(self, row: int) -> tuple[int, list[int]] | None:
        """Admits an absent chunk to kept, or else to transit, and evicts chunks for it that no session needs soon.

        Returns:
            The state that the chunk entered and the rows that were evicted for it. None means that there is no space;
            nothing was evicted then.
        """
        group = self.table.groups[self.table.owner[row]]
        cost = int(self.table.cost[row])
        needed = max(self.kept_bytes + cost - self.kept_limit_bytes, self.total_bytes + cost - self.limit_bytes)
        victims = self._expendable(group, cost, needed)
        if victims is None and self.table.is_selected(row) and not self.settling:
            victims = self._replace_others(row, needed)
        if victims is not None:
            return self._replace(row, ChunkState.FETCHING_KEPT, victims)
        if self.total_bytes + cost > self.limit_bytes or self.transit_bytes + cost > self.staging_bytes:
            victims = self._borrow(group, cost)
            if victims is None:
                return None
        return self._replace(row, ChunkState.FETCHING_TRANSIT, victims or [])

    def force(self, row: int, queues: Queues) -> tuple[int, list[int]] | None:
        """Admits a chunk that blocks its session to transit, and evicts chunks that are not open for it.

        Args:
            row: an absent chunk.
            queues: the look-ahead of all sessions that are not silent.

        Returns:
            The state that the chunk entered and the rows that were evicted for it. None means that the chunks that may
            leave do not suffice (while settling none may); nothing was evicted then.
        """
        needed = self.total_bytes + int(self.table.cost[row]) - self.limit_bytes
        victims: list[int] | None = []
        if needed > 0:
            victims = None if self.settling else self._victims.collect(needed, self._victims.least_harm_first(queues))
        if victims is None:
            return None
        return self._replace(row, ChunkState.FETCHING_TRANSIT, victims)

    def _replace(self, row: int, state: int, victims: list[int]) -> tuple[int, list[int]]:
        """Evicts the victims, and lets an absent chunk enter a state; returns both."""
        for victim in victims:
            self._evict(victim)
        self.enter(row, state)
        return state, victims

    def _evict(self, row: int) -> None:
        self.scheduled_evicted += int(self.table.state[row] == ChunkState.KEPT and self.table.scheduled[row] > 0)
        self.evicted += 1
        self.leave(row)

    def _expendable(self, group: ChunkGroup, cost: int, needed: int) -> list[int] | None:
        """Returns evictable chunks of finished datasets, then of live ones above quota; None if they are too few.

        Args:
            group: dataset of the chunk that is to enter kept. If it would be above its quota then, the chunk replaces
                no chunk of a live dataset.
            cost: bytes of that chunk.
            needed: bytes that must become free. For 0 and less the result is [].
        """
        if needed <= 0:
            return []
        if self.settling:
            return None
        idle = [one for one in self.table.groups if not one.jobs]
        over_quota = self._victims.above_quota() if group.kept_bytes + cost <= group.quota_bytes else []
        most = sum(one.kept_bytes for one in idle)
        most += sum(one.kept_bytes - one.quota_bytes for one in over_quota)
        if most < needed:
            return None
        return self._victims.collect(needed, chain(self._victims.list_idle(), self._victims.surplus(over_quota)))

    def _replace_others(self, row: int, needed: int) -> list[int] | None:
        """Makes space in kept for a selected chunk; returns the rows that are to be evicted, or None if too few.

        If evicting does not suffice, it moves referenced, unselected chunks to transit at once, and returns [].

        Args:
            row: row of the selected chunk.
            needed: bytes that must become free in kept.
        """
        find = self._victims
        victims = find.collect(
            needed, chain(find.list_lower_ranks(row), find.kept_by_peers(row), find.list_lower_values(row))
        )
        if victims is None and self.total_bytes + int(self.table.cost[row]) <= self.limit_bytes:
            held = self._victims.collect(needed, self._victims.list_demotable(row))
            if held is not None and self.transit_bytes + int(self.table.cost[held].sum()) <= self.staging_bytes:
                self._demote(held)
                return []
        return victims

    def _borrow(self, group: ChunkGroup, cost: int) -> list[int] | None:
        """Returns evictable, unselected chunks that are to leave for a transit chunk beyond S; None if too few.

        Such chunks give way to selected ones anyway. In a cold epoch they are most of the cache, while the link has
        more to carry than in any later epoch. Transit takes at most `max_staging_bytes`.

        Args:
            group: dataset of the transit chunk, of which chunks may leave.
            cost: bytes of the transit chunk.
        """
        if self.settling or self.transit_bytes + cost > self.max_staging_bytes:
            return None
        return self._victims.collect(self.total_bytes + cost - self.limit_bytes, self._victims.list_spare(group))

    def _demote(self, rows: list[int]) -> None:
        """Moves kept chunks to transit: a flag, no copy."""
        for row in rows:
            self.leave(row)
            self.enter(row, ChunkState.TRANSIT)

    # --- after a use -----------------------------------------------------------------------------------------

    def idle(self, row: int, outcome: Outcome) -> None:
        """Handles a chunk without references: a transit one is promoted or evicted, a kept one may become evictable.

        Args:
            row: row of the chunk.
            outcome: collects what is promoted and evicted.
        """
        if self.table.state[row] == ChunkState.TRANSIT:
            self._retire(row, outcome)
        else:
            self.table.queue_evictable(row)

    def _retire(self, row: int, outcome: Outcome) -> None:
        """Promotes a used transit chunk if there is space or evictable chunks of lower rank; otherwise evicts it."""
        cost = int(self.table.cost[row])
        needed = self.kept_bytes + cost - self.kept_limit_bytes
        victims: list[int] | None = []
        if needed > 0:
            may = self._competes(row) and not self.settling
            victims = self._victims.collect(needed, self._victims.list_lower_ranks(row)) if may else None
        if victims is None:
            victims = [row]
        else:
            self.leave(row)
            self.enter(row, ChunkState.KEPT)
            self.table.queue_evictable(row)
            self.promoted += 1
            outcome.promoted.append(row)
        for victim in victims:
            self._evict(victim)
        outcome.victims += victims

    def _competes(self, row: int) -> bool:
        """Whether a chunk may replace another one of its dataset: a selected one may.

        In a dataset that keeps more than its quota every chunk may: ranks decide there, so that a uniform sample stays.
        """
        group = self.table.groups[self.table.owner[row]]
        return self.table.is_selected(row) or group.kept_bytes > group.quota_bytes

    def trim(self, outcome: Outcome) -> None:
        """Evicts evictable chunks, into `outcome`, until kept fits into C - S; does nothing while settling."""
        if self.settling or self.kept_bytes <= self.kept_limit_bytes:
            return
        for row in chain(
            self._victims.list_idle(),
            self._victims.surplus(self._victims.above_quota()),
            self._victims.evictable_anywhere(),
        ):
            if self.kept_bytes <= self.kept_limit_bytes:
                self.table.queue_evictable(row)
                return
            self._evict(row)
            outcome.victims.append(row)

    def shrink(self, queues: Queues, outcome: Outcome) -> None:
        """Evicts `least_harm_first` into `outcome` until all fits into C, or it ends; also while settling."""
        # The list ends after `BATCH` kept chunks that sessions have ahead; another one has the next of them.
        before = -1
        while self.total_bytes > self.limit_bytes and before != len(outcome.victims):
            before = len(outcome.victims)
            for row in self._victims.least_harm_first(queues):
                if self.total_bytes <= self.limit_bytes:
                    self.table.queue_evictable(row)
                    return
                self._evict(row)
                outcome.victims.append(row)

    # --- owners ----------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Gives chunks of finished datasets to a live dataset that has them, too. O(chunks), once per job."""
        groups = self.table.groups
        live = np.array([bool(group.jobs) for group in groups])
        changed: set[int] = set()
        for group in groups:
            owners = self.table.owner[group.rows]
            unowned = ~live[owners] if group.jobs else np.zeros(len(owners), np.bool_)
            if unowned.any():
                changed.update(unique(owners[unowned]).tolist(), [group.index])
                self.table.owner[group.rows[unowned]] = group.index
        for index in changed:
            self.table.rebuild(groups[index])

    def end_job(self, job: str) -> None:
        """Ends a job's use of its datasets; those without another job are finished. Call `plan` afterwards."""
        for group in [one for one in self.table.groups if job in one.jobs]:
            group.jobs.discard(job)
            self.end_use(group)
            if not group.jobs:
                group.leave_pool()
        self.adopt()

    def end_use(self, group: ChunkGroup) -> None:
        """Records that the use of a dataset ends now: it is the most recently used one."""
        self.tick += 1
        group.last_used = self.tick

    def disown(self, gone: list[ChunkGroup]) -> None:
        """Gives up datasets. Their chunks go to other datasets that have them, or to the group "" of no dataset.

        O(chunks * datasets), once for many datasets. Call `plan` afterwards.
        """
        table = self.table
        indices = {group.index for group in gone}
        lost = np.isin(table.owner, list(indices))
        table.owner[lost] = table.group("").index
        remaining = [group for group in table.groups if group.index not in indices]
        for group in sorted(remaining, key=lambda one: bool(one.jobs)):  # live datasets last: the last owner wins
            table.owner[group.rows[lost[group.rows]]] = group.index
        for group in gone:
            table.vacate(group)
        for group in remaining:
            table.rebuild(group)
        table.reclaim()

    def translate(self, outcome: Outcome) -> Freed:
        """Returns the rows of an outcome as keys; a promoted chunk that was evicted later is a victim only."""
        key = self.table.key
        stayed = [row for row in outcome.promoted if row not in outcome.victims]
        return Freed(tuple(map(key, outcome.victims)), tuple(map(key, stayed)))
