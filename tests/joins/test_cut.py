"""Joins whose right side is Parquet, in inline engines: its chunks are no longer than those of the left side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uvloop

from streamer import Order, StreamingDataLoader, StreamingDataset
from streamer.batches.samples.join_cost import join_cost
from streamer.errors import CacheFullError
from streamer.loader.members.joins import finer_chunks
from streamer.manifest import chunking
from tests.tars import tar_of

SAMPLES = 300
PAGES = {"write_page_index": True, "data_page_size": 32 << 10, "use_dictionary": False, "write_batch_size": 8}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns samples of 100 kB beside rows of 6 kB in the same order: a chunk of rows has 16 times as many."""
    folder, random = tmp_path_factory.mktemp("sides"), np.random.default_rng(1)
    for name in ("left", "right"):
        (folder / name).mkdir()
    entries = []
    for number in range(SAMPLES):
        entries.append((f"{number:04}.bin", random.bytes(100_000)))
        entries.append((f"{number:04}.json", json.dumps({"id": number}).encode()))
    (folder / "left/0.tar").write_bytes(tar_of(entries))
    table = pa.table({"id": range(SAMPLES), "row": [random.bytes(6000) for _ in range(SAMPLES)]})
    pq.write_table(table, folder / "right/0.parquet", **PAGES)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _first_loop() -> None:
    """Makes a loop first, because libuv keeps a pipe for signals from the first loop of a process to its end."""
    uvloop.new_event_loop().close()


@pytest.mark.process
def test_chunks_of_many_rows_are_cut(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closing: Callable[[Any], Any]
):
    """A join divides long chunks of its right side where pages allow it, so that few bytes of rows are open at once.

    Data of this size would have short chunks at once: the rule is changed for this engine, which runs inline.
    """
    monkeypatch.setattr(chunking, "ENOUGH_CHUNKS", 1)
    place: dict[str, Any] = {"engine": "inline", "cache_dir": tmp_path / "cache", "cache_bytes": "1GB"}
    left, right = (closing(StreamingDataset(data / name, shuffle=False, **place)) for name in ("left", "right"))
    joined = closing(left.join(right, on=("json.id", "id")))
    (join,) = joined._member.open().joins
    assert right._member.open().manifest.chunks == 1
    assert finer_chunks(left._member.open().manifest, right._member.open().manifest) == chunking.LEAST_CHUNK_BYTES
    assert join.manifest.chunks == 7
    cost = join_cost(join, joined._member.open())
    # Each is used by one chunk of the left side, or by two where one begins.
    assert cost.most_bytes <= 1.5 * cost.fetched_bytes
    expected = pq.read_table(data / "right/0.parquet")["row"]
    assert [sample["row"] for sample in joined] == expected.to_pylist()
    assert finer_chunks(left._member.open().manifest, join.manifest) == 0


@pytest.mark.process
def test_a_cache_without_room_for_the_rows_is_told_of_the_pack(
    data: Path, tmp_path: Path, closing: Callable[[Any], Any]
):
    """A join with rows in random order raises CacheFullError that advises `pack --join` if its cache is too small.

    Each row has another chunk open.
    """
    table = pq.read_table(data / "right/0.parquet")
    (tmp_path / "random").mkdir()
    pq.write_table(
        table.take(np.random.default_rng(2).permutation(SAMPLES)), tmp_path / "random/0.parquet", row_group_size=16
    )
    place: dict[str, Any] = {"engine": "inline", "cache_dir": tmp_path / "cache", "cache_bytes": "4MB"}
    order = Order(lanes=2, shuffle_window=2)
    left = closing(StreamingDataset(data / "left", order=order, **place))
    joined = closing(left.join(closing(StreamingDataset(tmp_path / "random", **place)), on=("json.id", "id")))
    with (
        StreamingDataLoader(joined, 8) as loader,
        pytest.raises(CacheFullError, match=r"rows of joins.*pack --join") as caught,
    ):
        list(loader)
    assert caught.value.details["least_bytes"] > 4_000_000
