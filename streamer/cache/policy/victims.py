"""Who leaves first: candidates for eviction, in order. Part of `room`; plain synchronous code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from streamer.cache.policy.emergency import Emergency, Queues
from streamer.cache.policy.table import ChunkTable, Group, State


class Victims:
    """Lists candidates lazily; whoever takes one evicts it, or gives it back by `ChunkTable.queue_spent`.

    Args:
        table: owned by the same room.
    """

    def __init__(self, table: ChunkTable) -> None:
        self._table = table
        self._emergency = Emergency(table)

    def collect(self, needed: int, candidates: Iterable[int]) -> list[int] | None:
        """Candidates until their bytes suffice; None, and nothing changed, if they do not."""
        taken: dict[int, None] = {}  # a chunk may come up twice, as spent and as kept
        for row in candidates if needed > 0 else ():
            if row not in taken:
                taken[row] = None
                needed -= int(self._table.cost[row])
            if needed <= 0:
                break
        if needed <= 0:
            return list(taken)
        for row in taken:
            self._table.queue_spent(row)
        return None

    def spent(self, group: Group) -> Iterator[int]:
        """Spent chunks of one dataset by rank."""
        while (row := self._table.take_spent(group)) is not None:
            yield row

    def finished(self) -> Iterator[int]:
        """Spent chunks that no live job's dataset has, the longest unused dataset first."""
        idle = [group for group in self._table.groups if not group.jobs]
        for group in sorted(idle, key=lambda one: one.last_used):
            yield from self.spent(group)

    def above_quota(self) -> list[Group]:
        """Live datasets that keep more than their share, the richest first."""
        rich = [one for one in self._table.groups if one.jobs and one.kept_bytes > one.quota_bytes]
        return sorted(rich, key=lambda one: one.quota_bytes - one.kept_bytes)

    def surplus(self, rich: list[Group]) -> Iterator[int]:
        """Spent chunks of these datasets, as many as they keep above their quota."""
        for group in rich:
            surplus = group.kept_bytes - group.quota_bytes
            while surplus > 0 and (row := self._table.take_spent(group)) is not None:
                surplus -= int(self._table.cost[row])
                yield row

    def spent_anywhere(self) -> Iterator[int]:
        """Spent chunks of all datasets by rank."""
        while True:
            lowest = [
                (self._table.rank[row], group.index)
                for group in self._table.groups
                if (row := self._table.lowest_spent(group)) is not None
            ]
            if not lowest:
                return
            taken = self._table.take_spent(self._table.groups[min(lowest)[1]])
            assert taken is not None
            yield taken

    def outranked(self, row: int) -> Iterator[int]:
        """Spent chunks of the same dataset that have a lower rank than this one and are not chosen."""
        group = self._table.groups[self._table.owner[row]]
        rank = min(int(self._table.rank[row]), group.least_rank)
        while (lowest := self._table.lowest_spent(group)) is not None and self._table.rank[lowest] < rank:
            self._table.take_spent(group)
            yield lowest

    def held_unchosen(self, row: int) -> Iterator[int]:
        """Kept chunks of the same dataset, not chosen, that are open or held for the next epoch. O(chunks held)."""
        table = self._table
        for other in table.held:
            same = table.owner[other] == table.owner[row] and table.state[other] == State.KEPT
            if same and not table.due[other] and not table.is_chosen(other):
                yield other

    def by_hurt(self, queues: Queues) -> Iterator[int]:
        """Everything that is not open, what hurts least first; never a session's own head of line."""
        yield from self.finished()
        far = self._emergency.far(queues)
        yield from (row for row in far if self._table.state[row] == State.TRANSIT)
        yield from self.spent_anywhere()
        yield from self._emergency.due_kept()
        yield from (row for row in far if self._table.state[row] == State.KEPT)
