"""Shares the places of each lane between the members of a mix in one epoch, by a binary tree of integer lines.

Used by `order/mix/places.py`. Below, M is the number of members, L that of lanes.

Each inner node of the tree divides its members in a left and a right half. A lane that has b samples of the node, of
which a belong to the left half, gives the left half

    left(x) = (x a + f) div b      of the first x places of the node, and the right half the others.

Both counts grow by 0 or 1 per place, and end at exactly a and b - a; so do the counts at the leaves, the members. The
phases f (0 <= f < b) are spread evenly over the lanes: so all lanes together give a member its share at any x. Equal
phases would let all lanes round up at the same place (a batch of 4,096 from 64 lanes strayed by 100). The lines have an
inverse, so the place of a member's c-th sample is found without a search.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np

from streamer.errors import ConfigError
from streamer.order.hashing import Integers, fold, fold_each

TAG_PHASE = 32
_STEPS = 1024


class TreeNode(NamedTuple):
    """An inner node of the tree. A number below M is the leaf of that member.

    Attributes:
        number: number of the node, M or more.
        left, right: numbers of the nodes with its halves.
    """

    number: int
    left: int
    right: int


def build_tree(quotas: Sequence[int]) -> tuple[list[list[TreeNode]], dict[int, list[int]]]:
    """Builds a tree over the members, by levels from the root. A node is divided where its halves differ least.

    Equal halves keep the tree flat, and large members near the root, where the rounding is least.

    Args:
        quotas: samples of each member in the epoch.

    Returns:
        The inner nodes of each level, numbered from M on, and the members below every node, by its number. A single
        member is the root itself, number 0, without inner nodes.
    """
    members = len(quotas)
    order = sorted(range(members), key=lambda member: -quotas[member])
    below = {members if members > 1 else 0: order}
    level = [members] if members > 1 else []
    levels = []
    number = members
    while level:
        nodes = []
        for parent in level:
            group = below[parent]
            doubled = [0, *accumulate(2 * quotas[member] for member in group)]
            half = doubled[-1] // 2
            above = min(max(bisect_left(doubled, half), 1), len(group) - 1)
            cut = min((above, max(1, above - 1)), key=lambda at: abs(doubled[at] - half))
            children = []
            for part in (group[:cut], group[cut:]):
                number += len(part) > 1
                children.append(number if len(part) > 1 else part[0])
                below[children[-1]] = part
            nodes.append(TreeNode(parent, *children))
        levels.append(nodes)
        level = [child for node in nodes for child in (node.left, node.right) if child > members]
    return levels, below


class LaneShares:
    """Counts the samples of each member in every lane of one epoch, up to any place.

    Args:
        quotas: samples of each member in the epoch.
        lanes: L.
        seed: seed of the order, which draws the phases.
        epoch: number of the epoch.

    Attributes:
        lane_samples: (L,) number of places of each lane.
        quotas: (M, L) samples of each member in each lane.

    Raises:
        ConfigError: lanes of 3e9 samples or more, whose squares need more than 63 bits.
    """

    def __init__(self, quotas: Sequence[int], lanes: int, seed: int, epoch: int) -> None:
        lane = np.arange(lanes, dtype=np.int64)
        ends = np.array([0, *accumulate(quotas)], np.int64)[:, None]
        self.quotas = np.diff((ends + lanes - 1 - lane) // lanes, axis=0)
        self.lane_samples = self.quotas.sum(axis=0)
        if self.lane_samples.max() >= 3_000_000_000:
            raise ConfigError(
                f"an epoch of {ends[-1, 0]:,} samples in {lanes} lanes is too long; pass Order(lanes=...) or a "
                "shorter epoch",
                field="lanes",
            )
        self._levels, below = build_tree(quotas)
        self._members = len(quotas)
        self._totals = np.zeros((max(below) + 1, lanes), np.int64)
        for number, members in below.items():
            self._totals[number] = self.quotas[members].sum(axis=0)
        self._phases = np.zeros_like(self._totals)
        for node in chain.from_iterable(self._levels):
            state = fold(seed, TAG_PHASE, epoch, node.number)
            self._phases[node.number] = _phases(self._totals[node.number], state)
        self._paths = _paths(self._levels, self._members)

    def counts(self, slots: Integers) -> Integers:
        """Returns how many samples of each member are among the first places of every lane: (M, ..., L).

        Args:
            slots: (..., L) number of first places of each lane.
        """
        found = np.zeros((len(self._totals), *slots.shape), np.int64)
        found[self._members if self._members > 1 else 0] = slots
        flat = found.reshape(len(found), -1, slots.shape[-1])
        for level in self._levels:
            number, left, right = (list(column) for column in zip(*level, strict=True))
            line = flat[number] * self._totals[left][:, None] + self._phases[number][:, None]
            flat[left] = line // np.maximum(self._totals[number], 1)[:, None]
            flat[right] = flat[number] - flat[left]
        return found[: self._members]

    def count(self, member: int, lanes: Integers, slots: Integers) -> Integers:
        """Returns how many samples of one member are among the first places of some lanes: (N,).

        Args:
            member: number of the member.
            lanes: (N,) the lanes.
            slots: (N,) number of first places of each.
        """
        for node, is_left in self._paths[member]:
            line = slots * self._totals[node.left][lanes] + self._phases[node.number][lanes]
            left = line // np.maximum(self._totals[node.number], 1)[lanes]
            slots = left if is_left else slots - left
        return slots

    def slots(self, member: int, lanes: Integers, counts: Integers) -> Integers:
        """Returns the places in some lanes at which samples of one member come: (N,).

        On the way from the leaf to the root, the place at a node is one less than the least x with left(x) = c + 1, and
        likewise for the right half.

        Args:
            member: number of the member.
            lanes: (N,) the lanes.
            counts: (N,) c, number of the member's samples before it in the lane; less than the member's quota there.
        """
        for node, is_left in reversed(self._paths[member]):
            total = self._totals[node.number]
            left = self._totals[node.left]
            phase = self._phases[node.number]
            if is_left:
                counts = (counts * total[lanes] + (total - phase - 1)[lanes]) // left[lanes]
            else:
                counts = (counts * total[lanes] + phase[lanes]) // (total - left)[lanes]
        return counts


def _phases(totals: Integers, state: int) -> Integers:
    """Returns the phases of a node, (L,), from its places in each lane: evenly spread, in a random order of lanes."""
    lanes = len(totals)
    rank = np.empty(lanes, np.int64)
    rank[np.argsort(fold_each(state, np.arange(lanes)))] = np.arange(lanes)
    return totals * (_STEPS * rank + state % _STEPS) // (_STEPS * lanes)


def _paths(levels: Sequence[Sequence[TreeNode]], members: int) -> list[list[tuple[TreeNode, bool]]]:
    """Returns, for each member, the inner nodes from the root to its leaf, each with whether the path goes left."""
    paths: dict[int, list[tuple[TreeNode, bool]]] = {members if members > 1 else 0: []}
    for node in chain.from_iterable(levels):
        paths[node.left] = [*paths[node.number], (node, True)]
        paths[node.right] = [*paths[node.number], (node, False)]
    return [paths[member] for member in range(members)]
