"""`streamer plan` beside a real run of a loader with its engine: what is fetched is what was planned."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from streamer import StreamingDataLoader, StreamingDataset
from streamer.cli.main import main
from streamer.client.connection import read_statistics
from streamer.client.settings import ClientSettings

SAMPLES = 1200
EPOCHS = 3


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder of 1,200 raw objects of 20 to 60 KB: 48 MB."""
    folder, random = tmp_path_factory.mktemp("objects"), np.random.default_rng(3)
    for number in range(SAMPLES):
        (folder / f"{number:05}.bin").write_bytes(random.bytes(int(random.integers(20_000, 60_000))))
    return folder


@pytest.mark.process
def test_the_command_says_what_follows(objects: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`streamer plan` gives epochs, smallest cache and smallest link, as text and as JSON.

    Half the data in the cache is half the requests.
    """
    report = tmp_path / "plan.json"
    code = main(
        [
            *("plan", f"{objects}/", "--cache-bytes", "30MB", "--batch-size", "32", "--step-seconds", "0.02"),
            *("--link", "30MB/s", "--first-byte", "0.001", "--epochs", "2", "--json-file", str(report)),
            *("--price-per-gb", "0.05", "--cache-dir", str(tmp_path / "cache")),
        ]
    )
    shown = capsys.readouterr().out
    assert code == 0
    assert "1 rank on 1 node, 32 samples and 0.02 s a step" in shown
    assert shown.count("at most 2% waiting after the first epoch: a ") == 2
    found = json.loads(report.read_text())
    cold, warm = found["plan"]["epochs"]
    assert cold["requests"] == SAMPLES
    assert 0.3 * SAMPLES < warm["requests"] < 0.7 * SAMPLES
    assert found["limits"]["link_bytes_per_second"]["least"] > 0


@pytest.mark.slow
def test_a_link_that_is_not_given_is_measured(objects: Path, tmp_path: Path) -> None:
    """`streamer plan` measures the link of this machine if none is given; a local disk makes no step wait."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "streamer", "plan", f"{objects}/", "--cache-bytes", "60MB", "--batch-size", "32"),
            *("--step-seconds", "1", "--epochs", "1", "--no-search", "--cache-dir", str(tmp_path / "cache")),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "measuring the link" in done.stderr
    lines = done.stdout.splitlines()
    (header,) = (number for number, line in enumerate(lines) if line.split()[-1:] == ["waiting"])
    assert lines[header + 1].split()[-1] == "0.0%"


@pytest.mark.slow
@pytest.mark.parametrize(("share", "tolerance"), [(1.5, 0.04), (0.6, 0.06)])
def test_a_run_fetches_what_was_planned(objects: Path, tmp_path: Path, share: float, tolerance: float) -> None:
    """A run of three epochs fetches the bytes and requests that `streamer plan` says, its look-ahead included.

    Hedged requests come on top, at most 3 %.
    """
    cache, cache_bytes = tmp_path / "cache", int(share * 48_000_000)
    report = tmp_path / "plan.json"
    subprocess.run(
        [
            *(sys.executable, "-m", "streamer", "plan", f"{objects}/", "--cache-bytes", str(cache_bytes)),
            *("--batch-size", "32", "--step-seconds", "0.02", "--workers", "2", "--link", "1GB/s", "--no-search"),
            *("--json-file", str(report), "--cache-dir", str(tmp_path / "planning")),
        ],
        check=True,
        capture_output=True,
        timeout=240,
    )
    plan = json.loads(report.read_text())["plan"]
    dataset = StreamingDataset(objects, cache_dir=cache, cache_bytes=cache_bytes, decode=None)
    with StreamingDataLoader(dataset, 32, 2, report_every=None) as loader:
        for _ in range(EPOCHS):
            for _ in loader:
                time.sleep(0.02)
        settings = ClientSettings.from_environment()
        values = read_statistics(ClientSettings(cache_dir=cache, runtime_dir=settings.runtime_dir), 60.0)
    dataset.close()
    assert values is not None
    for what in ("bytes", "requests"):
        planned = sum(epoch["fetched_bytes" if what == "bytes" else what] for epoch in plan["epochs"])
        assert int(str(values[f"store_{what}"])) == pytest.approx(planned + plan[f"ahead_{what}"], rel=tolerance)
