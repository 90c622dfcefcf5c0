"""Hit rates of the cache policy under mixes of several datasets; a part of benchmarks/cache.py.

Chunks of 8 MiB, six epochs, 48 uses ahead; figures are of epochs 3 to 5. `bound` is that of the best fixed choice of
C - S bytes of chunks, `of C` of C bytes. `equal` is the same policy with all values 1, `LRU` a cache that evicts the
least recently used chunk. `MIN` evicts the chunk that is used last from now on: it knows all uses, and needs no S; its
figures are of ten epochs, whole passes of every member. A peak of misses is the most in 2 % of an epoch over the mean.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.table import charge
from streamer.testing.mix_simulation import MixMember, MixSimulation, MixUses, draw_uses, static_bound

CHUNK_BYTES = 8 << 20
COST = charge(CHUNK_BYTES)
SHARES = (0.1, 0.3, 0.5)
EPOCHS, WARM, AHEAD = 6, 3, 48
# Chunks, passes per epoch, open chunks.
MIXES = {
    "2000 (.9) + 200 (3)": [(2000, 0.9, 32), (200, 3.0, 8)],
    "2000 (.5) + 600 (1) + 120 (4)": [(2000, 0.5, 32), (600, 1.0, 16), (120, 4.0, 8)],
    "five, 2000 (.6) ... 125 (4)": [(2000, 0.6, 32), (1000, 1.0, 16), (500, 1.6, 16), (250, 2.5, 8), (125, 4.0, 8)],
    "1000 (1) + 1000 (1.3)": [(1000, 1.0, 16), (1000, 1.3, 16)],
    "one dataset, 2000": [(2000, 1.0, 32)],
}
HEADER = (
    "mix (passes per epoch)           C/D    hits   bound   of C   equal   LRU     MIN    peak of misses   waited\n"
    "                                                              quotas                  ours    MIN      share"
)


@dataclass(frozen=True)
class MixOutcome:
    """One mix with one cache."""

    mix: str
    share: float
    hits: float
    bound: float
    bound_of_limit: float
    equal: float
    lru: float
    least: float
    peak: float
    least_peak: float
    waited: float

    def row(self) -> str:
        """A line of the table."""
        return (
            f"{self.mix:31}  {self.share:4.2f}   {self.hits:5.3f}   {self.bound:5.3f}   {self.bound_of_limit:5.3f}"
            f"   {self.equal:5.3f}   {self.lru:5.3f}   {self.least:5.3f}   {self.peak:5.2f}   {self.least_peak:5.2f}"
            f"    {self.waited:6.4f}"
        )


def outcomes() -> Iterator[MixOutcome]:
    """Every mix at every share."""
    for name, mix in MIXES.items():
        yield from (_outcome(name, mix, share) for share in SHARES)


def verdict(found: list[MixOutcome]) -> str:
    """The worst distance from the bound, and the highest peak."""
    off, peak = max(one.bound - one.hits for one in found), max(one.peak for one in found)
    yes = off <= 0.005 and peak <= 1.5
    return (
        f"mixes: hits at most {off:.3f} below the bound (0.005), peak of misses {peak:.2f} (1.5)   "
        f"{'reached' if yes else 'MISSED'}"
    )


def _outcome(name: str, mix: list[tuple[int, float, int]], share: float) -> MixOutcome:
    members = [MixMember(f"m{index}", *member) for index, member in enumerate(mix)]
    limit = int(share * sum(member.chunks for member in members) * COST)
    policy, uses, simulation = _play(members, limit, None)
    _, equal, _ = _play(members, limit, [1.0] * len(members))
    clairvoyant = _clairvoyant(members, limit // COST)
    return MixOutcome(
        mix=name,
        share=share,
        hits=uses.hit_rate(WARM),
        bound=static_bound(members, (limit - policy.statistics().staging_bytes) / COST),
        bound_of_limit=static_bound(members, limit / COST),
        equal=equal.hit_rate(WARM),
        lru=_lru(uses, limit // COST),
        least=clairvoyant.hit_rate(WARM),
        peak=uses.peak_misses(WARM),
        least_peak=clairvoyant.peak_misses(WARM),
        waited=simulation.waited_ticks / simulation.ticks,
    )


def _play(
    members: list[MixMember], limit_bytes: int, values: list[float] | None
) -> tuple[CachePolicy, MixUses, MixSimulation]:
    policy, random = CachePolicy(limit_bytes), np.random.default_rng(3)
    for member in members:
        keys = random.integers(0, 256, (member.chunks, 16), dtype=np.uint8)
        policy.add_dataset(member.dataset, np.full(member.chunks, CHUNK_BYTES), keys)
    uses = draw_uses(members, EPOCHS)
    simulation = MixSimulation(policy, members, uses, lookahead=AHEAD, chunk_bytes=COST, values=values)
    simulation.run()
    return policy, uses, simulation


def _clairvoyant(members: list[MixMember], room: int) -> MixUses:
    """Belady's rule. It looks further than the result goes: in the last pass of a run nothing is kept."""
    uses = draw_uses(members, WARM + 10 + EPOCHS)
    keys = list(zip(uses.member.tolist(), uses.chunk.tolist(), strict=True))
    following, later = [len(keys)] * len(keys), dict[tuple[int, int], int]()
    for place in range(len(keys) - 1, -1, -1):
        following[place] = later.get(keys[place], len(keys))
        later[keys[place]] = place
    kept: dict[tuple[int, int], int] = {}  # the next use of each
    latest: list[tuple[int, tuple[int, int]]] = []
    for place, key in enumerate(keys):
        uses.missed[place] = key not in kept
        kept[key] = following[place]
        heapq.heappush(latest, (-following[place], key))
        while len(kept) > room:
            next_use, candidate = heapq.heappop(latest)
            if kept.get(candidate) == -next_use:
                del kept[candidate]
    run = uses.at < WARM + 10
    return MixUses(uses.at[run], uses.member[run], uses.chunk[run], uses.pass_number[run], uses.missed[run])


def _lru(uses: MixUses, room: int) -> float:
    kept: dict[tuple[int, int], None] = {}  # by last use, the oldest first
    hits = needs = 0
    for at, *chunk in zip(uses.at.tolist(), uses.member.tolist(), uses.chunk.tolist(), strict=True):
        key = (chunk[0], chunk[1])
        hit = key in kept
        kept.pop(key, None)
        kept[key] = None
        if len(kept) > room:
            del kept[next(iter(kept))]
        if at >= WARM:
            needs, hits = needs + 1, hits + hit
    return hits / needs
