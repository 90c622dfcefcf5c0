"""benchmarks/feed as a process, with small data: each workload is found, read and counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SHAPES = {"retinanet": 200, "resnet50": 2, "cosmoflow": 32, "flux": 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_accelerators_read_generated_data(name: str, tmp_path: Path) -> None:
    """Two accelerators of a feed benchmark get batches of about the workload's bytes per sample, cold and warm."""
    report = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.feed", name, "--objects", str(SHAPES[name])]
    command += ["--accelerators", "2", "--seconds", "0.5", "--cold-cache", "600MB", "--json-file", str(report)]
    if name == "flux":  # 40 steps of 1.35 s
        command += ["--phase", "cold"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    for phase in found["phases"]:
        (trial,) = phase["trials"]
        assert trial["utilisation"] > 0, trial["bottleneck"]
        sample_bytes = trial["bytes_per_second"] / trial["samples_per_second"]
        assert sample_bytes == pytest.approx(found["like"]["sample_bytes"], rel=0.05)


@pytest.mark.slow
def test_an_error_is_what_stopped_the_accelerators(tmp_path: Path) -> None:
    """A cache that is too small ends the feed benchmark's run of that number of accelerators, not the command."""
    command = [sys.executable, "-m", "benchmarks.feed", "retinanet", "--objects", "200", "--phase", "cold"]
    done = subprocess.run(
        [*command, "--accelerators", "2", "--cold-cache", "9MB"],
        check=False,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert "what stops 2: CacheFullError" in done.stdout
