"""Packs, indexes and counts on a real Ray cluster, in an environment of its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.formats.library_environment import library_python, make


@pytest.mark.formats
def test_a_ray_cluster_writes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray cluster writes the bytes that processes write, with equal index and counts, though a worker is killed."""
    for name, value in {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    numbers = np.random.default_rng(1)
    for number in range(600):
        path = tmp_path / "raw" / "ab"[number % 2] / f"{number:03d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(numbers.bytes(10 * number))
    make(library_python("ray"), "on_ray.py", tmp_path / "raw", tmp_path / "out")
    found = json.loads((tmp_path / "out/result.json").read_text())
    assert (found["samples"], found["killed"], found["connected"]) == ([600, 600], 1, True)
    assert found["indexed"] == found["packed"]
    assert found["counted"][0] == found["counted"][1]
    assert sorted(found["counted"][0]) == [10 * number for number in range(600)]
    here, there = ({p.name: p.read_bytes() for p in (tmp_path / "out" / n).glob("*.tar")} for n in ("here", "there"))
    assert len(here) > 50
    assert here == there
