"""Divides the kept part of the cache among datasets, and sizes the transit part. Pure arithmetic.

The other modules of the cache policy use it; `engine/windows.py` and `tools/planning/simulate.py` make the windows. C
is the limit of the cache and S the size of the transit part, in bytes.

A session over several datasets (a mix) uses them at different rates: an epoch needs `rho_i` passes over dataset i of
`D_i` bytes. A byte of dataset i that stays saves `rho_i` bytes of fetch per epoch. If `x_i <= D_i` bytes of each are
kept, the hits are `sum rho_i x_i` of `sum rho_i D_i` bytes. So `sum x_i = C - S` bytes save most when they go to the
datasets with the highest `rho_i` first (a fractional knapsack). Within a dataset the selected chunks are those with the
highest ranks, so its hits are level. No rule that ignores the position of each dataset in its pass does better. A rule
that knows all uses (Belady's MIN) gains at most 1.7 points of hits in mixes of a large and some small datasets, and 4.3
with two equal ones of 1.0 and 1.3 passes. Its misses come in peaks of up to 2.8 times the mean, those of this rule of
1.4 (`benchmarks/cache.py`, 2026-11-23).

The datasets of a mix share one *pool*; a dataset that is read alone is a pool of its own. Pools get equal shares, but
none gets more than its data, and what is left over is shared again. So the values of one mix do not compete with those
of another job: a small dataset of 1,000 passes gives the large one beside it a relative value of 0.001, and without
pools another job would take all the space from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby

import msgspec

from streamer.cache.policy.table import ChunkGroup

# The margin of S beyond the mean of the misses, which is (1 - f) w for w chunks of which a share f is kept. The misses
# scatter by sqrt(w f (1 - f)), so a tenth of the mean and two chunks are too little for windows of some tens of chunks:
# there the margin is two deviations. With a window of 36 of 4,000 chunks, f = 0.75 and the smaller margin,
# blocked requests changed 1.4 % of the kept content per warm epoch, and waited 1.5 % of the time. With two deviations
# it is below 0.1 % and 0.2 %, for 0.001 of the hit rate (2026-11-20).
# Where it is known what the link needs, S has that beside the misses that are open. Both add as squares, because the
# look-ahead yields while many misses are open. With the larger of both, epochs that the link and the workers bound
# alike took 3 % longer. With their sum 100 chunks had 3 points less of hits (simulated, 2026-11-29).
STAGING_SHARE = 0.1
STAGING_CHUNKS = 2
STAGING_DEVIATIONS = 2.0


class SessionWindow(msgspec.Struct, frozen=True):
    """Most bytes of one dataset that a session has open, and most in look-ahead beyond those, or the sums of many."""

    open_bytes: int
    lookahead_bytes: int

    @property
    def total_bytes(self) -> int:
        """Size of both in bytes."""
        return self.open_bytes + self.lookahead_bytes


NO_WINDOW = SessionWindow(0, 0)


def share_out(live: Iterable[ChunkGroup], room_bytes: int) -> None:
    """Sets `quota_bytes` of live datasets: pools get fair shares, and inside a pool the highest values come first.

    Args:
        live: the datasets of live jobs.
        room_bytes: bytes of the kept part, C - S.
    """
    pools = [list(pool) for _, pool in groupby(sorted(live, key=_pool), key=_pool)]
    _max_min([(_sum_claims(pool), pool) for pool in pools], room_bytes, _fill)


def compute_staging_bytes(
    live: list[ChunkGroup], limit_bytes: int, windows: Mapping[int, SessionWindow], link_bytes: int | None = None
) -> int:
    """Returns S in bytes: the misses of all windows, with a margin. Changes `quota_bytes` of the datasets on the way.

    The number of misses depends on the quotas, and the quotas on S. For one dataset the margin covers the effect of S
    itself. With several, S may be a large part of C and most of the quota of one dataset; a second pass takes that into
    account. (Without it a modest job beside three greedy ones waited in 8 of 24 steps, with it in 3, 2026-11-23.)

    Args:
        live: the datasets of live jobs.
        limit_bytes: C, the limit.
        windows: bytes open and in look-ahead over all sessions, by index of the dataset.
        link_bytes: bytes that the link needs on their way for misses in look-ahead. None means that all misses in
            look-ahead get room.
    """
    staging = 0
    for _ in live[:2]:
        share_out(live, limit_bytes - staging)
        staging = min(limit_bytes, _misses(live, windows, link_bytes))
    return staging


def _misses(live: list[ChunkGroup], windows: Mapping[int, SessionWindow], link_bytes: int | None) -> int:
    """Returns the bytes of the windows that are not kept, with a margin, or less if the link needs less."""
    mean, margin = _estimate_misses(live, {index: window.total_bytes for index, window in windows.items()})
    if link_bytes is None:
        return int(mean + margin)
    open_mean, open_margin = _estimate_misses(live, {index: window.open_bytes for index, window in windows.items()})
    return int(min(mean + margin, open_mean + math.hypot(link_bytes, open_margin)))


def _estimate_misses(live: list[ChunkGroup], window_bytes: Mapping[int, int]) -> tuple[float, float]:
    """Returns the mean of the bytes of the windows that are not kept, and the margin for how they scatter, in bytes."""
    mean = variance = 0.0
    for group in live:
        hits = group.quota_share
        window = window_bytes.get(group.index, 0)
        mean += (1.0 - hits) * window
        variance += hits * (1.0 - hits) * window * group.largest_bytes
    least = STAGING_SHARE * mean + STAGING_CHUNKS * max(group.largest_bytes for group in live)
    return mean, max(least, STAGING_DEVIATIONS * math.sqrt(variance))


def hit_bound(groups: list[ChunkGroup]) -> float:
    """Returns the highest hit rate, by bytes, that the quotas of datasets allow: 1 if all fit, 0 if none is needed."""
    needed = sum(group.value * group.data_bytes for group in groups)
    missed = sum(group.value * (group.total_bytes - group.quota_bytes) for group in groups)
    return 1.0 - missed / needed if needed else 0.0


def join_pools(groups: Iterable[ChunkGroup], mix: Iterable[ChunkGroup]) -> None:
    """Merges the pools of the datasets of a mix, with all other datasets in these pools, into one.

    Args:
        groups: all datasets.
        mix: the datasets of the mix.
    """
    joined = {group.pool for group in mix}
    for group in groups:
        if group.pool in joined:
            group.pool = min(joined)


def _pool(group: ChunkGroup) -> int:
    return group.pool


def _value(group: ChunkGroup) -> float:
    return group.value


def _sum_claims(groups: list[ChunkGroup]) -> int:
    """Returns the bytes of the datasets together, without those of value 0, which are not worth keeping."""
    return sum(group.total_bytes for group in groups if group.value)


def _fill(pool: list[ChunkGroup], room_bytes: int) -> None:
    """Sets the quotas of a pool's datasets by descending value, where datasets of one value get fair shares."""
    for _, equals in groupby(sorted(pool, key=_value, reverse=True), key=_value):
        tier = list(equals)
        _max_min([(_sum_claims([group]), [group]) for group in tier], room_bytes, _give)
        room_bytes -= sum(group.quota_bytes for group in tier)


def _give(groups: list[ChunkGroup], quota_bytes: int) -> None:
    for group in groups:
        group.quota_bytes = quota_bytes


def _max_min(
    claims: list[tuple[int, list[ChunkGroup]]], room_bytes: int, give: Callable[[list[ChunkGroup], int], None]
) -> None:
    """Gives each claim an equal share of the room, but none more than it claims; the others share what is left over.

    Args:
        claims: (bytes, datasets) of each claim.
        room_bytes: bytes that are divided.
        give: is called with the datasets of a claim and its share in bytes.
    """
    for place, (wanted, groups) in enumerate(sorted(claims, key=lambda claim: claim[0])):
        share = min(wanted, room_bytes // (len(claims) - place))
        give(groups, share)
        room_bytes -= share
