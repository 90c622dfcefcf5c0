"""A fixed part of `make fuzz`, with the same changes each time: parsers and formats read damaged inputs in-process."""

from __future__ import annotations

import random

import pytest

from streamer.formats import BUILT_IN
from tests.fuzz.targets import TARGETS, change, check, format_cases, format_classes

# Formats have their own in `make test`, the contract's.
FEW = [pytest.param(name, 60) for name in TARGETS if not name.startswith("format.")]
MANY = [pytest.param(name, 1000, marks=pytest.mark.slow) for name in TARGETS]


@pytest.mark.leaves_over("libraries keep what they open at their first use")
@pytest.mark.parametrize(("name", "times"), [*FEW, *MANY])
def test_damaged_inputs_are_read_or_refused(name: str, times: int) -> None:
    """Damaged inputs are read or refused with a documented error, within limits of CPU and memory."""
    target = TARGETS[name]()
    for label, content in target.seeds:
        target.read(label, content)
    drawn = random.Random(0)
    refused = sum(check(target, *change(target, drawn)) for _ in range(times))
    assert refused < times


@pytest.mark.slow
def test_each_format_is_a_target() -> None:
    """`make fuzz` has a target for each built-in format."""
    names = {case.format.name for name in format_classes() for case in format_cases(name)}
    assert set(BUILT_IN) - names == set()
