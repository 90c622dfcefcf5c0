"""The demo's report: its table, its words and its curves, made of given measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from examples.bucket.store import Counts
from examples.demo.report import compute_throughput, describe, make_rows, name_bound, save
from examples.demo.run import DemoOptions, Epoch, Measured


def _step(rank: int, epoch: int, batch: int) -> dict[str, Any]:
    at_seconds = 50.0 + 4 * epoch + batch
    return {"rank": rank, "epoch": epoch, "batch": batch, "samples": 32, "loss": 1.0, "wait_seconds": 0.25,
            "at_seconds": at_seconds}  # fmt: skip


def _epoch(number: int) -> Epoch:
    steps = [_step(rank, number, batch) for batch in range(4) for rank in range(2)]
    ends = {rank: {"samples": 1000, "right": 500, "seconds": 4.0, "keys": f"keys of {rank}"} for rank in range(2)}
    return Epoch(
        steps=steps,
        ends=ends,
        store=Counts(reads=240, read_bytes=(36_000_000, 20_000_000)[number]),
        seconds=4.0,
        core_busy_share=(0.5, 0.95)[number],
        kept_shares=[0.7, 0.74],
    )


@pytest.fixture
def measured() -> Measured:
    """Makes the measurements of a demo of two epochs, the second of which had its engine killed."""
    return Measured(
        DemoOptions(),
        dataset_bytes=74_000_000,
        cache_bytes=37_000_000,
        index=Counts(reads=16, read_bytes=1_000_000, others=2),
        epochs=[_epoch(0), _epoch(1)],
        killed={"pid": 11, "successor": 12, "at_seconds": 56.0, "epoch": 2},
    )


def test_waiting_stands_beside_what_the_link_makes_unavoidable(measured: Measured) -> None:
    """The report shows waiting beside what the link makes unavoidable.
    36 MB take 3.6 s and the steps 3 s, so a sixth of the time is waited for; 20 MB take less than the steps."""
    first, second = make_rows(measured)
    assert first["wait_share"] == pytest.approx(0.25)
    assert first["link_wait_share"] == pytest.approx(1 - 3.0 / 3.6)
    assert second["link_wait_share"] == 0
    assert first["link_busy_share"] == pytest.approx(0.9)


def test_waiting_stands_beside_what_the_cores_make_unavoidable(measured: Measured) -> None:
    """The report shows waiting beside what the cores make unavoidable.
    Steps take 3 s of 4 s: 2 s of the cores are less than the steps, 3.8 s are waited for."""
    first, second = make_rows(measured)
    assert first["core_wait_share"] == 0
    assert second["core_wait_share"] == pytest.approx(1 - 3.0 / 3.8)


def test_hits_stand_beside_what_the_cache_keeps(measured: Measured) -> None:
    """The report shows hits beside what the cache keeps.
    Of 74 MB the store sent 20 in the second epoch, and the cache kept 0.72; in the first one it was empty."""
    first, second = make_rows(measured)
    assert (first["hit_share"], first["kept_share"]) == (pytest.approx(1 - 36 / 74), 0.0)
    assert (second["hit_share"], second["kept_share"]) == (pytest.approx(1 - 20 / 74), pytest.approx(0.72))


def test_the_table_has_all_columns_and_names_the_killed_epoch(measured: Measured) -> None:
    """The table has the index and the epochs from 1 on, names the killed epoch, and ends with what bounds them."""
    text = describe(measured)
    lines = text.splitlines()
    assert [line.split("  ")[0] for line in lines[:4]] == ["epoch", "index", "1", "2 (engine killed)"]
    assert "engine 11 was killed" in text
    assert "engine 12 took over" in text
    assert measured.digest() in text
    assert lines[-3].startswith("Epoch 1: bounded by the link")
    assert lines[-2].startswith("Epoch 2: bounded by")
    assert lines[-1].startswith("The cache has room for 50% of the data: it keeps 72%")


@pytest.mark.parametrize(
    ("link", "cores", "wait", "bound"),
    [
        (0.95, 1.0, 0.3, "the link"),
        (0.5, 1.0, 0.3, "cores"),
        (0.5, 1.0, 0.05, "training"),
        (0.5, 0.5, 0.3, "no single"),
    ],
)
def test_an_epoch_is_bounded_by_what_was_busy(link: float, cores: float, wait: float, bound: str) -> None:
    """An epoch is bounded by the link, else by the steps if hardly anything was waited for, else by the cores."""
    assert bound in name_bound({"link_busy_share": link, "core_busy_share": cores, "wait_share": wait})


def test_throughput_counts_every_sample_once(measured: Measured) -> None:
    """The throughput of all windows times their length is the number of samples."""
    seconds, values = compute_throughput([step for epoch in measured.epochs for step in epoch.steps], 2.0)
    assert seconds == [1.0, 3.0, 5.0, 7.0]
    assert sum(values) * 2.0 == 16 * 32


def test_results_and_curves_are_written(measured: Measured, tmp_path: Path) -> None:
    """Results are written as JSON with the rows, and curves as an image that opens."""
    results, curves = save(measured, tmp_path / "new")
    assert json.loads(results.read_text())["rows"][1]["requests"] == 240
    with Image.open(curves) as image:
        assert image.size == (1320, 770)


def test_the_digest_is_of_ranks_and_epochs_in_their_order(measured: Measured) -> None:
    """The digest does not depend on which rank reports first, and changes when a rank reads other samples."""
    before = measured.digest()
    measured.epochs[0].ends = dict(reversed(measured.epochs[0].ends.items()))
    assert measured.digest() == before
    measured.epochs[0].ends[0]["keys"] = "others"
    assert measured.digest() != before
