"""STREAMER_LOG_FORMAT=json with a real job and its engine process: their logs are one object per line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from streamer import StreamingDataLoader, StreamingDataset
with StreamingDataLoader(StreamingDataset(sys.argv[1], decode=None), 8, 1, report_every=None) as loader:
    for batch in loader:
        pass
    loader.report()
    from streamer.loader.stall.reporter import StallReporter
    StallReporter(loader.report_since, 0).report()
"""


@pytest.mark.slow
def test_every_line_of_trainer_and_engine_is_an_object(tmp_path: Path) -> None:
    """Every line that trainer and engine log is a JSON object, and the stall report has its figures as attributes."""
    (tmp_path / "data").mkdir()
    for number in range(32):
        (tmp_path / "data" / f"{number:02}.bin").write_bytes(bytes(1000))
    environment = {
        **os.environ,
        "STREAMER_LOG_FORMAT": "json",
        "STREAMER_JOB": "j",
        "STREAMER_RUNTIME_DIR": str(tmp_path / "run"),
        "STREAMER_CACHE_DIR": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-c", PROGRAM, f"{tmp_path}/data/"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    (report,) = [line for line in lines if line["scope"]["name"] == "streamer.loader.stall"]
    assert report["body"].startswith("rank 0: ")
    assert report["resource"]["streamer.job"] == "j"
    assert 0 <= report["attributes"]["streamer.stall.share"] <= 1
    assert "streamer.stall.bottleneck" in report["attributes"]
    (log,) = (tmp_path / "run").glob("*.log")
    engine = [json.loads(line) for line in log.read_text().splitlines()]
    assert any(line["body"].startswith("listening after") for line in engine)
