"""How many bytes keep a link busy: measured on simulated links of known rate and delay."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import pytest

from streamer.engine.link_need import FEW_IN_FLIGHT, PROBE_COUNT, REPEAT_SECONDS, SLACK_SECONDS, LinkNeed

MB = 1_000_000


class Found(NamedTuple):
    """Result of a run over a simulated link: the measured need, the seconds, and how often chunks were held back."""

    need: LinkNeed
    seconds: float
    held_back: int


def run(rate: float, delay: float, in_flight: int, chunks: int, chunk_bytes: int = MB, urgent: bool = False) -> Found:
    """Keeps so many chunks on their way over a simulated link, except while the measurement holds chunks back."""
    need = LinkNeed()
    flying: list[tuple[float, bytes]] = []
    now = free_at = 0.0
    asked = held_back = 0
    while asked < chunks or flying:
        while asked < chunks and len(flying) < in_flight:
            if need.holds_back(now, urgent=urgent):
                held_back += 1
                break
            key = asked.to_bytes(16, "little")
            asked += 1
            free_at = max(free_at, now + delay) + chunk_bytes / rate
            need.begin(key, now)
            heapq.heappush(flying, (free_at, key))
        now, key = heapq.heappop(flying)
        need.end(key, now, chunk_bytes)
    return Found(need, now, held_back)


@pytest.mark.parametrize("rate", [5 * MB, 100 * MB, 1250 * MB])
@pytest.mark.parametrize("delay", [0.001, 0.03, 0.2])
@pytest.mark.parametrize("in_flight", [8, 500])
def test_a_full_link_shows_its_rate_times_its_delay(rate: float, delay: float, in_flight: int) -> None:
    """The measured need is one to three times rate times delay, although many chunks at once make each other slow."""
    whole_delay = delay + MB / rate
    reached = min(rate, in_flight * MB / whole_delay)
    found = run(rate, delay, in_flight, 4000)
    assert found.need.need_bytes is not None
    assert reached * whole_delay <= found.need.need_bytes <= 3.1 * reached * whole_delay


def test_a_probe_costs_the_time_of_a_few_chunks() -> None:
    """A probe of a link that needs 13 chunks at once costs the time of a few chunks."""
    plain = 2000 * MB / (100 * MB) + 0.12
    found = run(100 * MB, 0.12, 40, 2000)
    assert found.held_back > 0
    assert found.seconds - plain < PROBE_COUNT * 0.13


def test_nothing_is_held_back_of_a_link_that_is_seldom_full() -> None:
    """A link with few chunks at once is measured without holding any back."""
    found = run(100 * MB, 0.03, FEW_IN_FLIGHT, 200)
    assert found.held_back == 0
    assert found.need.need_bytes is not None


def test_an_urgent_chunk_waits_only_for_those_that_are_measured() -> None:
    """A probe holds an urgent chunk back only while chunks are measured, and other chunks until it ends."""
    need = LinkNeed()
    for number in range(12):
        need.begin(bytes([number]), 0.0)
    for number in range(9):
        need.end(bytes([number]), 1.0, MB)
    assert need.holds_back(1.0, urgent=False)
    assert not need.holds_back(1.0, urgent=True)
    need.end(bytes([9]), 1.1, MB)
    assert need.holds_back(1.1, urgent=True)
    need.end(bytes([10]), 1.2, MB)
    assert not need.holds_back(1.2, urgent=False)


def test_a_probe_ends_by_itself_although_nothing_comes() -> None:
    """A probe whose chunks hang ends after twice the time of their bytes and a second, and is repeated later."""
    need = LinkNeed()
    for number in range(12):
        need.begin(bytes([number]), 0.0)
    for number in range(9):
        need.end(bytes([number]), 1.0, MB)
    assert need.holds_back(1.0, urgent=False)
    longest = SLACK_SECONDS + 2 * (3 + PROBE_COUNT) / 8
    assert need.probe_ends_at == pytest.approx(1.0 + longest)
    assert not need.holds_back(need.probe_ends_at, urgent=False)
    assert not need.holds_back(need.probe_ends_at + REPEAT_SECONDS / 2, urgent=False)
    assert need.holds_back(1.0 + REPEAT_SECONDS, urgent=False)


def test_a_failed_chunk_says_nothing() -> None:
    """Chunks that bring no bytes give no measurement of the need."""
    need = LinkNeed()
    for number in range(20):
        need.begin(bytes([number]), float(number))
        need.end(bytes([number]), number + 0.5, 0)
    assert need.need_bytes is None
