"""The stall report of a real loader beside a real engine."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from streamer import StreamingDataset
from streamer.loader.dataloader import StreamingDataLoader

SAMPLES = 96


def make_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StreamingDataset:
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("RANK", "WORLD_SIZE", "STREAMER_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "source" / "class"
    folder.mkdir(parents=True)
    for number in range(SAMPLES):
        np.save(folder / f"{number:03}.npy", np.full(500, number, np.float32))
    return StreamingDataset(str(folder.parent), cache_dir=tmp_path / "cache", cache_bytes="16MB")


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_engine_and_loader_in_one_report(tmp_path, monkeypatch, workers, caplog):
    """A stall report has the engine's counters, the slowest sample by its name, and what the trainer waited for."""
    caplog.set_level(logging.INFO, "streamer.loader.stall.reporter")
    dataset = make_dataset(tmp_path, monkeypatch)
    with StreamingDataLoader(dataset, 8, workers, worker_type="thread", report_every=0.05) as loader:
        count = sum(1 for _ in loader)
        report, stats = loader.report(), loader.stats()
    dataset.close()
    assert count == report.batches == SAMPLES // 8
    assert stats.engine.needs >= 1
    assert stats.engine.store_bytes >= SAMPLES * 2000
    assert report.engine.limit_bytes > 0
    assert report.slowest_sample.name.startswith("class/")
    assert report.waiting_seconds == pytest.approx(sum(stats.waiting.values()), rel=0.2)
    assert sum(report.waiting.values()) == pytest.approx(1.0)
