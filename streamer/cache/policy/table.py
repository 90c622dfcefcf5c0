"""Keeps the table of the cache policy's chunks, in columns of about 47 bytes per chunk (71 MB for 1.5 million chunks).

The modules of the policy work on it. Other rooms use only its functions of keys, and `charge` for the bytes of a file.

A chunk is a row number. Two datasets that share a key share the row, hence the file. Each row belongs to one group
(a dataset). A group keeps its evictable chunks (kept, neither referenced nor scheduled) in a heap by rank. What is no
longer evictable is taken out of the heap only when it comes up, so that each decision takes a few microseconds whatever
the number of chunks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamer.base.sorting import unique, unique_inverse
from streamer.base.splitmix import GAMMA, Words, fold_each

KEY_BYTES = 16
BLOCK_BYTES = 4096
# A chunk takes so many bytes beside its file: a row of the catalog with its index (240), a directory entry (56), and
# for one file in ten a block of the extent tree (4,096). Measured on ext4 with 2,000 files of 64 KiB, 2026-11-20.
CHUNK_ALLOWANCE_BYTES = 1024
RANK_BITS = 31
# Number of the highest bits of a rank, which are the chunk's place among peers (`peers/homes.py`, `Place`).
PLACE_BITS = 2
# Number of highest bits of a rank that `ChunkTable.select` looks at. A sum over so many values takes 10 ms for a
# million chunks, a sort of whole ranks 120 ms (2026-11-20).
SELECTION_BITS = 16
ROW_BITS = 32
# A search for more than one key in so many known ones first copies all keys in order.
_MANY = 16
# Fewer rows than this are queued one by one.
_FEW_ROWS = 100
_ROW_MASK = (1 << ROW_BITS) - 1
# The name of a group that was given up; no dataset can have it.
VACANT = "-"

Keys = NDArray[np.bytes_]
Rows = NDArray[np.int32]
# Result of `arrange_keys`.
ArrangedKeys = tuple[Keys, NDArray[np.intp], NDArray[np.intp]]
# Returns the places of chunks among peers (`peers/homes.py`, `Place`) from the first words of their keys.
Places = Callable[[Words], NDArray[np.int64]]


class ChunkState:
    """Names the states of a chunk by plain numbers: a look-up in an enum took a third of each decision (CPython 3.11).

    ABSENT is a chunk that is not on this machine. FETCHING_KEPT and FETCHING_TRANSIT are chunks that are being fetched
    to a part of the cache, KEPT and TRANSIT chunks that are there. BELOW is a chunk in a read-only layer: local, free
    of cost, never evicted. COUNT is the number of states.
    """

    ABSENT: Final = 0
    FETCHING_KEPT: Final = 1
    FETCHING_TRANSIT: Final = 2
    KEPT: Final = 3
    TRANSIT: Final = 4
    BELOW: Final = 5
    COUNT: Final = 6


def charge_each(file_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the bytes of the limit that files of these lengths (bytes) take: 4 KiB blocks, and an allowance."""
    blocks = (file_bytes + BLOCK_BYTES - 1) // BLOCK_BYTES
    return blocks * BLOCK_BYTES + CHUNK_ALLOWANCE_BYTES


def charge(file_bytes: int) -> int:
    """Returns the bytes of the cache limit that one file of this length takes, as `charge_each`."""
    return -(-file_bytes // BLOCK_BYTES) * BLOCK_BYTES + CHUNK_ALLOWANCE_BYTES


def to_keys(raw: ArrayLike) -> Keys:
    """Returns keys as an array of 16-byte strings, from a list of bytes, (M, 16) uint8, V16 or S16."""
    if isinstance(raw, list):
        raw = np.frombuffer(b"".join(raw), dtype=np.uint8)
    plain = np.ascontiguousarray(raw)
    return plain.view(np.uint8).reshape(-1, KEY_BYTES).view(f"S{KEY_BYTES}").reshape(-1)


def arrange_keys(keys: Keys) -> ArrangedKeys:
    """Returns the distinct keys, ascending, where each occurs first, and which of them each entry is.

    It needs no table, so that for very many keys it can be called in another thread than the policy's.
    """
    return unique_inverse(keys)


def draw_ranks(keys: Keys, places: Places | None = None) -> NDArray[np.int64]:
    """Returns the rank of each key: 31 bits, a hash of the key, the same in every run.

    With `places`, the highest two bits are the chunk's place among peers instead.
    """
    words = np.ascontiguousarray(keys).view("<u8").reshape(-1, 2)
    hashes = fold_each(words[:, 1] * GAMMA, words[:, 0])
    ranks = (hashes >> np.uint64(64 - RANK_BITS)).astype(np.int64)
    if places is None:
        return ranks
    return places(words[:, 0]) << (RANK_BITS - PLACE_BITS) | ranks >> PLACE_BITS


class ChunkGroup(msgspec.Struct):
    """The chunks of one dataset: its rows, its share of the cache, its evictable chunks by rank.

    Bytes are counted as `charge` does.

    Attributes:
        index: place of the group in `ChunkTable.groups`.
        name: digest of its manifest. "" means the chunks of no known dataset, and `VACANT` a group that was given up.
        rows: row of each chunk number, empty if only the catalog knows the dataset.
        data_bytes: bytes of all its chunks.
        total_bytes: bytes of its chunks that are not in a read-only layer.
        largest_bytes: bytes of the largest chunk that is not in a read-only layer.
        kept_bytes: bytes of the rows it owns that are kept or are being fetched to kept.
        heap: rows of its evictable chunks, and of some that no longer are, each in one number with its rank.
        drift_bytes: bytes by which the sizes of its chunks have changed since its quota was planned.
        jobs: live jobs that use it. If there are none, the dataset is finished and its chunks are evicted first.
        last_used: tick of the last end of a job on it, by which finished datasets are ordered.
        pool: number of the pool whose datasets share a part of the cache by value, its own index if it is alone there.
        value: fetched bytes that a kept byte of it saves, relative to the others of its pool.
        quota_bytes: its share of the kept part, while it is live.
        least_rank: lowest rank of its selected chunks, which fit into the quota; above all ranks if none is selected.
    """

    index: int
    name: str
    rows: Rows = msgspec.field(default_factory=lambda: np.empty(0, np.int32))
    data_bytes: int = 0
    total_bytes: int = 0
    largest_bytes: int = 0
    drift_bytes: int = 0
    kept_bytes: int = 0
    pool: int = -1
    value: float = 1.0
    quota_bytes: int = 0
    least_rank: int = 1 << RANK_BITS
    last_used: int = 0
    jobs: set[str] = msgspec.field(default_factory=set)
    heap: list[int] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        self.leave_pool()

    def leave_pool(self) -> None:
        """Makes the dataset a pool of its own, of value 1."""
        self.pool = self.index
        self.value = 1.0

    @property
    def quota_share(self) -> float:
        """Share of its bytes that fit into its quota."""
        return min(1.0, self.quota_bytes / max(1, self.total_bytes))


class ChunkTable:
    """The columns by row number, and the groups. One policy has it. Plain synchronous code.

    Attributes:
        keys: keys, 16 bytes each, (rows,).
        cost: bytes of the limit that the file takes, as `charge` counts them, (rows,).
        rank: rank within a group, where chunks of high rank stay, (rows,).
        state: number of the `ChunkState`, (rows,).
        scheduled: number of sessions that have the chunk ahead in their running epoch, (rows,).
        owner: index of the group to which the chunk belongs, (rows,).
        groups: the datasets by index.
        referenced: number of uses that are open, or in look-ahead of a session that is not silent, by row. Rows
            without any such use are not in it.
        open: number of uses that are open, by row. Rows without any open use are not in it.
    """

    def __init__(self) -> None:
        self.keys: Keys = np.empty(0, f"S{KEY_BYTES}")
        self.cost = np.empty(0, np.int64)
        self.rank = np.empty(0, np.int64)
        self.state = np.empty(0, np.uint8)
        self.scheduled = np.empty(0, np.uint16)
        self.owner = np.empty(0, np.int32)
        self._queued = np.empty(0, np.bool_)
        self._order = np.empty(0, np.int32)
        # Rows of absent chunks that belong to no dataset any more; reused before the columns grow.
        self._spare: Rows = np.empty(0, np.int32)
        self._places_of: Places | None = None
        self.groups: list[ChunkGroup] = []
        self.referenced: dict[int, int] = {}
        self.open: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def group(self, name: str) -> ChunkGroup:
        """Returns the group of that name, which is created if missing."""
        for known in self.groups:
            if known.name == name:
                return known
        vacant = (known.index for known in self.groups if known.name == VACANT)
        made = ChunkGroup(next(vacant, len(self.groups)), name)
        self.groups[made.index : made.index + 1] = [made]
        return made

    def vacate(self, group: ChunkGroup) -> None:
        """Gives up a group, whose rows have other owners by now; its index is free for another dataset."""
        self.groups[group.index] = ChunkGroup(group.index, VACANT)

    def reclaim(self) -> None:
        """Finds the rows that can be reused after groups were given up. O(rows)."""
        unused = (self.state == ChunkState.ABSENT) & (self.scheduled == 0)
        for group in self.groups:
            unused[group.rows] = False
        unused[[*self.referenced, *self.open]] = False
        self._spare = np.flatnonzero(unused).astype(np.int32)

    def key(self, row: int) -> bytes:
        """Returns the 16 bytes of a row's key (numpy strips trailing zeros of its strings)."""
        return bytes(self.keys[row]).ljust(KEY_BYTES, b"\0")

    def find(self, key: bytes) -> int | None:
        """Returns the row of a key, or None if the key is unknown."""
        at = self._search(np.array([key], f"S{KEY_BYTES}"))[0][0]
        return None if at < 0 else int(at)

    def _search(self, keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        """Returns the rows of the keys, -1 if unknown, and where they belong in the order of all rows."""
        if not len(self):
            return np.full(len(keys), -1, np.int64), np.zeros(len(keys), np.intp)
        if len(keys) * _MANY < len(self):
            at = np.searchsorted(self.keys, keys, sorter=self._order)
            found = self.keys[self._order[np.minimum(at, len(self) - 1)]]
        else:
            # A search without the detour over rows takes a third of the time.
            arranged = self.keys[self._order]
            at = np.searchsorted(arranged, keys)
            found = arranged[np.minimum(at, len(self) - 1)]
        rows = self._order[np.minimum(at, len(self) - 1)].astype(np.int64)
        return np.where(found == keys, rows, -1), at

    def intern(
        self, keys: Keys, cost: NDArray[np.int64], owner: NDArray[np.int32], arranged: ArrangedKeys | None = None
    ) -> Rows:
        """Returns the rows of the keys, (n,), and adds unknown keys as absent chunks. O(rows): call it with many keys.

        Args:
            keys: (n,) keys, which may repeat.
            cost: (n,) bytes of each row that is added.
            owner: (n,) index of the group of each row that is added.
            arranged: result of `arrange_keys` for these keys, if it is known.
        """
        distinct, first, inverse = arranged or arrange_keys(keys)
        rows, at = self._search(distinct)
        fresh = np.flatnonzero(rows < 0)
        if len(fresh) == len(keys) and not len(self._spare):
            # Nothing of it is known: the rows are in the order of the keys as given, which copies no column twice.
            added = np.arange(len(self), len(self) + len(keys), dtype=np.int32)
            self._order = np.insert(self._order, at, added[first])
            self._append(keys, cost, owner)
            return added
        rows[fresh] = self._places(len(fresh), known=rows)
        self._enter(rows[fresh], distinct[fresh], cost[first[fresh]], owner[first[fresh]])
        return rows[inverse].astype(np.int32)

    def rows_of(self, keys: ArrayLike, file_bytes: ArrayLike, group: ChunkGroup) -> Rows:
        """Returns the rows of the keys, as `intern`; unknown keys are added to the group.

        Args:
            keys: keys as `to_keys` takes them.
            file_bytes: length of each chunk's file.
            group: owner of the rows that are added.
        """
        found = to_keys(keys)
        cost = charge_each(np.asarray(file_bytes, dtype=np.int64))
        return self.intern(found, cost, np.full(len(found), group.index, np.int32))

    def add_rows(
        self, datasets: Sequence[tuple[ChunkGroup, ArrayLike, Keys]], arranged: ArrangedKeys | None = None
    ) -> None:
        """Sets rows and sums of new groups from the lengths and keys of their chunks' files. O(rows).

        Args:
            datasets: group, lengths in bytes and keys of each dataset.
            arranged: result of `arrange_keys` for the keys of all of them, if it is known.
        """
        if not datasets:
            return
        groups, lengths, keys = zip(*datasets, strict=True)
        cost = charge_each(np.concatenate([np.asarray(one, np.int64) for one in lengths]))
        counts = [len(one) for one in keys]
        owner = np.repeat(np.array([group.index for group in groups], np.int32), counts)
        rows = self.intern(np.concatenate(keys), cost, owner, arranged)
        self.price(rows, cost)
        for group, mine in zip(groups, np.split(rows, np.cumsum(counts)[:-1]), strict=True):
            group.rows = mine
            absent_or_own = self.cost[mine[self.state[mine] != ChunkState.BELOW]]
            group.data_bytes = int(self.cost[mine].sum())
            group.total_bytes = int(absent_or_own.sum())
            group.largest_bytes = int(absent_or_own.max(initial=0))

    def _places(self, count: int, known: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns `count` rows for new chunks, spare ones first, but none of `known`: these are in use again."""
        spare = unique(self._spare)
        spare = spare[~np.isin(spare, known)]
        taken = spare[:count]
        self._spare = spare[count:].astype(np.int32)
        return np.concatenate([taken, len(self) + np.arange(count - len(taken))]).astype(np.int64)

    def _enter(self, rows: NDArray[np.int64], keys: Keys, cost: NDArray[np.int64], owner: NDArray[np.int32]) -> None:
        """Fills in new or reused rows of absent chunks; the keys ascend."""
        if not len(rows):
            return
        order = self._order[~np.isin(self._order, rows)]
        self._order = np.insert(order, np.searchsorted(self.keys[order], keys), rows)
        count = max(0, int(rows.max()) + 1 - len(self))
        self._append(np.zeros(count, self.keys.dtype), np.zeros(count, np.int64), np.zeros(count, np.int32))
        self.keys[rows] = keys
        self.cost[rows] = cost
        self.rank[rows] = draw_ranks(keys, self._places_of)
        self.owner[rows] = owner
        self._queued[rows] = False

    def _append(self, keys: Keys, cost: NDArray[np.int64], owner: NDArray[np.int32]) -> None:
        """Appends absent chunks to all columns but `_order`."""
        self.keys = np.concatenate([self.keys, keys])
        self.cost = np.concatenate([self.cost, cost])
        self.rank = np.concatenate([self.rank, draw_ranks(keys, self._places_of)])
        self.owner = np.concatenate([self.owner, owner])
        self.state = np.concatenate([self.state, np.zeros(len(keys), np.uint8)])
        self.scheduled = np.concatenate([self.scheduled, np.zeros(len(keys), np.uint16)])
        self._queued = np.concatenate([self._queued, np.zeros(len(keys), np.bool_)])

    def place(self, places: Places | None) -> None:
        """Ranks all chunks anew, now and when they are added, by their place among peers; None means without peers."""
        self._places_of = places
        self.rank = draw_ranks(self.keys, places)
        for group in self.groups:
            self.rebuild(group)

    def price(self, rows: Rows, cost: NDArray[np.int64]) -> None:
        """Sets the cost of those of the rows that are in a read-only layer, and may have to be fetched later."""
        below = self.state[rows] == ChunkState.BELOW
        self.cost[rows[below]] = cost[below]

    def is_local(self, row: int) -> bool:
        """Whether the chunk is readable on this machine now."""
        return bool(self.state[row] >= ChunkState.KEPT)

    def is_evictable(self, row: int) -> bool:
        """Whether the chunk is kept, and neither referenced by a session nor scheduled in a running epoch."""
        return bool(self.state[row] == ChunkState.KEPT and row not in self.referenced and self.scheduled[row] == 0)

    def select(self, group: ChunkGroup) -> None:
        """Computes the `least_rank` of a group again after its quota or owners changed. O(chunks)."""
        rows = group.rows[(self.owner[group.rows] == group.index) & (self.state[group.rows] != ChunkState.BELOW)]
        step = RANK_BITS - SELECTION_BITS
        bins = self.rank[rows] >> step
        if len(rows) < 1 << SELECTION_BITS:
            # A sum over all bins takes 0.7 ms: for each of 200 members, 0.15 s (2026-11-24).
            from_above = np.argsort(bins)[::-1]
            fitting = int(np.searchsorted(np.cumsum(self.cost[rows[from_above]]), group.quota_bytes, side="right"))
            lowest = int(bins[from_above[fitting]]) + 1 if fitting < len(rows) else 0
        else:
            cost = np.bincount(bins, weights=self.cost[rows], minlength=1 << SELECTION_BITS)
            fitting = int(np.searchsorted(np.cumsum(cost[::-1]), group.quota_bytes, side="right"))
            lowest = (1 << SELECTION_BITS) - fitting
        group.least_rank = lowest << step

    def is_home(self, row: int) -> bool:
        """Whether this engine is the chunk's home, which keeps it for all peers; False without peers."""
        place = int(self.rank[row]) >> (RANK_BITS - PLACE_BITS)
        return self._places_of is not None and place == (1 << PLACE_BITS) - 1

    def is_selected(self, row: int) -> bool:
        """Whether the chunk's rank is among those that fit into the quota of its dataset."""
        return bool(self.rank[row] >= self.groups[self.owner[row]].least_rank)

    def queue_evictable(self, row: int) -> None:
        """Puts a chunk into the heap of its group if it is evictable and not there; otherwise does nothing."""
        if not self._queued[row] and self.is_evictable(row):
            self._queued[row] = True
            heapq.heappush(self.groups[self.owner[row]].heap, int(self.rank[row]) << ROW_BITS | row)

    def queue_evictable_of(self, rows: Rows) -> None:
        """Queues those of the rows that are evictable, as `queue_evictable`, which took a second for 10^6 rows."""
        kept = rows[(self.state[rows] == ChunkState.KEPT) & (self.scheduled[rows] == 0) & ~self._queued[rows]]
        if len(kept) < _FEW_ROWS:
            for row in kept.tolist():
                self.queue_evictable(row)
            return
        found = unique(kept).astype(np.int64)
        found = found[~np.isin(found, np.fromiter(self.referenced, np.int64, len(self.referenced)))]
        self._queued[found] = True
        owners = self.owner[found]
        entries = self.rank[found] << ROW_BITS | found
        for index in unique(owners).tolist():
            heap = self.groups[index].heap
            is_sorted = not heap
            # A sorted list is a heap.
            heap += np.sort(entries[owners == index]).tolist()
            if not is_sorted:
                heapq.heapify(heap)

    def lowest_evictable(self, group: ChunkGroup) -> int | None:
        """Returns the group's evictable chunk of the lowest rank, which stays in the heap; None if there is none."""
        heap = group.heap
        while heap:
            row = heap[0] & _ROW_MASK
            if self.owner[row] != group.index:
                heapq.heappop(heap)
            elif not self.is_evictable(row):
                heapq.heappop(heap)
                self._queued[row] = False
            else:
                return row
        return None

    def take_evictable(self, group: ChunkGroup) -> int | None:
        """Takes `lowest_evictable` out of the heap and returns it or None; the caller evicts it, or queues it again."""
        row = self.lowest_evictable(group)
        if row is not None:
            heapq.heappop(group.heap)
            self._queued[row] = False
        return row

    def rebuild(self, group: ChunkGroup) -> None:
        """Computes the group's heap and `kept_bytes` anew after owners or ranks changed. O(rows)."""
        mine = self.owner == group.index
        self._queued[mine] = False
        kept = mine & ((self.state == ChunkState.KEPT) | (self.state == ChunkState.FETCHING_KEPT))
        group.kept_bytes = int(self.cost[kept].sum())
        group.heap = []
        self.queue_evictable_of(np.flatnonzero(kept).astype(np.int32))
