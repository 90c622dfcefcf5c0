"""The budget when nobody says."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamer.fetch.memory import LEAST_BYTES, MOST_BYTES, budget_bytes

GiB = 1 << 30


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(str(2 * GiB), GiB // 2), (str(64 * 1024 * GiB), None), ("max", None), (str(1 << 20), LEAST_BYTES)],
)
def test_quarter_of_the_cgroup(tmp_path: Path, limit: str, expected: int | None) -> None:
    """A quarter of the cgroup's limit, between 64 MiB and 1 GiB; without a limit a quarter of the machine."""
    file = tmp_path / "memory.max"
    file.write_text(limit + "\n")
    budget = budget_bytes((file,))
    assert budget == (expected or budget_bytes(()))
    assert LEAST_BYTES <= budget <= MOST_BYTES


def test_no_cgroup_file(tmp_path: Path) -> None:
    """A missing file is no limit."""
    assert budget_bytes((tmp_path / "none",)) == budget_bytes(())
