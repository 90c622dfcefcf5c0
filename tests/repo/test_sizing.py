"""The page on sizing has the limits that the code computes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streamer.fetch import memory_budget
from streamer.loader.options import loader_options as options

PAGE = (Path(__file__).parents[2] / "docs/deploy/sizing.md").read_text()
ROWS = re.findall(r"^\| (\d+) GiB \| (\d+) MiB \| (\d+) MiB \|$", PAGE, re.M)


@pytest.mark.parametrize(("memory", "ring", "buffers"), ROWS, ids=lambda value: value)
def test_a_row_of_the_table(memory: str, ring: str, buffers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row of the sizing page has the computed `ring_bytes` and engine buffers for its memory."""
    limit = int(memory) << 30
    for module in (options, memory_budget):
        monkeypatch.setattr(module, "usable_memory_bytes", lambda *_: limit)
    assert options.choose_ring_bytes(None) >> 20 == int(ring)
    assert memory_budget.budget_bytes() >> 20 == int(buffers)


def test_the_table_has_rows() -> None:
    """The sizing page's table has rows that the pattern of these tests finds."""
    assert len(ROWS) >= 5
