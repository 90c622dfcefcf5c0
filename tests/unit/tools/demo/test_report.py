"""The demo's table and curves."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from streamer.tools.demo.events import Step
from streamer.tools.demo.measured import EpochRow, Kill, Measured, Usage
from streamer.tools.demo.report import HEADERS, remarks, save, table, throughput
from streamer.tools.demo.server import Counts


def _row(epoch: int) -> EpochRow:
    return EpochRow(
        epoch=epoch,
        samples=2000,
        seconds=8.0 - epoch,
        wait_share=0.4 / (epoch + 1),
        longest_wait_seconds=0.25,
        usage=Usage(need_bytes=1000, hit_bytes=450 if epoch else 0),
        store=Counts(reads=240, read_bytes=74_000_000, others=1),
        loss=1.0 / (epoch + 1),
        accuracy=0.5,
    )


def _measured() -> Measured:
    steps = [
        Step(rank=rank, epoch=i // 4, batch=i % 4, samples=32, loss=1.0, wait_seconds=0.1, at_seconds=50.0 + i)
        for i in range(8)
        for rank in range(2)
    ]
    return Measured(
        dataset_bytes=74_000_000,
        cache_bytes=37_000_000,
        chunks=283,
        index=Counts(reads=16, read_bytes=1_000_000, others=2),
        rows=[_row(0), _row(1)],
        steps=steps,
        kill=Kill(pid=11, successor=12, at_seconds=56.0, epoch=1),
        keys="0123",
    )


def test_every_row_has_every_column_and_the_killed_epoch_says_so() -> None:
    """The index comes first, then the epochs counted from 1."""
    rows = table(_measured())
    assert all(len(row) == len(HEADERS) for row in rows)
    assert [row[0] for row in rows] == ["index", "1", "2 (engine killed)"]
    assert rows[2][1:6] == ("7.0", "286", "20%", "45%", "74.0 MB")


def test_the_remarks_name_the_bound_the_digest_and_both_engines() -> None:
    """What the table cannot show."""
    text = "\n".join(remarks(_measured()))
    assert "no rule can hit more than 50%" in text
    assert "ranks and epochs: 0123" in text
    assert "engine 11 was killed" in text
    assert "engine 12 took over" in text


def test_throughput_counts_every_sample_once() -> None:
    """The windows' values times their length add up to all samples."""
    seconds, values = throughput(_measured().steps, window_seconds=2.0)
    assert seconds == [1.0, 3.0, 5.0, 7.0]
    assert sum(values) * 2.0 == 16 * 32
    assert throughput([]) == ([], [])


def test_results_and_curves_are_written(tmp_path: Path) -> None:
    """JSON with the rows, and a picture that opens."""
    results, curves = save(_measured(), tmp_path / "new")
    assert json.loads(results.read_text())["rows"][1]["usage"] == {"need_bytes": 1000, "hit_bytes": 450}
    with Image.open(curves) as picture:
        assert picture.size == (1320, 770)
