"""benchmarks/feed: which number of accelerators is tried next, what is reported, what is generated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.feed.__main__ import Found, next_count
from benchmarks.feed.accelerators import AcceleratorResult, Trial, combine
from benchmarks.feed.generate import generate
from benchmarks.feed.workloads import WORKLOADS
from streamer.cli.exit_codes import Exit
from streamer.cli.main import main


@pytest.mark.parametrize("most", [1, 2, 7, 64])
def test_the_search_ends_at_the_largest_number_that_is_fed(most: int) -> None:
    """The search ends at the largest number of accelerators that is fed, in about twice its logarithm of runs."""
    for capable in range(most + 3):
        fed: dict[int, bool] = {}
        while (count := next_count(fed, most)) is not None:
            assert count not in fed
            fed[count] = count <= capable
        assert max((count for count, enough in fed.items() if enough), default=0) == min(capable, most)
        assert len(fed) <= 2 * most.bit_length() + 1


def test_waiting_lowers_the_utilisation() -> None:
    """Waiting lowers the utilisation, and the slowest accelerator names the bottleneck.
    Ten steps of 0.1 s in 1.25 s are 80 %."""
    fast = AcceleratorResult(steps=10, seconds=1.0, samples=40, received_bytes=400, bottleneck="nothing")
    slow = AcceleratorResult(steps=10, seconds=1.5, samples=40, received_bytes=400, bottleneck="slow store")
    trial = combine([fast, slow], 0.1)
    assert trial.utilisation == pytest.approx(0.8)
    assert trial.lowest == pytest.approx(2 / 3)
    assert trial.bottleneck == "slow store"


def test_the_next_number_says_what_stopped_it() -> None:
    """The trial that stopped a search is that of the next number, not of a larger one that was tried before."""
    found = Found("cold", 2, tuple(Trial(count, 0.0, 0.0, 0.0, 0.0, f"{count} failed") for count in (8, 4, 3)))
    assert found.stopped is not None
    assert found.stopped.bottleneck == "3 failed"


@pytest.mark.parametrize("name", ["retinanet", "resnet50", "unet3d"])
def test_data_is_generated_once_and_has_its_size(name: str, tmp_path: Path) -> None:
    """Generated data have the workload's sizes, and a second call adds only what is missing."""
    scaled = replace(
        WORKLOADS[name],
        sample_bytes=WORKLOADS[name].sample_bytes // 1000,
        deviation_bytes=WORKLOADS[name].deviation_bytes // 1000,
    )
    generate(scaled, tmp_path, 2)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    generate(scaled, tmp_path, 3)
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 3
    assert {path: path.stat().st_mtime_ns for path in paths[:2]} == before
    mean = sum(path.stat().st_size for path in paths) / 3 / scaled.object_samples
    assert mean == pytest.approx(scaled.sample_bytes, rel=0.7 if scaled.deviation_bytes else 0.6, abs=700)


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--like", "resnet50"], "python -m benchmarks.feed NAME"), ([], "required: URL")],
    ids=["option", "no url"],
)
def test_the_command_says_where_it_went(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    """`bench --like` names the program in the repository, and `bench` without a url is wrong use."""
    with pytest.raises(SystemExit) as ended:
        main(["bench", *words])
    assert ended.value.code == Exit.USAGE
    assert message in capsys.readouterr().err
