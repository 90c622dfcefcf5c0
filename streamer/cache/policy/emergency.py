"""Last-resort eviction candidates for a request that blocks its consumer. Rare; part of `partitions`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streamer.cache.policy.table import ChunkState, ChunkTable

# Number of victims that one pass over the table finds, so that passes (1 ms per million chunks) are rare.
BATCH = 256

# The rows of each session's look-ahead in order of use: the first is its next use.
Queues = list[list[int]]


class LastResort:
    """Finds chunks that are not open. Owned by one `Partitions`."""

    def __init__(self, table: ChunkTable) -> None:
        self._table = table
        self._batch: list[int] = []

    def far(self, queues: Queues) -> list[int]:
        """Local chunks in look-ahead that are not open, the furthest from use first; never a next use of a session."""
        distance = _distances(queues)
        movable = [row for row, place in distance.items() if place > 0 and self._is_movable(row)]
        return sorted(movable, key=lambda row: -distance[row])

    def list_kept(self) -> Iterator[int]:
        """Kept chunks that a running epoch still has ahead, by rank."""
        fresh = False
        while self._batch or not fresh:
            if not self._batch:
                fresh = True
                self._batch = self._lowest_kept()
            elif self._is_idle(row := self._batch.pop()):
                yield row

    def _is_movable(self, row: int) -> bool:
        return self._table.state[row] in (ChunkState.KEPT, ChunkState.TRANSIT) and row not in self._table.open

    def _is_idle(self, row: int) -> bool:
        return bool(self._table.state[row] == ChunkState.KEPT) and row not in self._table.referenced

    def _lowest_kept(self) -> list[int]:
        """Kept chunks of the lowest ranks, the lowest last."""
        rows = np.flatnonzero(self._table.state == ChunkState.KEPT)
        rows = rows[~np.isin(rows, list(self._table.referenced))]
        rows = rows[np.argsort(self._table.rank[rows], kind="stable")[:BATCH]]
        found: list[int] = rows[::-1].tolist()
        return found


def _distances(queues: Queues) -> dict[int, int]:
    """The number of uses before each chunk's own, in the session that comes to it first."""
    distance: dict[int, int] = {}
    for queue in queues:
        for place, row in enumerate(queue):
            distance[row] = min(place, distance.get(row, place))
    return distance
