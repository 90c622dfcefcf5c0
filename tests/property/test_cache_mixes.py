"""The policy under a mix, against the static bound: whole epochs, simulated without bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.mixes import CHUNK_COST, MIXES, MixMember, play, static_bound

WARM = 3


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("members", MIXES.values(), ids=MIXES)
def test_a_mix_reaches_the_static_bound(members: list[MixMember], share: float) -> None:
    """Hits of a mix in epochs 3 to 5 are within 0.005 of the static bound of C - S; misses are level, waits rare."""
    limit = int(share * sum(member.chunks for member in members) * CHUNK_COST)
    policy, uses, simulation = play(members, limit, 6)
    bound = static_bound(members, (limit - policy.statistics().staging_bytes) / CHUNK_COST)
    assert uses.hit_rate(WARM) >= bound - 0.005
    assert policy.hit_bound({member.dataset for member in members}) == pytest.approx(bound, abs=0.001)
    assert uses.peak_misses(WARM) <= 1.5
    assert simulation.waited_ticks <= 0.001 * simulation.ticks


def test_equal_quotas_are_worse() -> None:
    """A mix of three whose members count as equally valuable gets less than 0.7 of the hits (negative control)."""
    three = MIXES["2000 (.5) + 600 (1) + 120 (4)"]
    limit = int(0.1 * 2720 * CHUNK_COST)
    _, equal, _ = play(three, limit, 6, values=[1.0, 1.0, 1.0])
    _, ours, _ = play(three, limit, 6)
    assert equal.hit_rate(WARM) < 0.7 * ours.hit_rate(WARM)


@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.sampled_from([0.05, 0.3, 1.0, 1.7, 5.0]), st.integers(1, 4)),
        min_size=1,
        max_size=6,
    ),
    st.floats(0.05, 1.2),
)
def test_a_mix_never_stands_still(mix: list[tuple[int, float, int]], share: float) -> None:
    """A mix of any sizes, passes and limits is used to its end within the cache's limit,
    down to the least limit that the policy accepts.
    """
    chunks, least = sum(count for count, *_ in mix), sum(opened + 1 for *_, opened in mix)
    limit = max(least, int(share * chunks)) * CHUNK_COST
    members = [MixMember(f"m{index}", *member) for index, member in enumerate(mix)]
    policy, uses, _ = play(members, limit, 2, lookahead=12)
    now = policy.statistics()
    assert now.needs == len(uses)
    assert now.kept_bytes + now.transit_bytes <= limit
