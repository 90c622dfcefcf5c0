"""The sentence of `streamer plan` on the workers that decode; figures are given."""

from __future__ import annotations

import pytest

from streamer.tools.plan_command import _describe_workers


@pytest.mark.parametrize(
    ("step_seconds", "sentence"),
    [(0.5, "3 workers of each rank for a batch in 0.5 s"), (0.0, "1.2 s of CPU a batch, which no number of workers")],
)
def test_workers_of_a_step(step_seconds: float, sentence: str) -> None:
    """The number of workers is the CPU time of a batch over the time of a step; for a step of 0 s there is none."""
    assert _describe_workers(1.2, step_seconds).startswith(sentence)
