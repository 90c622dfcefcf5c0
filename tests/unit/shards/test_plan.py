"""The plan of a pack: which samples come to which shard, in which order, and what is read for them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.errors import ConfigError, PackError
from streamer.executors.runner import Runner
from streamer.indexing.build import BuildOptions
from streamer.indexing.source import DatasetSource, manifest_of_source
from streamer.manifest.table import Manifest
from streamer.shards import plan as planning
from streamer.shards.plan import ShardPlan, batch_of, key_of_file, make_plan, refuse_double_keys
from streamer.shards.reading import reads_of
from tests.tars import tar_of


def indexed(folder: Path, tmp_path: Path) -> Manifest:
    """Returns the manifest of a folder."""
    source = DatasetSource(urls=(str(folder),))
    with ThreadPoolExecutor(1) as threads:
        return asyncio.run(manifest_of_source(source, tmp_path / "manifest", Runner(threads, 1), BuildOptions()))


@pytest.fixture
def files(tmp_path: Path) -> Manifest:
    """Indexes 100 raw files of 0 to 990 bytes."""
    for number in range(100):
        path = tmp_path / f"raw/c{number % 3}/{number:03d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(10 * number))
    return indexed(tmp_path / "raw", tmp_path)


@pytest.fixture
def tars(tmp_path: Path) -> Manifest:
    """Indexes four tars of 50 samples, in chunks of about 256 KiB."""
    (tmp_path / "tars").mkdir()
    for tar in range(4):
        entries = [(f"{tar}-{i:02d}.bin", bytes([tar]) * 20_000) for i in range(50)]
        (tmp_path / f"tars/{tar}.tar").write_bytes(tar_of(entries))
    return indexed(tmp_path / "tars", tmp_path)


def samples_of(plan: ShardPlan) -> list[int]:
    """Returns the ordinals of all shards, in order."""
    return [i for shard in range(plan.shards) for batch in plan.batches(shard) for i in batch.tolist()]


@pytest.mark.parametrize("order", ["manifest", "name", "shuffle"])
def test_every_sample_once(files: Manifest, order: planning.Order) -> None:
    """A plan has every sample once, in shards of about the size that was asked for, in any order."""
    plan = make_plan(files, order, 1, 50_000)
    assert sorted(samples_of(plan)) == list(range(100))
    assert plan.shards == 5
    assert max(plan.shard_bytes) < 1.1 * min(plan.shard_bytes)
    assert int(plan.shard_bytes.sum()) == 49_500 + 100 * 1536


def test_orders(files: Manifest) -> None:
    """Samples are planned in the order of the manifest, of their names, or of a shuffle by a seed."""
    assert samples_of(make_plan(files, "manifest", 0, 10**6)) == list(range(100))
    named = [files.name(i).object_key for i in samples_of(make_plan(files, "name", 0, 10**6))]
    assert named == sorted(named)
    first, second = (samples_of(make_plan(files, "shuffle", seed, 10**6)) for seed in (1, 2))
    assert first not in (second, list(range(100)))


def test_shuffled_tars_are_read_by_whole_chunks(tars: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shuffle of tars has each chunk in one batch and mixes the samples of a batch."""
    monkeypatch.setattr(planning, "BATCH_BYTES", 600_000)
    plan = make_plan(tars, "shuffle", 5, 1_500_000)
    assert sorted(samples_of(plan)) == list(range(200))
    batches = [batch for shard in range(plan.shards) for batch in plan.batches(shard)]
    assert len(batches) > plan.shards > 1
    chunks = [set((np.searchsorted(tars.chunk_first, batch, side="right") - 1).tolist()) for batch in batches]
    assert sum(map(len, chunks)) == tars.chunks
    assert all(batch.tolist() != sorted(batch.tolist()) for batch in batches)


def test_a_batch_of_neighbours_is_one_read(tars: Manifest) -> None:
    """Adjacent samples of a tar are one read, which includes a small gap and not a large one."""
    extents, places = reads_of(batch_of(tars, np.arange(200)))
    assert len(extents) == 4
    assert places == sorted(places)
    extents, places = reads_of(batch_of(tars, np.array([10, 0, 2])))
    assert [(extent.start, extent.stop) for extent in extents] == [(0, 11 * 20_992)]
    assert places == [10 * 20_992, 0, 2 * 20_992]
    assert len(reads_of(batch_of(tars, np.array([0, 40])))[0]) == 2


def test_a_batch_of_files(files: Manifest) -> None:
    """A batch of files has one read for each file and none for empty ones."""
    batch = batch_of(files, np.arange(100))
    extents, _ = reads_of(batch)
    assert len(extents) == 99
    assert len(batch.names) == 100


@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=60),
    st.integers(1024, 20_000),
    st.integers(1, 10_000),
)
def test_cuts_have_every_unit_once(sizes: list[int], shard_bytes: int, batch_bytes: int) -> None:
    """Cuts of any sizes have every unit once, in order, and no shard or batch is empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "BATCH_BYTES", batch_bytes)
        count = len(sizes)
        plan = planning._cut(np.arange(count), np.array(sizes, np.int64), np.arange(count + 1), shard_bytes)
    assert samples_of(plan) == list(range(count))
    assert all(len(batch) for shard in range(plan.shards) for batch in plan.batches(shard))
    assert all(sum(map(len, plan.batches(shard))) for shard in range(plan.shards))
    assert plan.shards <= -(-(sum(sizes) + 1536 * count) // shard_bytes)


def test_what_cannot_be_planned(tars: Manifest, files: Manifest) -> None:
    """Unknown orders, sizes and an order by names without names raise ConfigError."""
    with pytest.raises(ConfigError, match="needs the names"):
        make_plan(tars, "name", 0, 10**6)
    with pytest.raises(ConfigError, match="not one of manifest, name, shuffle"):
        make_plan(files, "random", 0, 10**6)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="shard_bytes=10 "):
        make_plan(files, "manifest", 0, 10)


@pytest.mark.parametrize(
    ("path", "key"),
    [("a/b.c.JPEG", "a/b.c"), ("a/b", "a/b"), ("b.txt.gz", "b"), ("v1.5.gz", "v1.5"), ("a.d/b", "a.d/b")],
)
def test_keys_of_files(path: str, key: str) -> None:
    """The key of a file is its path without the extensions that become the field."""
    assert key_of_file(path) == key


def test_two_files_of_one_key(tmp_path: Path) -> None:
    """Two files that would be one sample raise PackError with both names before anything is written."""
    (tmp_path / "raw").mkdir()
    for name in ("x.jpg", "x.png", "y.png"):
        (tmp_path / "raw" / name).write_bytes(b"x")
    with pytest.raises(PackError, match=r"x\.\w+ and x\.\w+ would both be sample 'x'"):
        refuse_double_keys(indexed(tmp_path / "raw", tmp_path))
