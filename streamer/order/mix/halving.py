"""Splits counts evenly over batches: every member and every lane gets its share in each, rounded up or down.

All counts are halved, log2 T times. What is odd cannot be halved: it is an edge between a member and a lane, and of the
edges at each member and at each lane every second one must go to the first half. Edges are paired at every vertex; the
pairs make closed walks on which edges of the two halves alternate (de Werra 1971: such a split always exists).
"""

from __future__ import annotations

import numpy as np

from streamer.order.hashing import Flags, Integers, fold, fold_each


def split_evenly(counts: Integers, parts: int, state: int) -> Integers:
    """Splits counts so that no row, column or sum of a part is more than 1 from its share.

    A cell of depth d is less than 1 from its share too, so the first p parts of a cell have less than 1.7 more or less
    than p / T of it: p and T - p are sums of at most two of its nodes of depth 4 and above.

    Args:
        counts: (M, L).
        parts: T, a power of two.
        state: of the hash that chooses between equal splits.

    Returns:
        (T, M, L) counts that sum to `counts`.
    """
    found = counts[None]
    level = 0
    while len(found) < parts:
        first = _halve(found, fold(state, level))
        found = np.stack([first, found - first], axis=1).reshape(-1, *counts.shape)
        level += 1
    return found


def _halve(counts: Integers, state: int) -> Integers:
    """(G, M, L) one half of each of G tables; the rest is the other half."""
    half = counts >> 1
    table, row, column = np.nonzero(counts & 1)
    if len(table):
        chosen = _every_second((table, row, column), counts.shape, state)
        half[table[chosen], row[chosen], column[chosen]] += 1
    return half


def _every_second(edges: tuple[Integers, Integers, Integers], shape: tuple[int, ...], state: int) -> Flags:
    """(E,) of the edges at each vertex, every second one."""
    rows, columns = _even_edges(edges, shape)
    order = np.argsort(fold_each(state, np.arange(len(rows))))
    row_partner, column_partner = _pairs(rows, order), _pairs(columns, order)
    # The walk over a column and a row visits every second edge of its closed walk; the rest is the partners' walk.
    label = np.empty(len(rows), np.int64)
    label[order] = np.arange(len(rows))
    step = row_partner[column_partner]
    for _ in range(len(rows).bit_length()):
        label = np.minimum(label, label[step])
        step = step[step]
    chosen: Flags = (label < label[column_partner])[: len(edges[0])]
    return chosen


def _even_edges(edges: tuple[Integers, Integers, Integers], shape: tuple[int, ...]) -> tuple[Integers, Integers]:
    """Row and column vertex of each edge, and of added ones, after which every vertex has an even number.

    An odd row gets an edge to an added column, an odd column one to an added row, and these two get one where needed.
    """
    tables, rows, columns = shape
    table, row, column = edges
    row_vertex, column_vertex = table * (rows + 1) + row, table * (columns + 1) + column
    odd_rows = np.bincount(row_vertex, minlength=tables * (rows + 1)).reshape(tables, rows + 1) & 1
    odd_columns = np.bincount(column_vertex, minlength=tables * (columns + 1)).reshape(tables, columns + 1) & 1
    (row_table, odd_row), (column_table, odd_column) = np.nonzero(odd_rows), np.nonzero(odd_columns)
    both = np.flatnonzero(odd_rows.sum(axis=1) & 1)
    return (
        np.concatenate(
            [row_vertex, row_table * (rows + 1) + odd_row, column_table * (rows + 1) + rows, both * (rows + 1) + rows]
        ),
        np.concatenate(
            [
                column_vertex,
                row_table * (columns + 1) + columns,
                column_table * (columns + 1) + odd_column,
                both * (columns + 1) + columns,
            ]
        ),
    )


def _pairs(vertices: Integers, order: Integers) -> Integers:
    """Pairs the edges at each vertex, neighbours in `order`; returns the partner of each edge."""
    arranged = order[np.argsort(vertices[order], kind="stable")]
    partner = np.empty(len(vertices), np.int64)
    partner[arranged[0::2]], partner[arranged[1::2]] = arranged[1::2], arranged[0::2]
    return partner
