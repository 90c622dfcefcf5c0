"""Ranks that get their dataset from another process, or whose group comes late, read each sample once in each epoch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("ranks.py")
SAMPLES = 60


def write(folder: Path, numbers: range, **fields: str) -> None:
    """Lines of JSON in two files."""
    folder.mkdir()
    for part in range(2):
        lines = [json.dumps({"x": number, **fields}) for number in numbers[part::2]]
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Data of each kind."""
    write(tmp_path / "data", range(SAMPLES))
    write(tmp_path / "a", range(SAMPLES // 2))
    write(tmp_path / "b", range(SAMPLES // 2, SAMPLES))
    write(tmp_path / "others", range(SAMPLES), more="y")
    (tmp_path / "run").mkdir(mode=0o700)
    return tmp_path


def run(root: Path, *command: str, **variables: str) -> str:
    """What a program writes to both of its streams."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment = {**kept, "STREAMER_RUNTIME_DIR": str(root / "run"), **variables}
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


def check(root: Path, epochs: int = 3) -> None:
    """Over both ranks each sample once in each epoch, in another order each."""
    ranks = [json.loads((root / f"rank-{number}.json").read_text()) for number in range(2)]
    for epoch in range(epochs):
        assert sorted(ranks[0][epoch] + ranks[1][epoch]) == list(range(SAMPLES)), f"epoch {epoch}"
    assert ranks[0][0] != ranks[0][1]


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize(
    ("kind", "reader"),
    [
        ("plain", "bare"),
        ("plain", "0"),
        ("plain", "2"),
        ("plain", "1 persistent"),
        ("plain", "own"),
        ("mix", "2"),
        ("joined", "1"),
        ("packed", "1"),
    ],
)
def test_each_rank_has_its_own_share_and_epochs(root: Path, kind: str, reader: str, start: str) -> None:
    """The dataset is made once, before the ranks are started."""
    if kind == "packed":
        (root / "packed").mkdir()
        lines = [json.dumps({"x": [number] * (1 + number % 3)}) for number in range(SAMPLES)]
        (root / "packed" / "0.jsonl").write_text("\n".join(lines) + "\n")
        np.save(root / "costs.npy", np.array([1 + number % 3 for number in range(SAMPLES)]))
        run(root, str(PROGRAM), str(root), kind, reader, start)
        ranks = [json.loads((root / f"rank-{number}.json").read_text()) for number in range(2)]
        for epoch in range(3):
            assert set(ranks[0][epoch] + ranks[1][epoch]) == set(range(SAMPLES))
            assert not set(ranks[0][epoch]) & set(ranks[1][epoch]), "repeats that fill a last batch are of one rank"
        return
    run(root, str(PROGRAM), str(root), kind, reader, start)
    check(root)
