"""How the demo takes the reports of its ranks, which are given as dicts; no process is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from examples.bucket.store import Counts, Store
from examples.demo.run import DemoOptions, Measured, Run


class _CountingStore:
    """Stands for the demo's store: it counts one more read each time it is asked."""

    def __init__(self) -> None:
        self.reads = 0

    def counts(self) -> Counts:
        self.reads += 1
        return Counts(reads=self.reads)


class _Run(Run):
    """Stands for a run of the demo without an engine, whose pid is 0."""

    def _engine_pid(self) -> int:
        return 0


def _step(rank: int, batch: int, kept_share: float | None = None) -> dict[str, Any]:
    return {"rank": rank, "epoch": 0, "batch": batch, "loss": 0.5, "kept_share": kept_share}


def _followed(tmp_path: Path, *events: dict[str, Any]) -> Measured:
    measured = Measured(DemoOptions(epochs=1, kill_epoch=0), 1, 1)
    _Run(measured, cast(Store, _CountingStore()), tmp_path, lambda text: None)._follow(events)
    return measured


def test_an_epoch_is_complete_when_every_rank_has_reported_its_end(tmp_path: Path) -> None:
    """An epoch is complete when the last rank has reported its end, whichever rank that is."""
    end = {"rank": 1, "epoch": 0, "keys": "b"}
    assert _followed(tmp_path, {"rank": 0, "batches": 4}, _step(0, 0), end).epochs == []
    (epoch,) = _followed(tmp_path, {"rank": 0, "batches": 4}, _step(0, 0), end, {**end, "rank": 0}).epochs
    assert sorted(epoch.ends) == [0, 1]
    assert epoch.store.reads == 1


def test_what_the_engine_keeps_is_asked_now_and_then(tmp_path: Path) -> None:
    """An epoch has the kept shares of those of its steps that report one."""
    steps = [_step(0, 0, 0.4), _step(1, 0), _step(0, 1, 0.5)]
    ends = [{"rank": rank, "epoch": 0, "keys": ""} for rank in range(2)]
    (epoch,) = _followed(tmp_path, {"rank": 0, "batches": 2}, *steps, *ends).epochs
    assert epoch.kept_shares == [0.4, 0.5]
