"""Candidates for eviction: their order, and that a candidate that is not taken can be found again."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.cache.policy.table import ChunkGroup, ChunkState, ChunkTable, to_keys
from streamer.cache.policy.victims import Victims

COST = 100


def kept(table: ChunkTable, name: str, ranks: list[int]) -> ChunkGroup:
    """Makes a dataset of kept, evictable chunks with these ranks."""
    group = table.group(name)
    keys = to_keys([f"{name}{number}".encode().ljust(16, b"\0") for number in range(len(ranks))])
    count = len(ranks)
    group.rows = table.intern(keys, np.full(count, COST, np.int64), np.full(count, group.index, np.int16))
    table.rank[group.rows] = ranks
    table.state[group.rows] = ChunkState.KEPT
    group.kept_bytes = count * COST
    table.queue_evictable_of(group.rows)
    return group


def ranks_of(table: ChunkTable, rows: list[int]) -> list[int]:
    return [int(table.rank[row]) for row in rows]


@pytest.fixture
def table() -> ChunkTable:
    """Makes an empty table of chunks."""
    return ChunkTable()


def test_as_many_as_needed_by_rank(table: ChunkTable) -> None:
    """Victims are collected by rank until the bytes suffice; none are when none are needed."""
    group, victims = kept(table, "a", [30, 10, 20]), Victims(table)
    assert victims.collect(0, victims.evictable(group)) == []
    found = victims.collect(COST + 1, victims.evictable(group))
    assert found is not None
    assert ranks_of(table, found) == [10, 20]


def test_what_did_not_suffice_is_found_again(table: ChunkTable) -> None:
    """Candidates that together are too few go back to the queue, so that they can be evicted later."""
    group, victims = kept(table, "a", [30, 10, 20]), Victims(table)
    assert victims.collect(4 * COST, victims.evictable(group)) is None
    assert ranks_of(table, list(victims.evictable(group))) == [10, 20, 30]


def test_a_chunk_that_comes_up_twice_counts_once(table: ChunkTable) -> None:
    """A chunk that is a candidate twice is collected once, and its bytes count once."""
    group, victims = kept(table, "a", [10, 20]), Victims(table)
    rows = group.rows.tolist()
    assert victims.collect(2 * COST, [rows[0], rows[0], rows[1]]) == rows


def test_the_richest_gives_first_and_no_more_than_its_surplus(table: ChunkTable) -> None:
    """Live datasets above their quota give chunks in the order of their surplus, and each keeps its quota."""
    victims = Victims(table)
    for name, ranks, quota in (("a", [1, 2, 3], 2), ("b", [4, 5, 6], 1), ("c", [7], 1)):
        group = kept(table, name, ranks)
        group.jobs.add("job")
        group.quota_bytes = quota * COST
    rich = victims.above_quota()
    assert [group.name for group in rich] == ["b", "a"]
    assert ranks_of(table, list(victims.surplus(rich))) == [4, 5, 1]


def test_datasets_without_a_job_go_in_order_of_their_last_use(table: ChunkTable) -> None:
    """Idle datasets are evicted in the order of their last use; datasets of a live job are not among them."""
    victims = Victims(table)
    for name, rank, used in (("a", 1, 7), ("b", 2, 3), ("c", 3, 1)):
        kept(table, name, [rank]).last_used = used
    table.group("c").jobs.add("job")
    assert ranks_of(table, list(victims.list_idle())) == [2, 1]
    assert ranks_of(table, list(victims.evictable_anywhere())) == [3]


def test_only_lower_ranks_of_the_same_dataset_are_outranked(table: ChunkTable) -> None:
    """A used transit chunk takes the place of chunks of lower rank in its own dataset only."""
    victims = Victims(table)
    group = kept(table, "a", [10, 20, 30])
    kept(table, "b", [1])
    row = int(group.rows[1])
    table.state[row] = ChunkState.TRANSIT
    assert ranks_of(table, list(victims.list_lower_ranks(row))) == [10]


def test_a_chosen_chunk_is_never_outranked(table: ChunkTable) -> None:
    """A selected chunk never takes the place of another selected one, which would have to be fetched again."""
    victims = Victims(table)
    group = kept(table, "a", [10, 20, 30])
    group.least_rank = 20
    row = int(group.rows[2])
    table.state[row] = ChunkState.TRANSIT
    assert ranks_of(table, list(victims.list_lower_ranks(row))) == [10]


def test_held_chunks_that_are_not_chosen_are_found_by_who_holds_them(table: ChunkTable) -> None:
    """Demotable chunks are kept, referenced ones of the same dataset, neither selected nor scheduled by an epoch."""
    victims = Victims(table)
    group, other = kept(table, "a", [10, 20, 25, 30, 40]), kept(table, "b", [1])
    group.least_rank = other.least_rank = 30
    for row in (*group.rows[1:].tolist(), int(other.rows[0])):
        table.referenced[row] = 1
    table.scheduled[group.rows[2]] = 1
    assert ranks_of(table, list(victims.list_demotable(int(group.rows[4])))) == [20]
