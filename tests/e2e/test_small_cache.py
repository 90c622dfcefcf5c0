"""A real engine whose cache is too small for a job: the limit that the error names is enough for all its ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamer import StreamingDataLoader, StreamingDataset
from streamer.errors import CacheFullError


def epoch(data: Path, cache: Path, cache_bytes: int) -> int:
    """Counts the samples of two ranks that read side by side."""
    loaders = [
        StreamingDataLoader(
            StreamingDataset(str(data), cache_dir=str(cache), cache_bytes=cache_bytes, rank=rank, world_size=2),
            8,
            0,
            report_every=None,
        )
        for rank in range(2)
    ]
    try:
        return sum(len(batch["__key__"]) for pair in zip(*loaders, strict=True) for batch in pair)
    finally:
        for loader in loaders:
            loader.close()
            loader.dataset.close()


@pytest.mark.process
def test_the_named_limit_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the size that CacheFullError names is enough for both ranks of a job.

    The number is that of the error's text, rounded; the first rank knows of the second.
    """
    monkeypatch.setenv("STREAMER_JOB", "small")
    random = np.random.default_rng(1)
    for number in range(256):
        path = tmp_path / "data" / f"{number:03}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(random.bytes(40_000))
    with pytest.raises(CacheFullError, match="0 kB is too small for the cache") as caught:
        epoch(tmp_path / "data", tmp_path / "a", 300_000)
    assert int(str(caught.value.details["least_bytes"])) > 600_000
    assert epoch(tmp_path / "data", tmp_path / "b", int(str(caught.value.details["least_bytes"]))) == 256
