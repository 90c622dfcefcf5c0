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

from tests.simulation.mixes import CHUNK_COST, MIXES, MixMember, MixUses, draw_uses, play, static_bound

SHARES = (0.1, 0.3, 0.5)
EPOCHS, WARM = 6, 3
PLAYED = {
    **MIXES,
    "1000 (1) + 1000 (1.3)": [MixMember("m0", 1000, 1.0, 16), MixMember("m1", 1000, 1.3, 16)],
    "one dataset, 2000": [MixMember("m0", 2000, 1.0, 32)],
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
    for name, mix in PLAYED.items():
        yield from (_outcome(name, mix, share) for share in SHARES)


def verdict(found: list[MixOutcome]) -> str:
    """The worst distance from the bound, and the highest peak."""
    off, peak = max(one.bound - one.hits for one in found), max(one.peak for one in found)
    yes = off <= 0.005 and peak <= 1.5
    return (
        f"mixes: hits at most {off:.3f} below the bound (0.005), peak of misses {peak:.2f} (1.5)   "
        f"{'reached' if yes else 'MISSED'}"
    )


def _outcome(name: str, members: list[MixMember], share: float) -> MixOutcome:
    limit = int(share * sum(member.chunks for member in members) * CHUNK_COST)
    policy, uses, simulation = play(members, limit, EPOCHS)
    _, equal, _ = play(members, limit, EPOCHS, values=[1.0] * len(members))
    clairvoyant = _clairvoyant(members, limit // CHUNK_COST)
    return MixOutcome(
        mix=name,
        share=share,
        hits=uses.hit_rate(WARM),
        bound=static_bound(members, (limit - policy.statistics().staging_bytes) / CHUNK_COST),
        bound_of_limit=static_bound(members, limit / CHUNK_COST),
        equal=equal.hit_rate(WARM),
        lru=_lru(uses, limit // CHUNK_COST),
        least=clairvoyant.hit_rate(WARM),
        peak=uses.peak_misses(WARM),
        least_peak=clairvoyant.peak_misses(WARM),
        waited=simulation.waited_ticks / simulation.ticks,
    )


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
