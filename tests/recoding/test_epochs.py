"""Epochs of a blocked dataset, through the interface that users have."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from streamer import StreamingDataset
from tests.recoding.blocked_format import packed_object

SAMPLES, OBJECTS, BLOCKS = 20, 4, 6


def sample(number: int) -> bytes:
    """Between 50 and 1,500 bytes."""
    random = np.random.default_rng(number)
    return b"%d " % number + random.bytes(int(random.integers(50, 1500))).hex().encode()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(OBJECTS):
        blocks = [
            [sample((number * BLOCKS + block) * SAMPLES + each) for each in range(SAMPLES)] for block in range(BLOCKS)
        ]
        (folder / f"{number}.blocks").write_bytes(packed_object(blocks))
    return folder


@pytest.mark.process
def test_each_sample_once(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    with contextlib.closing(
        StreamingDataset(data, format="blocks", cache_dir=tmp_path / "cache", batch_size=16)
    ) as dataset:
        assert len(dataset) == SAMPLES * OBJECTS * BLOCKS
        for _ in range(2):
            found = sorted(int(each["txt"].split()[0]) for each in dataset)
            assert found == list(range(len(dataset)))
        assert dataset[17]["txt"].encode() == sample(17)
