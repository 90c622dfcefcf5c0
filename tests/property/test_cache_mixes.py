"""The policy under a mix, against the static bound: whole epochs, simulated without bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.table import charge
from streamer.testing.mix_simulation import MixMember, MixSimulation, MixUses, draw_uses, static_bound

CHUNK_BYTES = 8 << 20
COST = charge(CHUNK_BYTES)
# Chunks, passes per epoch, open chunks.
MIXES = {
    "two": [(2000, 0.9, 32), (200, 3.0, 8)],
    "three": [(2000, 0.5, 32), (600, 1.0, 16), (120, 4.0, 8)],
    "five": [(2000, 0.6, 32), (1000, 1.0, 16), (500, 1.6, 16), (250, 2.5, 8), (125, 4.0, 8)],
}
WARM = 3


def play(
    mix: list[tuple[int, float, int]], limit_bytes: int, epochs: int, lookahead: int, values: list[float] | None = None
) -> tuple[CachePolicy, list[MixMember], MixUses, MixSimulation]:
    members = [MixMember(f"m{index}", *member) for index, member in enumerate(mix)]
    policy = CachePolicy(limit_bytes)
    random = np.random.default_rng(3)
    for member in members:
        keys = random.integers(0, 256, (member.chunks, 16), dtype=np.uint8)
        policy.add_dataset(member.dataset, np.full(member.chunks, CHUNK_BYTES), keys)
    uses = draw_uses(members, epochs)
    simulation = MixSimulation(policy, members, uses, lookahead=lookahead, chunk_bytes=COST, values=values)
    simulation.run()
    return policy, members, uses, simulation


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_a_mix_reaches_the_static_bound(mix: list[tuple[int, float, int]], share: float) -> None:
    """Hits of epochs 3 to 5 within 0.005 of the bound of C - S, the misses level, no waiting."""
    limit = int(share * sum(chunks for chunks, *_ in mix) * COST)
    policy, members, uses, simulation = play(mix, limit, 6, lookahead=48)
    bound = static_bound(members, (limit - policy.statistics().staging_bytes) / COST)
    assert uses.hit_rate(WARM) >= bound - 0.005
    assert policy.hit_bound({member.dataset for member in members}) == pytest.approx(bound, abs=0.001)
    assert uses.peak_misses(WARM) <= 1.5
    assert simulation.waited_ticks <= 0.001 * simulation.ticks


def test_equal_quotas_are_worse() -> None:
    """The negative control: what the mix of three gets where values do not count."""
    limit = int(0.1 * 2720 * COST)
    *_, equal, _ = play(MIXES["three"], limit, 6, lookahead=48, values=[1.0, 1.0, 1.0])
    *_, ours, _ = play(MIXES["three"], limit, 6, lookahead=48)
    assert equal.hit_rate(WARM) < 0.7 * ours.hit_rate(WARM)


@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.sampled_from([0.05, 0.3, 1.0, 1.7, 5.0]), st.integers(1, 4)),
        min_size=1,
        max_size=6,
    ),
    st.floats(0.05, 1.2),
)
@settings(max_examples=60, deadline=None)
def test_a_mix_never_stands_still(mix: list[tuple[int, float, int]], share: float) -> None:
    """Any sizes, passes and limits, down to the least that the policy accepts."""
    chunks, least = sum(count for count, *_ in mix), sum(opened + 1 for *_, opened in mix)
    limit = max(least, int(share * chunks)) * COST
    policy, *_, uses, _ = play(mix, limit, 2, lookahead=12)
    now = policy.statistics()
    assert now.needs == len(uses)
    assert now.kept_bytes + now.transit_bytes <= limit
