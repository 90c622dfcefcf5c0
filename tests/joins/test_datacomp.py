"""Metadata and embeddings joined to tars in an S3 server, beside pyarrow's join and what the log predicts."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamer import StreamingDataLoader
from streamer.config import parse_bytes
from tests.joins import datacomp
from tests.joins.buckets import Buckets

QUICK, SLOW = 2_000, 100_000
# What the log says of a join: bytes and requests.
SAID = re.compile(r"join +s3://(\w+)/.*?: .*an epoch fetches ([\d.,]+ \w+) in ([\d,]+) requests")


def columns(sample: dict[str, Any]) -> dict[str, Any]:
    """Returns what is compared of a sample."""
    record = sample["json"]
    found = {"number": record["number"], "uid": record["uid"], "jpg": len(sample["jpg"])}
    return found | {name: sample[name] for name in ("score", "caption", "vector")}


def expected(right: datacomp.Right, count: int) -> pa.Table:
    """Returns pyarrow's join: number, score, caption and row of each sample, in the order of the numbers."""
    left = pa.table({"uid": [datacomp.uid(number) for number in range(count)], "number": range(count)})
    numbered = right.metadata.append_column("row", pa.array(np.arange(right.metadata.num_rows)))
    return left.join(numbered, "uid", join_type="left outer").sort_by("number")


def needed_bytes(folder: Path, rows: int) -> int:
    """Returns the stored bytes of so many of all rows of Parquet files, in all their columns."""
    files = [pq.ParquetFile(path).metadata for path in sorted(folder.iterdir())]
    groups = [file.row_group(number) for file in files for number in range(file.num_row_groups)]
    stored = sum(group.column(at).total_compressed_size for group in groups for at in range(group.num_columns))
    return int(stored * rows / sum(group.num_rows for group in groups))


QUICKEST = (QUICK, True, "rows")
CASES = [
    pytest.param(count, same_order, kind, marks=() if (count, same_order, kind) == QUICKEST else pytest.mark.slow)
    for count in (QUICK, SLOW)
    for same_order in (True, False)
    for kind in ("rows", "vectors")
]


@pytest.mark.process
@pytest.mark.parametrize(("count", "same_order", "kind"), CASES)
def test_it_is_a_merge(
    count: int,
    same_order: bool,
    kind: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    closing: Callable[..., Any],
):
    """A join has the rows of pyarrow's join, and fetches the bytes and requests that the log predicts.

    Where the orders agree, bytes are those of the rows.
    """
    right = datacomp.write(tmp_path, count, same_order=same_order)
    names = ("left", "metadata", kind)
    options = ({"decode": {"jpg": bytes}, "transform": columns}, {}, {"format": "npy"} if kind == "rows" else {})
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    buckets = Buckets({name: tmp_path / name for name in names}, tmp_path, cache_bytes=800_000_000)
    try:
        left, metadata, embeddings = (
            closing(buckets.dataset(name, **some)) for name, some in zip(names, options, strict=True)
        )
        by, name = (("json.row", "__key__"), "array") if kind == "rows" else (("json.uid", "uid"), "vector")
        joined = closing(left.join(metadata, on=("json.uid", "uid")))
        joined = closing(joined.join(embeddings, on=by, columns={name: "vector"}))
        assert joined.samples == count
        before, read = buckets.store.sent.copy(), len(buckets.store.reads)
        found: dict[int, tuple[str, float, str, np.ndarray]] = {}
        with (
            caplog.at_level(logging.INFO, "streamer"),
            StreamingDataLoader(joined, 250, num_workers=2 if count == SLOW else 0) as loader,
        ):
            for batch in loader:
                rows = zip(
                    batch["uid"], batch["score"].tolist(), batch["caption"], np.asarray(batch["vector"]), strict=True
                )
                found |= zip(batch["number"].tolist(), rows, strict=True)
        # ---- every row
        merged = expected(right, count)
        assert sorted(found) == merged["number"].to_pylist()
        for name in ("uid", "score", "caption"):
            at = ("uid", "score", "caption").index(name)
            assert [found[number][at] for number in range(count)] == merged[name].to_pylist()
        vectors = np.stack([found[number][3] for number in range(count)])
        assert np.array_equal(vectors, right.embeddings[merged["row"].to_numpy()])
        # ---- bytes and requests
        said = {bucket: (size, requests) for bucket, size, requests in SAID.findall(caplog.text)}
        assert said.keys() == {"metadata", kind}
        for bucket, (size, requests) in said.items():
            sent = buckets.store.sent[bucket] - before[bucket]
            asked = buckets.requests(bucket, read)
            assert sent == pytest.approx(parse_bytes(size.replace(",", ""), "said"), rel=0.1)
            assert asked == pytest.approx(int(requests.replace(",", "")), rel=0.1)
            if same_order:
                rows = count * datacomp.DIMENSIONS * 4 if bucket == "rows" else needed_bytes(tmp_path / bucket, count)
                assert rows <= sent <= 1.2 * rows
    finally:
        buckets.close()
