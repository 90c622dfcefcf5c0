"""Splits counts evenly over batches: every member and every lane gets its share in each, rounded up or down.

All counts are halved, log2 T times. What is odd cannot be halved: it is an edge between a member and a lane, and of the
edges at each member and at each lane every second one must go to the first half. Edges are paired at every vertex; the
pairs make closed walks on which edges of the two halves alternate (de Werra 1971: such a split always exists).
"""

from __future__ import annotations

import numpy as np

from streamer.order.hashing import Flags, Integers, Words, fold_each


def split_evenly(counts: Integers, parts: int, states: Words) -> Integers:
    """Splits tables of counts so that no row, column or sum of a part is more than 1 from its share.

    Each table is split by itself; all of them at once, for the cost of a small one is that of the calls.

    A cell of depth d is less than 1 from its share too, so the first p parts of a cell have less than 1.7 more or less
    than p / T of it: p or T - p parts are two of its nodes, of which one is of depth 2 or less.

    Args:
        counts: (V, M, L).
        parts: T, a power of two of at most 16.
        states: (V,) of the hashes that choose between equal splits.

    Returns:
        (V, T, M, L) counts that sum to `counts`.
    """
    found = counts
    while len(found) < parts * len(counts):
        first = _halve(found, states)
        found = np.stack([first, found - first], axis=1).reshape(-1, *counts.shape[1:])
        states = fold_each(np.repeat(states, 2), np.tile([0, 1], len(states)))
    return found.reshape(len(counts), parts, *counts.shape[1:])


def _halve(counts: Integers, states: Words) -> Integers:
    """Returns one half of each of G tables, (G, M, L); the rest is the other half."""
    half = counts >> 1
    table, row, column = np.nonzero(counts & 1)
    if len(table):
        chosen = _every_second((table, row, column), counts.shape, states)
        half[table[chosen], row[chosen], column[chosen]] += 1
    return half


def _every_second(edges: tuple[Integers, Integers, Integers], shape: tuple[int, ...], states: Words) -> Flags:
    """Chooses every second one of the edges at each vertex: (E,)."""
    _, rows, columns = shape
    table, row, column = _even_edges(edges, shape)
    order = np.argsort(fold_each(states[table], row * (columns + 1) + column))
    row_partner = _pairs(table * (rows + 1) + row, order)
    column_partner = _pairs(table * (columns + 1) + column, order)
    # The walk over a column and a row visits every second edge of its closed walk; the rest is the partners' walk.
    label = np.empty(len(order), np.int64)
    label[order] = np.arange(len(order))
    step = row_partner[column_partner]
    for _ in range(int(np.bincount(table).max()).bit_length()):
        label = np.minimum(label, label[step])
        step = step[step]
    chosen: Flags = (label < label[column_partner])[: len(edges[0])]
    return chosen


def _even_edges(
    edges: tuple[Integers, Integers, Integers], shape: tuple[int, ...]
) -> tuple[Integers, Integers, Integers]:
    """The edges, and added ones after which every vertex has an even number.

    An odd row gets an edge to an added column, an odd column one to an added row, and these two get one where needed.
    """
    tables, rows, columns = shape
    table, row, column = edges
    odd_rows = np.bincount(table * rows + row, minlength=tables * rows).reshape(tables, rows) & 1
    odd_columns = np.bincount(table * columns + column, minlength=tables * columns).reshape(tables, columns) & 1
    row_table, odd_row = np.nonzero(odd_rows)
    column_table, odd_column = np.nonzero(odd_columns)
    both = np.flatnonzero(odd_rows.sum(axis=1) & 1)
    return (
        np.concatenate([table, row_table, column_table, both]),
        np.concatenate([row, odd_row, np.full_like(odd_column, rows), np.full_like(both, rows)]),
        np.concatenate([column, np.full_like(odd_row, columns), odd_column, np.full_like(both, columns)]),
    )


def _pairs(vertices: Integers, order: Integers) -> Integers:
    """Pairs the edges at each vertex that are adjacent in `order`; returns the partner of each edge."""
    # 16-bit words are sorted by radix, ten times as fast as longer ones.
    short = vertices.astype(np.uint16) if vertices.max() < 1 << 16 else vertices
    arranged = order[np.argsort(short[order], kind="stable")]
    partner = np.empty(len(vertices), np.int64)
    partner[arranged[0::2]], partner[arranged[1::2]] = arranged[1::2], arranged[0::2]
    return partner
