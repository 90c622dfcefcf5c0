"""First use of tars without a manifest: what the index has read is not read again, whatever is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamer.config import CacheConfig, EngineConfig
from streamer.engine.engine import Engine
from streamer.errors import ManifestError
from streamer.formats import reading
from streamer.indexing.index_log import IndexLog
from streamer.wire.messages import GetManifest
from tests.fault.use_first import CHUNK_BYTES, WINDOW_BYTES
from tests.tars import tar_of

# One request for each file at once, so that none is read ahead.
FILES = 16
SCRIPT = Path(__file__).with_name("use_first.py")
WIDE_BYTES = 256 << 20


def make_tars(folder: Path, sample_bytes: tuple[int, int]) -> int:
    """16 tars of half a megabyte; returns their bytes."""
    random = np.random.default_rng(8)
    folder.mkdir()
    for number in range(FILES):
        sizes: list[int] = []
        while sum(sizes) < 500_000:
            sizes.append(int(random.integers(*sample_bytes)))
        content = tar_of((f"{sample:04}.bin", random.bytes(size)) for sample, size in enumerate(sizes))
        (folder / f"{number}.tar").write_bytes(content)
    return sum(path.stat().st_size for path in folder.iterdir())


def started(data: Path, cache: Path, limit_bytes: int, halt: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), str(data), str(cache), str(limit_bytes), str(halt)]
    root = str(SCRIPT.parent.parent.parent)
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root})


def lines_of(process: subprocess.Popen[str]) -> Iterator[list[Any]]:
    assert process.stdout is not None
    return map(json.loads, process.stdout)


def finished(data: Path, cache: Path, limit_bytes: int) -> list[list[Any]]:
    with started(data, cache, limit_bytes) as process:
        lines = list(lines_of(process))
    assert process.returncode == 0
    return lines


def sent_bytes(lines: list[list[Any]], phase: str) -> int:
    return sum(stop - start for kind, _, start, stop in (line for line in lines if len(line) == 4) if kind == phase)


@pytest.mark.parametrize(
    "sample_bytes",
    [
        pytest.param((4_000, 12_000), id="small"),
        pytest.param((20_000, 120_000), id="beyond a chunk", marks=pytest.mark.slow),
    ],
)
def test_the_first_epoch_reads_nothing_that_the_index_has_read(tmp_path, sample_bytes):
    """The first epoch reads at most 5 % of the bytes that the index of tars has read.
    Chunks over the edge of two windows were read twice: 23 % of 1.1 GB; the measurement of the link 6 % more.
    """
    total = make_tars(tmp_path / "data", sample_bytes)
    lines = finished(tmp_path / "data", tmp_path / "cache", WIDE_BYTES)
    assert 0.98 * total <= sent_bytes(lines, "index") <= total
    assert sent_bytes(lines, "epoch") <= 0.05 * total


@pytest.mark.slow
def test_a_cache_of_half_the_data_is_filled_by_the_index(tmp_path):
    """With a cache of half the data, the first epoch does not fetch again most of what the index has put there."""
    total = make_tars(tmp_path / "data", (4_000, 12_000))
    lines = finished(tmp_path / "data", tmp_path / "cache", total // 2)
    assert sent_bytes(lines, "index") <= total
    assert sent_bytes(lines, "epoch") <= 0.75 * total


def kill_in_mid_index(data: Path, cache: Path) -> None:
    """Kills an index that has read half of the files, and half of each of the others."""
    halted, done = set(), False
    with started(data, cache, WIDE_BYTES, halt=1) as process:
        for line in lines_of(process):
            if line[0] == "halted":
                halted.add(line[1])
            done = done or (line == ["report", line[1]] and line[1].startswith(f"{FILES // 2} of {FILES} objects"))
            if done and len(halted) == FILES // 2:
                break
        process.kill()
    assert done


@pytest.mark.slow
def test_an_index_that_was_killed_goes_on_where_it_was(tmp_path):
    """An index that was killed goes on from its logs: whole files are not read again, others from their open chunk on.
    No chunk is fetched twice.
    """
    data, cache = tmp_path / "data", tmp_path / "cache"
    total = make_tars(data, (4_000, 12_000))
    kill_in_mid_index(data, cache)
    logs = {path: IndexLog(path).read() for path in (cache / "manifests" / "logs").glob("*/*")}
    assert sorted(found.finished for found in logs.values()) == [False] * (FILES // 2) + [True] * (FILES // 2)
    positions = sorted(found.position for found in logs.values() if not found.finished)

    lines = finished(data, cache, WIDE_BYTES)
    index = [line for line in lines if line[0] == "index"]
    assert {int(Path(name).stem) % 2 for _, name, *_ in index} == {1}
    first = {name: min(start for _, other, start, _ in index if other == name) for _, name, *_ in index}
    assert sorted(first.values()) == positions
    assert sent_bytes(lines, "index") <= total / 4 + FILES / 2 * (2 * CHUNK_BYTES + WINDOW_BYTES)
    assert sent_bytes(lines, "epoch") == 0
    assert not (cache / "manifests" / "logs").exists() or not any((cache / "manifests" / "logs").iterdir())
    undisturbed = finished(data, tmp_path / "other", WIDE_BYTES)
    assert [line for line in lines if line[0] == "manifest"] == [line for line in undisturbed if line[0] == "manifest"]


async def test_chunks_of_an_index_that_failed_belong_to_the_cache(tmp_path, monkeypatch):
    """Chunks of an index that failed belong to the cache, which can evict them.
    They were on the disk, and were neither counted nor evicted until the engine started again.
    """
    monkeypatch.setattr(reading, "READ_BYTES", CHUNK_BYTES)
    make_tars(tmp_path / "data", (4_000, 12_000))
    whole = (tmp_path / "data" / "0.tar").read_bytes()
    (tmp_path / "data" / "0.tar").write_bytes(whole[: len(whole) // 2])
    cached = CacheConfig(directory=tmp_path / "cache", limit_bytes=WIDE_BYTES)
    request = GetManifest(0, [f"{tmp_path / 'data'}/0.tar"], "auto", chunk_bytes=CHUNK_BYTES)
    async with Engine(EngineConfig(cache=cached, grace_seconds=None, settle_seconds=0.0)) as engine:
        with pytest.raises(ManifestError, match="cut off"):
            await engine.manifest(request, lambda *step: None)
        known = engine.cache.keys()
        assert len(known) >= 2
        assert all(engine.policy.is_local(key) for key in known)
