"""The memory budget where the user gives none."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamer.base.cgroup import Cgroup
from streamer.fetch.memory_budget import LEAST_BYTES, MAX_BYTES, budget_bytes

GiB = 1 << 30


def limited(root: Path, text: str) -> Cgroup:
    """Makes a cgroup whose limit is `text`."""
    (root / "memory.max").write_text(text + "\n")
    return Cgroup(root, root / "membership")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(str(2 * GiB), GiB // 2), (str(64 * 1024 * GiB), None), ("max", None), (str(1 << 20), LEAST_BYTES)],
)
def test_quarter_of_the_cgroup(tmp_path: Path, limit: str, expected: int | None) -> None:
    """The memory budget is a quarter of the cgroup's limit, or of the machine's memory, from 64 MiB to 1 GiB."""
    budget = budget_bytes(limited(tmp_path, limit))
    assert budget == (expected or budget_bytes(limited(tmp_path, "max")))
    assert LEAST_BYTES <= budget <= MAX_BYTES
