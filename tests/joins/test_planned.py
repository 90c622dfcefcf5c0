"""`streamer plan --join` beside a real run: what an S3 server sends of both sides is what was planned."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamer import StreamingDataLoader, StreamingDataset
from streamer.cli.main import main
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from tests.e2e.keyed_s3 import KeyedS3
from tests.joins import sides
from tests.tars import tar_of

COUNT, BYTES, SHARDS = 1200, 8000, 6
# Of a right side in unlike order: 64 rows a row group.
KEYS = {"left": "one", "right": "two"}
COMMON = (
    *("plan", "--cache-bytes", "1GB", "--batch-size", "8", "--step-seconds", "1"),
    *("--link", "1GB/s", "--no-search", "--epochs", "1"),
)


def tars(numbers: list[int], name: str) -> dict[str, bytes]:
    """Returns samples of 8 KB in some tars."""
    parts = np.array_split(np.array(numbers), SHARDS)
    return {
        f"{part}.tar": tar_of([(f"{number:05}.{name}", bytes([number % 251]) * BYTES) for number in some.tolist()])
        for part, some in enumerate(parts)
    }


def parquet(numbers: list[int], folder: Path) -> dict[str, bytes]:
    """Returns the same as row groups of 64 rows."""
    random = np.random.default_rng(1)
    rows = {"k": [f"{number:05}" for number in numbers], "latent": [random.bytes(BYTES) for _ in numbers]}
    pq.write_table(pa.table(rows), folder / "rows.parquet", row_group_size=64, compression="none")
    return {"rows.parquet": (folder / "rows.parquet").read_bytes()}


def right_side(kind: str, folder: Path) -> dict[str, bytes]:
    """Returns the rows in the order of the left side, or in another."""
    numbers = list(range(COUNT))
    if kind != "like":
        np.random.default_rng(2).shuffle(numbers)
    return parquet(numbers, folder) if kind == "row groups" else tars(numbers, "latent")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "cache_bytes"),
    [("like", 60e6), ("like", 12e6), ("unlike", 12e6), ("row groups", 60e6), ("row groups", 14e6)],
)
def test_a_run_fetches_what_was_planned(
    kind: str,
    cache_bytes: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    closing: Callable[[Any], Any],
    capsys: pytest.CaptureFixture[str],
):
    """A run of a join fetches the bytes and requests that `plan --join` says, of both sides and of the right one.

    It has two epochs, with a cache of both sides, or of half.
    """
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    store = KeyedS3({"left": tars(list(range(COUNT)), "bin"), "right": right_side(kind, tmp_path)}, KEYS)
    on = ["__key__", "k"] if kind == "row groups" else "__key__"
    try:
        planned = plan(store, on, int(cache_bytes), tmp_path)
        assert ("the orders or the chunks of the two sides are unlike" in capsys.readouterr().out) is (kind == "unlike")
        place = {"cache_dir": tmp_path / "cache", "cache_bytes": int(cache_bytes)}
        with EngineClient(ClientSettings(runtime_dir=tmp_path / "run", **place)) as client:
            client.roots()
            # What is known, without the chunks that the index has read.
            shutil.copytree(tmp_path / "planning" / "manifests", tmp_path / "cache" / "manifests", dirs_exist_ok=True)
            left, right = (
                closing(StreamingDataset(f"s3://{name}/", storage_options=store.options(key), decode=None, **place))
                for name, key in KEYS.items()
            )
            joined = closing(left.join(right, on=on if isinstance(on, str) else tuple(on), columns=["latent"]))
            assert joined.samples == COUNT
            before, reads = store.sent.copy(), len(store.reads)
            with StreamingDataLoader(joined, 24, 2, report_every=None) as loader:
                for _ in range(2):
                    assert sum(len(batch["latent"]) for batch in loader) == COUNT
        sent, asked = store.sent - before, [bucket for bucket, _, _ in store.reads[reads:]]
    finally:
        store.close()
    epochs = planned["epochs"]
    (more_bytes, more_requests) = planned["ahead_bytes"], planned["ahead_requests"]
    print(kind, cache_bytes, dict(sent), len(asked), asked.count("right"), planned)
    assert sent.total() == pytest.approx(sum(one["fetched_bytes"] for one in epochs) + more_bytes, rel=0.1)
    assert len(asked) == pytest.approx(sum(one["requests"] for one in epochs) + more_requests, rel=0.1)
    rows_bytes, rows_requests = (sum(one["of_joins"][0][which] for one in epochs) for which in (0, 1))
    assert 0.9 * rows_bytes <= sent["right"] <= 1.1 * (rows_bytes + more_bytes)
    assert 0.9 * rows_requests <= asked.count("right") <= 1.1 * (rows_requests + more_requests)


def plan(store: KeyedS3, on: str | list[str], cache_bytes: int, root: Path) -> dict[str, Any]:
    """Returns the plan that the command writes."""
    right = {"url": "s3://right/", "on": on, "columns": ["latent"], "storage_options": store.options(KEYS["right"])}
    code = main(
        [
            *("plan", "s3://left/", "--storage-options", json.dumps(store.options(KEYS["left"]))),
            *("--join", json.dumps(right), "--cache-bytes", str(cache_bytes), "--batch-size", "24", "--workers", "2"),
            *("--step-seconds", "0.001", "--link", "1GB/s", "--epochs", "2", "--no-search"),
            *("--json-file", str(root / "plan.json"), "--cache-dir", str(root / "planning")),
        ]
    )
    assert code == 0
    found: dict[str, Any] = json.loads((root / "plan.json").read_text())["plan"]
    return found


def test_the_command(tmp_path: Path, engine: EngineClient, capsys: pytest.CaptureFixture[str]):
    """`streamer plan` takes a join's columns and a condition on them, and plans the matching samples only."""
    sides.write_left(tmp_path / "left")
    sides.json_lines(tmp_path / "right", range(sides.COUNT))
    common = [*COMMON, str(tmp_path / "left")]
    assert main([*common, "--join", f"{tmp_path}/right:json.uid=uid"]) == 0
    shown = capsys.readouterr().out
    assert f"right: {sides.COUNT} of {sides.COUNT} samples have rows; an epoch fetches" in shown
    assert "of it rows  in requests" in shown
    assert main(["index", str(tmp_path / "right"), "--columns", "n"]) == 0
    capsys.readouterr()
    join = json.dumps({"url": str(tmp_path / "right"), "on": ["json.uid", "uid"], "columns": ["n"], "format": "jsonl"})
    assert main([*common, "--join", join, "--where", f"n < {sides.COUNT // sides.SHARDS}"]) == 0
    assert f"{sides.COUNT // sides.SHARDS} samples in 1 chunk, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        pytest.param('{"url": "right"}', "required field `on`", id="no key"),
        pytest.param('{"url": "x", "on": "k", "key": "k"}', "unknown field `key`", id="misspelt"),
        pytest.param('{"on": "k"}', "required field `url`", id="no url"),
    ],
)
def test_a_wrong_join_is_refused(
    wrong: str, said: str, tmp_path: Path, engine: EngineClient, capsys: pytest.CaptureFixture[str]
):
    """`streamer plan` refuses a --join without a key or a url, or with another option, with code 2 and its name."""
    sides.write_left(tmp_path / "left")
    assert main([*COMMON, str(tmp_path / "left"), "--join", wrong]) == 2
    assert said in capsys.readouterr().err
