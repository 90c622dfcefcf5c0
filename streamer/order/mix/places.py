"""Says which member, and which of its samples in the lane, is at which place of a lane, in one epoch of a mix.

`order/mix/order.py` finds samples by it, and `order/adopt.py` counts how far the members of a run are. M is the number
of members, L that of lanes.

T batches form a window. The tree (`order/mix/tree.py`) says how many samples each member has in the window. Inside,
they are split evenly over the batches ("stratified") or not at all ("random"), and the places of a lane are permuted.
Every window can be computed on its own, so any place costs one window, wherever it is.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import numpy as np

from streamer.base.sorting import unique
from streamer.order.hashing import Flags, Integers, Words, fold, fold_each, permute
from streamer.order.mix.spec import MixSpec
from streamer.order.mix.tree import LaneShares


def split_evenly(counts: Integers, parts: int, states: Words) -> Integers:
    """Splits each table of counts into T equal parts.

    Each cell, row, column and sum of a part differs from its share by 1 at most. The first p parts of a cell differ
    from p / T of the cell by less than 1.7: p or T - p parts are two nodes of the halving, one of depth 2 or less. All
    tables are split at once, because a small table costs only the calls.

    Args:
        counts: (V, M, L), a table of members and lanes for each of V windows.
        parts: T, a power of two of at most 16.
        states: (V,) states of the hashes that choose between equal splits.

    Returns:
        (V, T, M, L) counts that sum to `counts`.
    """
    found = counts
    while len(found) < parts * len(counts):
        first = found >> 1
        table, row, column = np.nonzero(found & 1)
        if len(table):
            chosen = _every_second((table, row, column), found.shape, states)
            first[table[chosen], row[chosen], column[chosen]] += 1
        found = np.stack([first, found - first], axis=1).reshape(-1, *counts.shape[1:])
        states = fold_each(np.repeat(states, 2), np.tile([0, 1], len(states)))
    return found.reshape(len(counts), parts, *counts.shape[1:])


def _every_second(edges: tuple[Integers, Integers, Integers], shape: tuple[int, ...], states: Words) -> Flags:
    """Chooses every second edge at each vertex of bipartite graphs; returns which edges are chosen, (E,).

    A table is such a graph: an odd cell is an edge between its row and its column.

    Args:
        edges: table, row and column of each edge, (E,) each.
        shape: number of tables, rows and columns.
        states: state of the hash of each table.
    """
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
    """Returns the edges and added ones behind them, with which every vertex has an even number of edges.

    A row with an odd number gets an edge to an added column, such a column one to an added row. The added row and
    column get an edge if their numbers are odd, too.
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
    """Pairs the edges at each vertex, in their order by `order`; returns the partner of each edge."""
    # 16-bit words are sorted by radix, ten times as fast as longer ones.
    short = vertices.astype(np.uint16) if vertices.max() < 1 << 16 else vertices
    arranged = order[np.argsort(short[order], kind="stable")]
    partner = np.empty(len(vertices), np.int64)
    partner[arranged[0::2]], partner[arranged[1::2]] = arranged[1::2], arranged[0::2]
    return partner


TAG_SPLIT = 33
TAG_PLACE = 34

# Most counts or places of windows that are computed together: 1 MB. More does not stay in the processor's cache.
_CELLS = 1 << 17
# How far the first parts of a window may be from an even split, see `split_evenly`.
_SLACK = 2


class _Windows(msgspec.Struct, frozen=True, eq=False):
    """The places of V windows of one size in K lanes. A window has P parts: its batches if stratified, else itself.

    Attributes:
        first: (V,) first batch of each window, ascending.
        lanes: (K,) lanes, ascending.
        members: (V, P, K, S) number of the member at each of S places of a part in a lane.
        counts: (V, P, K, S) how many samples of that member come before in the lane.
    """

    first: Integers
    lanes: Integers
    members: Integers
    counts: Integers

    def has(self, first: Integers, lanes: Integers) -> bool:
        """Whether all of these windows, by first batch, and lanes are among its own."""
        return bool(np.isin(first, self.first).all() and np.isin(lanes, self.lanes).all())


class LaneWindows:
    """The places of one epoch, computed window by window; owned by one thread.

    Args:
        shares: counts of the members in the lanes.
        shape: places of a lane in a batch, and T, batches of a window, a power of two.
        place: seed of the mix, and number of the epoch.
        stratified: whether each batch of a window has every member's share.

    Attributes:
        lane_samples: (L,) number of places of each lane.
    """

    def __init__(self, shares: LaneShares, shape: tuple[int, int], place: tuple[int, int], *, stratified: bool) -> None:
        slots, window = shape
        seed, epoch = place
        self._shares = shares
        self.lane_samples: Integers = shares.lane_samples
        self._slots = slots
        self._window = window
        self._stratified = stratified
        self._split = fold(seed, TAG_SPLIT, epoch)
        self._states = fold(seed, TAG_PLACE, epoch)
        # The last window of an epoch is cut into 8, 4, 2, 1 batches as needed, and an incomplete batch.
        self._batches = int(shares.lane_samples.min()) // slots
        whole = self._batches // window * window
        rest = self._batches - whole
        sizes = [size for size in (1 << bit for bit in range(window.bit_length() - 1, -1, -1)) if rest & size]
        self._tail_sizes = np.array([*sizes, 1], np.int64)
        self._tail_first = whole + np.cumsum([0, *sizes])
        self._kept: dict[int, _Windows] = {}
        self._cells = max(shares.quotas.size, slots * len(shares.lane_samples))

    def find(self, lanes: Integers, slots: Integers) -> tuple[Integers, Integers]:
        """Returns the member at each place, and how many samples of it come before in the lane: both (N,).

        Args:
            lanes: (N,) lanes.
            slots: (N,) places in these lanes.
        """
        members = np.empty(len(lanes), np.int64)
        counts = np.empty(len(lanes), np.int64)
        first, size = self._window_of(slots)
        for batches in unique(size).tolist():
            for mine in self._groups(np.flatnonzero(size == batches), first):
                windows = self._open(unique(first[mine]), unique(lanes[mine]), batches)
                place = slots[mine] - first[mine] * self._slots
                part = place // self._slots if self._stratified else np.zeros_like(place)
                window = np.searchsorted(windows.first, first[mine])
                at = window, part, np.searchsorted(windows.lanes, lanes[mine]), place - part * self._slots
                members[mine] = windows.members[at]
                counts[mine] = windows.counts[at]
        return members, counts

    def counts(self, slots: Integers) -> Integers:
        """Returns how many samples of each member the first places of every lane have: (M, L).

        Args:
            slots: (L,) number of first places of each lane.
        """
        begun = self._window_of(slots)[0] * self._slots
        found = self._shares.counts(begun)
        open_slots = slots - begun
        lanes = np.repeat(np.arange(len(slots)), open_slots)
        inside = np.arange(len(lanes)) - np.repeat(np.cumsum(open_slots) - open_slots, open_slots)
        members, _ = self.find(lanes, begun[lanes] + inside)
        np.add.at(found, (members, lanes), 1)
        return found

    def span(self, member: int, lanes: Integers, begin: Integers, end: Integers) -> tuple[Integers, Integers]:
        """Returns the half-open counts of a member's samples that a run of places in each lane can have: (N,) each.

        They are those of the whole windows that have places of the run.

        Args:
            member: number of the member.
            lanes: (N,) lanes.
            begin: (N,) the first place of the run in each of these lanes.
            end: (N,) the place behind its last one.
        """
        first, _ = self._window_of(begin)
        last, size = self._window_of(np.maximum(end - 1, begin))
        stops = self._stops(lanes, last, size)
        return self._shares.count(member, lanes, first * self._slots), self._shares.count(member, lanes, stops)

    def bounds(self, member: int, lanes: Integers, counts: Integers) -> tuple[Integers, Integers]:
        """Returns the first and the last place at which samples of a member can be, inclusive: (N,) each.

        Args:
            member: number of the member.
            lanes: (N,) lanes.
            counts: (N,) how many samples of the member come before each in its lane.
        """
        first, size = self._window_of(self._shares.slots(member, lanes, counts))
        stops = self._stops(lanes, first, size)
        if not self._stratified:
            return first * self._slots, stops - 1
        before = self._shares.count(member, lanes, first * self._slots)
        many = self._shares.count(member, lanes, stops) - before
        rank = counts - before
        low = first + np.maximum(0, (rank - _SLACK) * size // many)
        high = first + np.minimum(size, (rank + _SLACK) * size // many + 1)
        return low * self._slots, np.minimum(np.where(first < self._batches, high * self._slots, stops), stops) - 1

    def _window_of(self, slots: Integers) -> tuple[Integers, Integers]:
        """Returns the first batch of the window that has each place, and the number of the window's batches."""
        batch = np.minimum(slots // self._slots, self._batches)
        first = batch // self._window * self._window
        size = np.full(len(slots), self._window)
        tail = np.flatnonzero(batch >= self._tail_first[0])
        which = np.searchsorted(self._tail_first, batch[tail], side="right") - 1
        first[tail] = self._tail_first[which]
        size[tail] = self._tail_sizes[which]
        return first, size

    def _stops(self, lanes: Integers, first: Integers, size: Integers) -> Integers:
        """Returns the place behind the last one of windows in lanes; the incomplete batch ends with its lane."""
        return np.where(first < self._batches, (first + size) * self._slots, self.lane_samples[lanes])

    def _groups(self, mine: Integers, first: Integers) -> list[Integers]:
        """Divides places into parts, each of which has few enough windows that they are computed together."""
        together = max(1, _CELLS // (self._window * self._cells))
        group = np.searchsorted(unique(first[mine]), first[mine]) // together
        return [mine] if group.max() == 0 else [mine[group == number] for number in range(int(group.max()) + 1)]

    def _open(self, first: Integers, lanes: Integers, size: int) -> _Windows:
        """Returns windows of one size in lanes; for each size, those of the last call are kept."""
        kept = self._kept.get(size)
        if kept is None or not kept.has(first, lanes):
            # The counts of each part of the windows, and those of the lanes before it, are (V, P, M, L).
            begin, lane = np.broadcast_arrays(first[:, None], np.arange(len(self.lane_samples)))
            before = self._shares.counts(begin * self._slots)
            counts = (self._shares.counts(self._stops(lane, begin, np.full_like(begin, size))) - before).swapaxes(0, 1)
            parts = split_evenly(counts, size, fold_each(self._split, first)) if self._stratified else counts[:, None]
            ahead = before.swapaxes(0, 1)[:, None] + np.cumsum(parts, axis=1) - parts
            kept = self._kept[size] = self._place(first, lanes, ahead, parts)
        return kept

    def _place(self, first: Integers, lanes: Integers, before: Integers, parts: Integers) -> _Windows:
        """Deals the samples of each part of a lane to its places, at random; those of a member stay in their order.

        Args:
            first: (V,) first batch of each window.
            lanes: (K,) lanes of the result.
            before: (V, P, M, L) how many samples of each member come before each part in every lane.
            parts: (V, P, M, L) how many samples of each member each part has in every lane.
        """
        # The runs are one line: of the first window, part and lane the first member, the second one, and so on.
        runs = parts[..., lanes].swapaxes(2, 3)
        sizes = runs.sum(axis=3)
        keys = fold_each(fold_each(self._states, first)[:, None, None], np.arange(sizes.shape[1])[:, None])
        # The places of each cell are permuted, and counted through the runs of the cell.
        cells = np.repeat(np.arange(sizes.size), sizes.ravel())
        starts = np.cumsum(sizes) - sizes.ravel()
        place = np.arange(len(cells)) - starts[cells]
        drawn = starts[cells] + permute(place, sizes.ravel()[cells], fold_each(keys, lanes).ravel()[cells])
        run = np.searchsorted(np.cumsum(runs), drawn, side="right")
        members, counts = np.zeros((2, sizes.size, int(sizes.max())), np.int64)
        members[cells, place] = run % runs.shape[3]
        # Sorted by cell and member the places follow the line again, those of a run in their order. 16-bit words are
        # sorted by radix, faster than longer ones.
        by_member = np.argsort(members[cells, place].astype(np.uint16), kind="stable")
        cell = cells[by_member]
        arranged = by_member[np.argsort(cell.astype(np.uint16) if cells[-1] < 1 << 16 else cell, kind="stable")]
        ahead = before[..., lanes].swapaxes(2, 3) - (np.cumsum(runs).reshape(runs.shape) - runs)
        counts[cells[arranged], place[arranged]] = np.arange(len(cells)) + ahead.ravel()[run[arranged]]
        shape = (*sizes.shape, -1)
        return _Windows(first, lanes, members.reshape(shape), counts.reshape(shape))


class GroupWindows:
    """The places of an epoch whose batches consist of groups of one member each.

    Args:
        groups: places of the groups: group g of every batch is a place in lane g of these.
        width: number of lanes of the mix that each group has.
        slots: places of a lane of the mix in a batch.

    Attributes:
        lane_samples: (L,) number of places of each lane.
    """

    def __init__(self, groups: LaneWindows, width: int, slots: int) -> None:
        self._groups = groups
        self._width = width
        self._slots = slots
        self.lane_samples = np.repeat(groups.lane_samples * slots, width)

    def find(self, lanes: Integers, slots: Integers) -> tuple[Integers, Integers]:
        """See `LaneWindows.find`."""
        batch, inside = np.divmod(slots, self._slots)
        members, counts = self._groups.find(lanes // self._width, batch)
        return members, counts * self._slots + inside

    def counts(self, slots: Integers) -> Integers:
        """See `LaneWindows.counts`."""
        batches, inside = np.divmod(slots, self._slots)
        whole = [self._groups.counts(batches[lane :: self._width]) for lane in range(self._width)]
        found = np.stack(whole, axis=2).reshape(len(whole[0]), len(slots)) * self._slots
        running = np.flatnonzero(inside)
        members, _ = self._groups.find(running // self._width, batches[running])
        found[members, running] += inside[running]
        return found

    def span(self, member: int, lanes: Integers, begin: Integers, end: Integers) -> tuple[Integers, Integers]:
        """See `LaneWindows.span`."""
        ends = (begin // self._slots, -(-end // self._slots))
        low, high = self._groups.span(member, lanes // self._width, *ends)
        return low * self._slots, high * self._slots

    def bounds(self, member: int, lanes: Integers, counts: Integers) -> tuple[Integers, Integers]:
        """See `LaneWindows.bounds`."""
        low, high = self._groups.bounds(member, lanes // self._width, counts // self._slots)
        return low * self._slots, (high + 1) * self._slots - 1


Places: TypeAlias = LaneWindows | GroupWindows


def epoch_places(spec: MixSpec, epoch: int) -> Places:
    """Returns the places of one epoch, by the batching of the mix.

    Raises:
        ConfigError: the epoch is before the mix's first one, or too long (see `LaneShares`).
    """
    quotas = spec.places(epoch)
    if spec.batching != "homogeneous":
        shares = LaneShares(quotas, spec.lanes, spec.seed, epoch)
        stratified = spec.batching == "stratified"
        return LaneWindows(shares, (spec.slots, spec.window), (spec.seed, epoch), stratified=stratified)
    # A lane for each group, with equal quotas: all lanes of the mix take as much of a member's stream.
    groups = LaneShares([quota // spec.unit * spec.groups for quota in quotas], spec.groups, spec.seed, epoch)
    windows = LaneWindows(groups, (1, spec.window), (spec.seed, epoch), stratified=spec.groups > 1)
    return GroupWindows(windows, spec.lanes // spec.groups, spec.slots)


def lane_quotas(spec: MixSpec, epoch: int) -> Integers:
    """Returns the number of samples of each member in each lane of an epoch: (M, L).

    A member may have more places in a lane than that; the others repeat its last samples there.
    """
    quotas, starts, turns = (
        np.array(column)[:, None] for column in (spec.quotas(epoch), spec.stream_starts(epoch), spec.turns(epoch))
    )
    found: Integers = (quotas + spec.lanes - 1 - (np.arange(spec.lanes) - starts - turns) % spec.lanes) // spec.lanes
    return found


def lane_ends(position: int, lanes: int) -> Integers:
    """Returns how many places of each lane the first `position` positions of an epoch have: (L,)."""
    return (position + lanes - 1 - np.arange(lanes)) // lanes
