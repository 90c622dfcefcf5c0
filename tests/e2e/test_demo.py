"""The demos as they are run: S3 server, upload, index, ranks, a killed engine or node, tables and curves."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.bucket.store import Link
from examples.demo import report
from examples.demo.run import DemoOptions, Measured, run_demo
from examples.fleet import report as fleet_report
from examples.fleet.run import FleetOptions, run_fleet


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder in which the demo makes its own; short, for the sockets in it."""
    folder = tmp_path_factory.mktemp("d", numbered=True)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def _check(measured: Measured) -> list[dict[str, float]]:
    options = measured.options
    rows = report.make_rows(measured)
    assert [row["samples"] for row in rows] == [options.images] * options.epochs
    assert all(row["seconds"] > 0 and 0 <= row["wait_share"] <= 1 for row in rows)
    steps = [step for epoch in measured.epochs for step in epoch.steps]
    assert {(step["rank"], step["epoch"]) for step in steps} == {
        (rank, epoch) for rank in range(options.ranks) for epoch in range(options.epochs)
    }
    return rows


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demo_of_shared_caches_loses_a_node(temporary: Path, tmp_path: Path) -> None:
    """The demo of shared caches reads its data from the store about twice alone and once with peers, and loses a node.

    Every sample of the ranks that live comes in every epoch.
    """
    options = FleetOptions(images=512, cache_share=1.0, link=Link(0.0, 0))
    measured = run_fleet(options)
    samples = 2 * options.images
    lost = options.images // 2
    assert [row.samples for row in measured.rows] == [*[samples] * 4, samples - lost, *[samples] * 3]
    stored = [row.store_bytes / measured.dataset_bytes for row in measured.rows]
    assert stored[0] >= 1.9
    assert stored[2] <= 1.3
    assert stored[3] <= 0.1
    assert measured.rows[2].used.peer_bytes > 0.5 * measured.dataset_bytes
    assert measured.rows[0].used.peer_bytes == 0
    assert len(fleet_report.table(measured)) == 8
    results, picture = fleet_report.save(measured, tmp_path / "out")
    assert results.stat().st_size > 500
    assert picture.stat().st_size > 5000


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("images", "ranks"), [(128, 1), (256, 2)])
def test_a_small_demo_survives_the_kill_of_its_engine(temporary: Path, images: int, ranks: int) -> None:
    """The demo, with its engine killed in the second epoch, reads all samples in both and leaves no file behind."""
    options = DemoOptions(images=images, epochs=2, ranks=ranks, kill_epoch=2, cache_share=1.5, link=Link(0.0, 0))
    measured = run_demo(options)
    _check(measured)
    assert measured.killed["epoch"] == 2
    assert measured.killed["successor"] != measured.killed["pid"]
    assert measured.index.read_bytes >= measured.dataset_bytes
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_demo_of_8_images() -> None:
    """The demo runs with 8 images: its cache is 8 MB, because half of 0.3 MB would be less than its open chunks."""
    measured = run_demo(DemoOptions(images=8, epochs=1, kill_epoch=0, link=Link(0.0, 0)))
    _check(measured)
    assert measured.cache_bytes == 8_000_000


@pytest.mark.slow
def test_the_demo_as_it_comes(tmp_path: Path) -> None:
    """The default demo hits what its cache keeps from the second epoch on, reads less from the store, and learns.

    The digest of its order is the known one.
    """
    measured = run_demo(DemoOptions())
    first, *later = _check(measured)
    assert all(row["kept_share"] > 0.35 for row in later)
    assert all(row["hit_share"] == pytest.approx(row["kept_share"], abs=0.06) for row in later)
    assert all(row["store_mb"] < 0.75 * measured.dataset_bytes / 1e6 for row in later)
    assert first["store_mb"] < 1.15 * measured.dataset_bytes / 1e6
    assert later[-1]["loss"] < 0.5 * first["loss"]
    assert measured.digest() == "509d3f834c3107de"
    results, curves = report.save(measured, tmp_path / "demo")
    assert results.stat().st_size > 1000
    assert curves.stat().st_size > 10_000


@pytest.mark.slow
def test_the_same_seed_reads_the_same_samples_in_the_same_order() -> None:
    """The demo's digest over all ranks and epochs is the same for the same seed, and another for another seed."""
    small = {"images": 256, "epochs": 2, "kill_epoch": 0, "cache_share": 1.5, "link": Link(0.0, 0)}
    first, again, other = (run_demo(DemoOptions(seed=seed, **small)).digest() for seed in (17, 17, 18))  # type: ignore[arg-type]
    assert first == again
    assert first != other
