"""Bytes and victims: which chunk enters which part of the cache, and which one leaves for it.

The second part of the policy (see `policy` for the rule and its proof): knows chunks and groups, not sessions.
"""

from __future__ import annotations

import math
from itertools import chain

import msgspec
import numpy as np

from streamer.cache.decision import Freed
from streamer.cache.emergency import Queues
from streamer.cache.table import RANK_BITS, ChunkTable, Group, State
from streamer.cache.victims import Victims
from streamer.distinct import distinct

# Beyond the mean of (1 - f) w: the misses among w chunks scatter by sqrt(w f (1 - f)), so a tenth and two chunks are
# too little for windows of some tens of chunks; S then is the mean and two deviations. With 36 chunks of 4,000 and
# f = 0.75, stuck heads of line changed 1.4 % of the kept content per warm epoch, and waited 1.5 % of the time; now
# below 0.1 % and 0.2 %, for 0.001 of the hit rate (2026-11-20).
STAGING_MARGIN = 1.1
STAGING_CHUNKS = 2
STAGING_DEVIATIONS = 2.0


class Outcome(msgspec.Struct):
    """Rows that left and rows that were promoted during one event."""

    victims: list[int] = msgspec.field(default_factory=list)
    promoted: list[int] = msgspec.field(default_factory=list)


class Room:
    """The two parts of the cache and their limits. Owned by one policy; plain synchronous code.

    Invariants: kept + transit <= limit after every admission; an open chunk never leaves but by `forget`.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.table = ChunkTable()
        self.limit_bytes = limit_bytes
        self.staging_bytes = 0
        self.kept_bytes = 0
        self.transit_bytes = 0
        self.settling = False
        self.tick = 0
        self.chunks = [0] * State.COUNT
        self.evicted = self.due_evicted = self.promoted = 0
        self._victims = Victims(self.table)

    @property
    def total_bytes(self) -> int:
        """Everything that is on disk or reserved."""
        return self.kept_bytes + self.transit_bytes

    @property
    def kept_limit_bytes(self) -> int:
        """C - S."""
        return max(0, self.limit_bytes - self.staging_bytes)

    # --- sums ------------------------------------------------------------------------------------------------

    def plan(self, window_bytes: int) -> None:
        """S and the quotas anew, for sessions whose open and look-ahead bytes sum to `window_bytes`."""
        live = [group for group in self.table.groups if group.jobs]
        data_bytes = sum(group.total_bytes for group in live)
        self.staging_bytes = 0
        if live:
            share = min(1.0, self.limit_bytes / max(1, data_bytes))
            largest = max(group.largest_bytes for group in live)
            self.staging_bytes = min(self.limit_bytes, _staging_bytes(share, window_bytes, largest))
        self._share_out(live)
        for group in self.table.groups:
            self.choose(group)

    def _share_out(self, live: list[Group]) -> None:
        """Max-min fair quotas: equal shares, but none more than its dataset; what is left over is shared again."""
        left = self.kept_limit_bytes
        for place, group in enumerate(sorted(live, key=lambda one: one.total_bytes)):
            group.quota_bytes = min(group.total_bytes, left // (len(live) - place))
            left -= group.quota_bytes

    def choose(self, group: Group) -> None:
        """Which chunks of a dataset its quota is for; of a finished one: none."""
        if group.jobs:
            self.table.choose(group)
        else:
            group.least_rank = 1 << RANK_BITS

    def enter(self, row: int, state: int) -> None:
        """An absent chunk takes its bytes."""
        cost = int(self.table.cost[row])
        self._move(row, state)
        if state in (State.KEPT, State.FETCHING_KEPT):
            self.kept_bytes += cost
            self.table.groups[self.table.owner[row]].kept_bytes += cost
        else:
            self.transit_bytes += cost

    def leave(self, row: int) -> None:
        """A chunk gives its bytes back."""
        cost = int(self.table.cost[row])
        state = self.table.state[row]
        self._move(row, State.ABSENT)
        if state in (State.KEPT, State.FETCHING_KEPT):
            self.kept_bytes -= cost
            self.table.groups[self.table.owner[row]].kept_bytes -= cost
        elif state in (State.TRANSIT, State.FETCHING_TRANSIT):
            self.transit_bytes -= cost

    def publish(self, row: int) -> None:
        """A fetched chunk has become readable."""
        fetching_kept = self.table.state[row] == State.FETCHING_KEPT
        self._move(row, State.KEPT if fetching_kept else State.TRANSIT)

    def _move(self, row: int, state: int) -> None:
        self.chunks[self.table.state[row]] -= 1
        self.chunks[state] += 1
        self.table.state[row] = state

    # --- admission -------------------------------------------------------------------------------------------

    def admit(self, row: int) -> tuple[int, list[int]] | None:
        """Room for an absent chunk without hurting anybody: kept, or else transit; None: no.

        Returns:
            The state it entered and the rows that left for it.
        """
        group = self.table.groups[self.table.owner[row]]
        cost = int(self.table.cost[row])
        needed = max(self.kept_bytes + cost - self.kept_limit_bytes, self.total_bytes + cost - self.limit_bytes)
        victims = self._expendable(group, cost, needed)
        if victims is None and self.table.is_chosen(row) and not self.settling:
            victims = self._in_place_of_others(row, needed)
        if victims is not None:
            return self._replace(row, State.FETCHING_KEPT, victims)
        if self.total_bytes + cost > self.limit_bytes or self.transit_bytes + cost > self.staging_bytes:
            return None
        return self._replace(row, State.FETCHING_TRANSIT, [])

    def force(self, row: int, queues: Queues) -> tuple[int, list[int]] | None:
        """Room for a head of line, at the expense of what is not open; None: everything is open or being fetched."""
        needed = self.total_bytes + int(self.table.cost[row]) - self.limit_bytes
        victims: list[int] | None = []
        if needed > 0:
            victims = None if self.settling else self._victims.collect(needed, self._victims.by_hurt(queues))
        if victims is None:
            return None
        return self._replace(row, State.FETCHING_TRANSIT, victims)

    def _replace(self, row: int, state: int, victims: list[int]) -> tuple[int, list[int]]:
        for victim in victims:
            self._evict(victim)
        self.enter(row, state)
        return state, victims

    def _evict(self, row: int) -> None:
        self.due_evicted += int(self.table.state[row] == State.KEPT and self.table.due[row] > 0)
        self.evicted += 1
        self.leave(row)

    def _expendable(self, group: Group, cost: int, needed: int) -> list[int] | None:
        """Kept chunks nobody will miss: of finished datasets, then of live ones above their quota."""
        if needed <= 0:
            return []
        if self.settling:
            return None
        idle = [one for one in self.table.groups if not one.jobs]
        rich = self._victims.above_quota() if group.kept_bytes + cost <= group.quota_bytes else []
        most = sum(one.kept_bytes for one in idle)
        most += sum(one.kept_bytes - one.quota_bytes for one in rich)
        if most < needed:
            return None
        return self._victims.collect(needed, chain(self._victims.finished(), self._victims.surplus(rich)))

    def _in_place_of_others(self, row: int, needed: int) -> list[int] | None:
        """Room in kept for a chosen chunk: spent chunks that are not chosen leave, or such that are held will."""
        victims = self._victims.collect(needed, self._victims.outranked(row))
        if victims is None and self.total_bytes + int(self.table.cost[row]) <= self.limit_bytes:
            held = self._victims.collect(needed, self._victims.held_unchosen(row))
            if held is not None and self.transit_bytes + self._cost_of(held) <= self.staging_bytes:
                self._demote(held)
                return []
        return victims

    def _demote(self, rows: list[int]) -> None:
        """Kept chunks pass through transit from here on: a flag, no copy."""
        for row in rows:
            self.leave(row)
            self.enter(row, State.TRANSIT)

    def _cost_of(self, rows: list[int]) -> int:
        return int(self.table.cost[rows].sum())

    # --- after a use -----------------------------------------------------------------------------------------

    def idle(self, row: int, outcome: Outcome) -> None:
        """Nobody holds the chunk any more: transit is promoted or leaves, kept may have become spent."""
        if self.table.state[row] == State.TRANSIT:
            self._retire(row, outcome)
        else:
            self.table.queue_spent(row)

    def _retire(self, row: int, outcome: Outcome) -> None:
        """A used transit chunk: kept if there is room or it outranks spent ones of its dataset, else unlinked."""
        cost = int(self.table.cost[row])
        needed = self.kept_bytes + cost - self.kept_limit_bytes
        victims: list[int] | None = []
        if needed > 0:
            may = self._competes(row) and not self.settling
            victims = self._victims.collect(needed, self._victims.outranked(row)) if may else None
        if victims is None:
            victims = [row]
        else:
            self._promote(row, outcome)
        for victim in victims:
            self._evict(victim)
        outcome.victims += victims

    def _competes(self, row: int) -> bool:
        """A chunk that is not chosen may stay where there is room, but not for another one: both leave for chosen ones.

        Unless its dataset has room beyond its quota: there ranks decide, so that what stays is a uniform sample.
        """
        group = self.table.groups[self.table.owner[row]]
        return self.table.is_chosen(row) or group.kept_bytes > group.quota_bytes

    def _promote(self, row: int, outcome: Outcome) -> None:
        self.leave(row)
        self.enter(row, State.KEPT)
        self.table.queue_spent(row)
        self.promoted += 1
        outcome.promoted.append(row)

    def trim(self, outcome: Outcome) -> None:
        """Spent chunks leave while kept is above C - S (S grew, or the limit shrank)."""
        if self.settling or self.kept_bytes <= self.kept_limit_bytes:
            return
        for row in chain(
            self._victims.finished(), self._victims.surplus(self._victims.above_quota()), self._victims.spent_anywhere()
        ):
            if self.kept_bytes <= self.kept_limit_bytes:
                self.table.queue_spent(row)
                return
            self._evict(row)
            outcome.victims.append(row)

    def shrink(self, queues: Queues, outcome: Outcome) -> None:
        """Whatever is not open leaves while the sum is above the limit."""
        if self.total_bytes <= self.limit_bytes:
            return
        for row in self._victims.by_hurt(queues):
            if self.total_bytes <= self.limit_bytes:
                self.table.queue_spent(row)
                return
            self._evict(row)
            outcome.victims.append(row)

    # --- owners ----------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Chunks of finished datasets that a live one has too become the live one's. O(chunks); once per job."""
        groups = self.table.groups
        live = np.array([bool(group.jobs) for group in groups])
        changed: set[int] = set()
        for group in groups:
            owners = self.table.owner[group.rows]
            orphans = ~live[owners] if group.jobs else np.zeros(len(owners), np.bool_)
            if orphans.any():
                changed.update(distinct(owners[orphans]).tolist(), [group.index])
                self.table.owner[group.rows[orphans]] = group.index
        for index in changed:
            self.table.rebuild(groups[index])

    def disown(self, gone: list[Group]) -> None:
        """Datasets that nobody can name any more: their chunks go to those that have them too, else to nobody ("").

        O(chunks * datasets); once for many. `plan` afterwards.
        """
        table, indices = self.table, {group.index for group in gone}
        lost = np.isin(table.owner, list(indices))
        table.owner[lost] = table.group("").index
        heirs = [group for group in table.groups if group.index not in indices]
        for group in sorted(heirs, key=lambda one: bool(one.jobs)):  # a live one's claim counts last, hence most
            table.owner[group.rows[lost[group.rows]]] = group.index
        for group in gone:
            table.vacate(group)
        for group in heirs:
            table.rebuild(group)
        table.reclaim()

    def freed(self, outcome: Outcome) -> Freed:
        """The outcome as keys."""
        key = self.table.key
        stayed = [row for row in outcome.promoted if row not in outcome.victims]
        return Freed(tuple(map(key, outcome.victims)), tuple(map(key, stayed)))


def _staging_bytes(share: float, window_bytes: int, largest: int) -> int:
    """S, for a cache of a share of the data and `window_bytes` open or in look-ahead."""
    mean = (1.0 - share) * window_bytes
    deviation = math.sqrt(share * (1.0 - share) * window_bytes * largest)
    least = int(STAGING_MARGIN * mean) + STAGING_CHUNKS * largest
    return max(least, int(mean + STAGING_DEVIATIONS * deviation))
