"""The policy's table of chunks: keys, ranks, costs, groups and the queues of their evictable chunks."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.cache.policy import table as table_module
from streamer.cache.policy.table import (
    CHUNK_ALLOWANCE_BYTES,
    RANK_BITS,
    SELECTION_BITS,
    ChunkState,
    ChunkTable,
    arrange_keys,
    charge,
    charge_each,
    draw_ranks,
    to_keys,
)


def table_of(count: int) -> ChunkTable:
    """Makes a table with one group of `count` chunks, every one kept."""
    table = ChunkTable()
    group = table.group("d")
    keys = to_keys([bytes([n]) + bytes(15) for n in range(count)])
    group.rows = table.intern(keys, np.full(count, 10), np.zeros(count, np.int16))
    table.state[:] = ChunkState.KEPT
    return table


@pytest.mark.parametrize(("length", "blocks"), [(1, 1), (4096, 1), (4097, 2), (8 << 20, 2048)])
def test_whole_blocks_and_an_allowance_are_charged(length: int, blocks: int) -> None:
    """A file is charged in whole blocks of 4096 bytes and an allowance, the same for one file as for many."""
    assert charge(length) == blocks * 4096 + CHUNK_ALLOWANCE_BYTES
    assert charge_each(np.array([length])).tolist() == [charge(length)]


@pytest.mark.parametrize("kind", ["list", "V16", "S16", "uint8"])
def test_keys_come_in_any_shape(kind: str) -> None:
    """Keys are bytes, numpy strings or rows of uint8, also with zeros at the end, which numpy's strings hide."""
    raw = [b"a" * 16, b"b" + bytes(15)]
    grid = np.frombuffer(b"".join(raw), np.uint8).reshape(2, 16)
    given = raw if kind == "list" else grid if kind == "uint8" else np.array(raw, kind)
    table = ChunkTable()
    rows = table.intern(to_keys(given), np.array([1, 2]), np.zeros(2, np.int16))
    assert [table.key(row) for row in rows.tolist()] == raw
    assert table.find(raw[1]) == rows[1]
    assert table.find(b"c" * 16) is None


def test_known_keys_keep_their_rows() -> None:
    """Interning a known key again, also twice in one call, returns its row, and its first cost stays."""
    table = table_of(5)
    keys = to_keys([bytes([n]) + bytes(15) for n in (7, 3, 7, 0)])
    rows = table.intern(keys, np.array([1, 2, 3, 4]), np.zeros(4, np.int16)).tolist()
    assert rows[0] == rows[2] == 5
    assert rows[1] == 3
    assert len(table) == 6
    assert table.cost[5] == 1


@given(st.lists(st.tuples(st.lists(st.integers(0, 40), max_size=20), st.booleans()), max_size=8))
def test_keys_are_found_after_any_additions(additions: list[tuple[list[int], bool]]) -> None:
    """Every known key is found with its own cost and rank, also where rows that were given up are used again."""
    table = ChunkTable()
    known: set[bytes] = set()
    for numbers, gives_up in additions:
        if gives_up:
            known = {table.key(row) for group in table.groups for row in group.rows[::2].tolist()}
            for group in table.groups:
                group.rows = group.rows[::2]
            table.reclaim()
        group = table.group(str(len(table.groups)))
        raw = [number.to_bytes(16, "little") for number in numbers]
        keys = to_keys(raw)
        lengths = np.array(numbers, np.int64) * 4096
        table.add_rows([(group, lengths, keys)], arrange_keys(keys) if numbers else None)
        known |= set(raw)
        assert [table.key(row) for row in group.rows.tolist()] == raw
        for key in known:
            row = table.find(key)
            assert row is not None
            assert table.key(row) == key
            assert table.cost[row] == charge(4096 * int.from_bytes(key, "little"))
            assert table.rank[row] == draw_ranks(to_keys([key]))[0]
    assert (np.diff(np.argsort(table.keys[table._order], kind="stable")) == 1).all()


def test_ranks_are_uniform() -> None:
    """Ranks of consecutive keys are uniform: each tenth of the range has a tenth of 10,000 keys."""
    ranks = draw_ranks(to_keys([n.to_bytes(16, "big") for n in range(10_000)]))
    shares = np.histogram(ranks, 10, (0, 1 << 31))[0] / 10_000
    assert np.abs(shares - 0.1).max() < 0.015


ROWS = st.lists(st.integers(0, 29), max_size=40)


@given(st.lists(ROWS, min_size=1, max_size=3), ROWS, ROWS, ROWS)
def test_many_chunks_are_queued_as_each_alone(
    calls: list[list[int]], absent: list[int], scheduled: list[int], referenced: list[int]
) -> None:
    """Evictable chunks come in the same order whether they are queued one by one or by arrays."""
    found = []
    for few in (0, 1000):
        table = table_of(30)
        table.group("e")
        table.owner[::3] = 1
        table.rank[:] = np.arange(30) * 7 % 11
        table.state[absent] = ChunkState.ABSENT
        table.scheduled[scheduled] = 1
        table.referenced = dict.fromkeys(referenced, 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(table_module, "_FEW_ROWS", few)
            for rows in calls:
                table.queue_evictable_of(np.array(rows, np.int32))
        found.append([list(iter(partial(table.take_evictable, group), None)) for group in table.groups])
    assert found[0] == found[1]


def test_evictable_chunks_come_by_rank_and_only_while_evictable() -> None:
    """Evictable chunks come by rank; a referenced or scheduled one is passed over until it is queued again."""
    table = table_of(6)
    group = table.groups[0]
    table.rank[:] = [50, 40, 30, 20, 10, 0]
    table.queue_evictable_of(group.rows)
    table.referenced[5] = 1
    table.scheduled[4] = 1
    assert [table.take_evictable(group) for _ in range(3)] == [3, 2, 1]
    del table.referenced[5]
    table.queue_evictable(5)
    table.queue_evictable(5)
    assert [table.take_evictable(group) for _ in range(3)] == [5, 0, None]


def test_a_million_chunks_take_little_memory() -> None:
    """The table takes at most 50 bytes per chunk, so 1.5 million fit beside the engine's other tables."""
    table = ChunkTable()
    keys = np.random.default_rng(0).integers(0, 256, (1_000_000, 16), dtype=np.uint8)
    table.intern(to_keys(keys), np.full(len(keys), 1), np.zeros(len(keys), np.int16))
    columns = [value for value in vars(table).values() if isinstance(value, np.ndarray)]
    assert sum(column.nbytes for column in columns) <= 50 * len(keys)


@pytest.mark.parametrize("quota_share", [0.0, 0.3, 0.999, 1.0, 2.0])
def test_few_chunks_are_selected_as_many_are(quota_share: float) -> None:
    """Chunks are selected by the sums of their costs from the highest rank down; equal bins of ranks go together."""
    random, table = np.random.default_rng(4), ChunkTable()
    group = table.group("few")
    group.rows = table.rows_of(random.bytes(16 * 500), random.integers(1, 1 << 20, 500), group)
    table.rank[group.rows] = random.integers(0, 300, 500) << (RANK_BITS - SELECTION_BITS)
    group.quota_bytes = int(table.cost.sum() * quota_share)
    table.select(group)
    bins = table.rank >> (RANK_BITS - SELECTION_BITS)
    least = next(least for least in range(301) if table.cost[bins >= least].sum() <= group.quota_bytes)
    assert group.least_rank == least << (RANK_BITS - SELECTION_BITS)
