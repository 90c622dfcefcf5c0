"""Maps places in the lanes to samples, for `order/epoch.py` and for the rounds of `order/growing/order.py`.

`order/mix/` draws samples of many members together by `OrdinalsTogether`. A place counts the samples of all lanes, lane
after lane, as they are dealt (`order/deal.py`). A piece is the part of a chunk that one lane has; a group has slices of
the pieces that are open together. Two permutations shuffle: one the samples of a group, one those of a piece.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from streamer.order.deal import Deal, Slices
from streamer.order.hashing import Integers, Words, fold_each, permute

# Samples that are computed together; 20 arrays of this length live at once, 3 MB.
_BLOCK = 1 << 14

# Returns the ordinal of the first sample of each piece, (N,), from its lane and its number in the lane.
PieceStart = Callable[[Integers, Integers], Integers]


class Draws(msgspec.Struct, frozen=True, eq=False):
    """Samples that are yet to be drawn, of lanes in which one piece is open at a time; N samples, of any decoders.

    Attributes:
        place: (N,) place in the piece, from 0.
        sizes: (N,) number of samples of the piece.
        group_keys, piece_keys: (N,) keys of the two permutations.
        start: (N,) first ordinal of the piece.
    """

    place: Integers
    sizes: Integers
    group_keys: Words
    piece_keys: Words
    start: Integers

    def ordinals(self) -> Integers:
        """Draws the samples; returns their ordinals: (N,)."""
        drawn = permute(self.place, self.sizes, self.group_keys)
        ordinals: Integers = self.start + permute(drawn, self.sizes, self.piece_keys)
        return ordinals


class OrdinalsTogether:
    """Collects the samples at a few places of each of many orders, and draws all at once, which takes less time.

    Args:
        count: number of samples in all.
    """

    def __init__(self, count: int) -> None:
        self._found = np.empty(count, dtype=np.int64)
        self._rows: list[Integers] = []
        self._draws: list[Draws] = []

    def set(self, rows: Integers, ordinals: Integers) -> None:
        """Sets the samples at some rows of the result."""
        self._found[rows] = ordinals

    def draw(self, rows: Integers, draws: Draws) -> None:
        """Adds samples that `ordinals` draws, for some rows of the result."""
        self._rows.append(rows)
        self._draws.append(draws)

    def ordinals(self) -> Integers:
        """Draws what was added; returns all ordinals: (count,)."""
        if self._draws:
            rows = np.concatenate(self._rows)
            columns = [np.concatenate([getattr(one, name) for one in self._draws]) for name in Draws.__struct_fields__]
            for i in range(0, len(rows), _BLOCK):
                part = slice(i, i + _BLOCK)
                self._found[rows[part]] = Draws(*(column[part] for column in columns)).ordinals()
        return self._found


class LaneDecoder:
    """Finds the samples at places of dealt lanes: place = samples of the lanes before + number in the lane.

    Args:
        deal: the groups of the lanes.
        keys: states of the hashes for the groups, and for the pieces, of each lane: (L,) each.
        piece_start: returns the first ordinal of pieces.
    """

    def __init__(self, deal: Deal, keys: tuple[Words, Words], piece_start: PieceStart) -> None:
        self._deal = deal
        self._group_keys, self._piece_keys = keys
        self._piece_start = piece_start

    def ordinals(self, places: Integers) -> Integers:
        """Returns the ordinals of the samples at some places, which may be in any order: (N,)."""
        found = np.empty(len(places), dtype=np.int64)
        arranged = np.argsort(places, kind="stable")
        for i in range(0, len(places), _BLOCK):
            block = arranged[i : i + _BLOCK]
            found[block] = self._decode(places[block])
        return found

    def _decode(self, places: Integers) -> Integers:
        """Does what `ordinals` promises, for ascending places."""
        if (draws := self.draws(places)) is not None:
            return draws.ordinals()
        lanes, groups = self._groups(places)
        found = np.empty(len(places), dtype=np.int64)
        done = 0
        for part in self._deal.parts(len(lanes)):
            slices = self._deal.slices(lanes[part], groups[part])
            starts = self._deal.start[lanes[part]] + slices.start
            sizes = (slices.end - slices.begin).sum(axis=1)
            stop = int(np.searchsorted(places, starts[-1] + sizes[-1]))
            rows = np.searchsorted(starts, places[done:stop], side="right") - 1
            ranks = places[done:stop] - starts[rows]
            keys = fold_each(self._group_keys[lanes[part]], groups[part])
            drawn = permute(ranks, sizes[rows], keys[rows])
            found[done:stop] = self._pick(lanes[part], slices, rows, drawn)
            done = stop
        return found

    def draws(self, places: Integers) -> Draws | None:
        """Returns the samples at some places, in any order, yet to be drawn; None if several pieces are open at a time.

        One piece is open at a time in a mix of many members.
        """
        if self._deal.window != 1:
            return None
        deal = self._deal  # a group is a piece here
        piece = np.searchsorted(deal.prefix, places, side="right") - 1
        lanes = np.searchsorted(deal.first, piece, side="right") - 1
        number = piece - deal.first[lanes]
        sizes = deal.prefix[piece + 1] - deal.prefix[piece]
        group_keys, piece_keys = (fold_each(keys[lanes], number) for keys in (self._group_keys, self._piece_keys))
        return Draws(
            place=places - deal.prefix[piece],
            sizes=sizes,
            group_keys=group_keys,
            piece_keys=piece_keys,
            start=self._piece_start(lanes, number),
        )

    def _groups(self, places: Integers) -> tuple[Integers, Integers]:
        """Returns lane and number of every group that has one of the ascending places, in their order."""
        starts = self._deal.start
        breaks = np.flatnonzero(np.diff(places) > 1)
        heads = places[np.append(0, breaks + 1)]
        tails = places[np.append(breaks, len(places) - 1)]
        lanes = np.searchsorted(starts, heads, side="right") - 1
        # A run of places may go on in the next lanes, and is cut there.
        counts = np.searchsorted(starts, tails, side="right") - lanes
        lanes = np.repeat(lanes, counts) + _count_up(counts)
        heads = np.maximum(np.repeat(heads, counts), starts[lanes])
        tails = np.minimum(np.repeat(tails, counts), starts[lanes + 1] - 1)
        filled = heads <= tails
        lanes = lanes[filled]
        ends = np.concatenate([heads[filled], tails[filled]]) - np.tile(starts[lanes], 2)
        first, last = np.split(self._deal.find(np.tile(lanes, 2), ends), 2)
        counts = last - first + 1
        lanes = np.repeat(lanes, counts)
        groups = np.repeat(first, counts) + _count_up(counts)
        # Two runs may share a group.
        fresh = np.append(True, (np.diff(lanes) != 0) | (np.diff(groups) != 0))
        return lanes[fresh], groups[fresh]

    def _pick(self, lanes: Integers, slices: Slices, rows: Integers, drawn: Integers) -> Integers:
        """Returns the ordinals of samples of groups: (N,).

        Args:
            lanes: lane of each group.
            slices: slices of the groups.
            rows: (N,) place of each sample's group among these.
            drawn: (N,) number of the sample in its group, counted through the slices, oldest first.
        """
        counts = (slices.end - slices.begin).ravel()
        before = np.cumsum(counts) - counts
        target = before[rows * self._deal.window] + drawn
        cell = np.searchsorted(before, target, side="right") - 1
        index = slices.begin.ravel()[cell] + target - before[cell]
        piece = slices.piece.ravel()[cell]
        lane = lanes[rows]
        keys = fold_each(self._piece_keys[lane], piece)
        index = permute(index, slices.size.ravel()[cell], keys)
        ordinals: Integers = self._piece_start(lane, piece) + index
        return ordinals


def _count_up(counts: Integers) -> Integers:
    """Returns 0..c-1 for each count c, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1], dtype=np.int64) - np.repeat(ends - counts, counts)
