"""The search for the smallest value with which a job does not wait; simulations are given functions."""

from __future__ import annotations

import pytest

from streamer.tools.planning.model import WAITING_BOUND
from streamer.tools.planning.search import smallest


def middle(low: float, high: float) -> float:
    return (low + high) / 2


@pytest.mark.parametrize("needed", [0.01, 0.3, 0.77, 0.999])
def test_the_search_comes_close_from_above(needed: float) -> None:
    """The search finds a value that does not wait and is at most a 64th of the range above the smallest one."""
    found = smallest(lambda value: 0.0 if value >= needed else 0.5, 0.0, 1.0, middle)
    assert found.least is not None
    assert needed <= found.least <= needed + 1 / 64
    assert [point.value for point in found.points] == sorted(point.value for point in found.points)


def test_a_job_that_waits_for_something_else_has_no_least_value() -> None:
    """A job that waits with any value has no smallest one, which one simulation shows."""
    found = smallest(lambda value: WAITING_BOUND + 0.001, 0.0, 1.0, middle)
    assert found.least is None
    assert len(found.points) == 1
