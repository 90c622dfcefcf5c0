"""Lists chunks that may be evicted from the cache, in the order in which they should be. Plain synchronous code.

`partitions.py` chooses among the lists. A chunk is a row of `ChunkTable` here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from streamer.cache.policy.table import ChunkGroup, ChunkState, ChunkTable

# Number of victims that one pass over the table finds, so that passes (1 ms per million chunks) are rare.
BATCH = 256

# The rows of each session's look-ahead in order of use: the first is its next use.
Queues = list[list[int]]


class LastResort:
    """Lists chunks that are not open, also those that sessions need. It is O(rows), and `Victims` uses it rarely.

    Args:
        table: all chunks.
    """

    def __init__(self, table: ChunkTable) -> None:
        self._table = table
        self._batch: list[int] = []

    def far(self, queues: Queues) -> list[int]:
        """Returns chunks in look-ahead that are not open, the furthest from their use first.

        The next chunk of a session is never among them.
        """
        # Number of chunks before the use of each row, in the session that comes to it first.
        distance: dict[int, int] = {}
        for queue in queues:
            for place, row in enumerate(queue):
                distance[row] = min(place, distance.get(row, place))
        movable = [
            row
            for row, place in distance.items()
            if place > 0
            and self._table.state[row] in (ChunkState.KEPT, ChunkState.TRANSIT)
            and row not in self._table.open
        ]
        return sorted(movable, key=lambda row: -distance[row])

    def list_kept(self) -> Iterator[int]:
        """Yields kept chunks that no session references, scheduled or not, by rank, the lowest first.

        The caller evicts each, or stops. A call looks for at most `BATCH` of them, after those that an earlier call has
        found and not yielded; among these, chunks kept since then are missing.
        """
        fresh = False
        while self._batch or not fresh:
            if not self._batch:
                fresh = True
                rows = np.flatnonzero(self._table.state == ChunkState.KEPT)
                rows = rows[~np.isin(rows, list(self._table.referenced))]
                rows = rows[np.argsort(self._table.rank[rows], kind="stable")[:BATCH]]
                # The lowest rank is the last, which `pop` takes first.
                self._batch = rows[::-1].tolist()
                continue
            row = self._batch.pop()
            if self._table.state[row] == ChunkState.KEPT and row not in self._table.referenced:
                yield row


class Victims:
    """Lists chunks that may be evicted, one at a time.

    What is yielded may be out of its group's heap: the caller evicts it, or calls `ChunkTable.queue_evictable` for it.

    Args:
        table: all chunks.
    """

    def __init__(self, table: ChunkTable) -> None:
        self._table = table
        self._last_resort = LastResort(table)

    def collect(self, needed: int, candidates: Iterable[int]) -> list[int] | None:
        """Returns the first candidates whose bytes suffice; if all do not, queues them again and returns None.

        Args:
            needed: bytes that must suffice. For 0 and less the result is [].
            candidates: rows, of which none is taken beyond those that suffice.
        """
        taken: dict[int, None] = {}  # a chunk may come up twice, as evictable and as kept
        for row in candidates if needed > 0 else ():
            if row not in taken:
                taken[row] = None
                needed -= int(self._table.cost[row])
            if needed <= 0:
                break
        if needed <= 0:
            return list(taken)
        for row in taken:
            self._table.queue_evictable(row)
        return None

    def evictable(self, group: ChunkGroup) -> Iterator[int]:
        """Yields evictable chunks of one dataset, the lowest rank first."""
        while (row := self._table.take_evictable(group)) is not None:
            yield row

    def list_idle(self) -> Iterator[int]:
        """Yields evictable chunks of the datasets that no live job uses, those of the longest unused dataset first."""
        idle = [group for group in self._table.groups if not group.jobs]
        for group in sorted(idle, key=lambda one: one.last_used):
            yield from self.evictable(group)

    def above_quota(self) -> list[ChunkGroup]:
        """Returns live datasets that keep more than their quota, the largest excess first."""
        over_quota = [one for one in self._table.groups if one.jobs and one.kept_bytes > one.quota_bytes]
        return sorted(over_quota, key=lambda one: one.quota_bytes - one.kept_bytes)

    def surplus(self, over_quota: list[ChunkGroup]) -> Iterator[int]:
        """Yields evictable chunks of each of these datasets, until it keeps no more than its quota without them."""
        for group in over_quota:
            surplus = group.kept_bytes - group.quota_bytes
            while surplus > 0 and (row := self._table.take_evictable(group)) is not None:
                surplus -= int(self._table.cost[row])
                yield row

    def evictable_anywhere(self) -> Iterator[int]:
        """Yields evictable chunks of all datasets by rank, the lowest first."""
        while True:
            lowest = [
                (self._table.rank[row], group.index)
                for group in self._table.groups
                if (row := self._table.lowest_evictable(group)) is not None
            ]
            if not lowest:
                return
            taken = self._table.take_evictable(self._table.groups[min(lowest)[1]])
            assert taken is not None
            yield taken

    def list_spare(self, group: ChunkGroup) -> Iterator[int]:
        """Yields evictable, unselected chunks of a dataset, the lowest rank first."""
        while (lowest := self._table.lowest_evictable(group)) is not None and not self._table.is_selected(lowest):
            self._table.take_evictable(group)
            yield lowest

    def list_lower_ranks(self, row: int) -> Iterator[int]:
        """Yields evictable, unselected chunks of the same dataset as `row` that have a lower rank than `row`."""
        group = self._table.groups[self._table.owner[row]]
        rank = min(int(self._table.rank[row]), group.least_rank)
        while (lowest := self._table.lowest_evictable(group)) is not None and self._table.rank[lowest] < rank:
            self._table.take_evictable(group)
            yield lowest

    def list_demotable(self, row: int) -> Iterator[int]:
        """Yields kept, unselected chunks of the same dataset that are referenced and not scheduled. O(referenced)."""
        table = self._table
        for other in table.referenced:
            same = table.owner[other] == table.owner[row] and table.state[other] == ChunkState.KEPT
            if same and not table.scheduled[other] and not table.is_selected(other):
                yield other

    def kept_by_peers(self, row: int) -> Iterator[int]:
        """Yields kept chunks of the same dataset as `row` whose home is another engine, if that of `row` is this one.

        Chunks that are still scheduled are among them: they come from their homes later, not from the store.
        """
        table = self._table
        if table.is_home(row):
            for other in self._last_resort.list_kept():
                if table.is_home(other):
                    return
                if table.owner[other] == table.owner[row]:
                    yield other

    def list_lower_values(self, row: int) -> Iterator[int]:
        """Yields kept, unselected chunks of datasets in the pool of `row` that have at most half the value of its own.

        Scheduled chunks are among them. So a chunk that is used many times an epoch is fetched once, even if the cache
        is full of chunks that are used once.
        """
        table = self._table
        group = table.groups[table.owner[row]]
        if not any(other.pool == group.pool and 2.0 * other.value <= group.value for other in table.groups):
            return
        for other in self._last_resort.list_kept():
            owner = table.groups[table.owner[other]]
            less = owner.pool == group.pool and 2.0 * owner.value <= group.value
            if less and not table.is_selected(other):
                yield other

    def least_harm_first(self, queues: Queues) -> Iterator[int]:
        """Yields local chunks that are not open and not the next one of a session, the least harmful first.

        Of those that are scheduled and in no look-ahead it finds at most `BATCH` (`LastResort.list_kept`).

        Args:
            queues: look-ahead of each session that is not silent.
        """
        yield from self.list_idle()
        far = self._last_resort.far(queues)
        yield from (row for row in far if self._table.state[row] == ChunkState.TRANSIT)
        yield from self.evictable_anywhere()
        yield from self._last_resort.list_kept()
        yield from (row for row in far if self._table.state[row] == ChunkState.KEPT)
