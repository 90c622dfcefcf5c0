"""How the places of each lane are shared between the members in one epoch: a binary tree of integer lines.

A lane with b samples of which a belong to the left half of the members gives the left half

    left(x) = (x a + f) div b      of its first x places, and the right half the rest.

Both only grow, by 0 or 1 per place, and end at exactly a and b - a; so do the counts at the leaves. The phases f
(0 <= f < b) are spread evenly over the lanes: all lanes together then give a member its share at any x, where
equal phases would let all lanes round up at the same place (a batch of 4,096 from 64 lanes strayed by 100).
The lines have an inverse: from a member's c-th sample to its place without a search.
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
    """An inner node; a node below M is the leaf of that member."""

    number: int
    left: int
    right: int


def build_tree(quotas: Sequence[int]) -> tuple[list[list[TreeNode]], dict[int, list[int]]]:
    """Builds a tree over the members, by levels from the root. Each node is cut where its halves differ least.

    Equal halves keep it flat, and large members near the root, where the rounding is least.

    Returns:
        The inner nodes of each level, numbered from M on, and the members below every node.
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
    """The members' counts in every lane of one epoch.

    Attributes:
        lane_samples: (L,) places of each lane.
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
        """Returns the samples of each member among the first `slots`, (..., L), of the lanes: (M, ..., L)."""
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
        """Returns the samples of one member among the first `slots` of some lanes: (N,)."""
        for node, is_left in self._paths[member]:
            line = slots * self._totals[node.left][lanes] + self._phases[node.number][lanes]
            left = line // np.maximum(self._totals[node.number], 1)[lanes]
            slots = left if is_left else slots - left
        return slots

    def slots(self, member: int, lanes: Integers, counts: Integers) -> Integers:
        """Returns the place of a member's c-th sample in a lane, by the lines, (N,), where c is below its quota.

        The least x with left(x) = c + 1 is one more than the place, and likewise for the right half.
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
    """Returns the starts of a node's lines, (L,): a random order of lanes, evenly spread, from a random first."""
    lanes = len(totals)
    rank = np.empty(lanes, np.int64)
    rank[np.argsort(fold_each(state, np.arange(lanes)))] = np.arange(lanes)
    return totals * (_STEPS * rank + state % _STEPS) // (_STEPS * lanes)


def _paths(levels: Sequence[Sequence[TreeNode]], members: int) -> list[list[tuple[TreeNode, bool]]]:
    """Returns of each member the nodes from the root to its leaf, and whether the way goes left."""
    paths: dict[int, list[tuple[TreeNode, bool]]] = {members if members > 1 else 0: []}
    for node in chain.from_iterable(levels):
        paths[node.left] = [*paths[node.number], (node, True)]
        paths[node.right] = [*paths[node.number], (node, False)]
    return [paths[member] for member in range(members)]
