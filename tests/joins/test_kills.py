"""A mix of joined datasets on 4, then 2, then 1 rank as processes; workers, engines and trainers are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamer import StreamingDataLoader
from streamer.client.engine_client import EngineClient
from tests.joins import sides, train

COUNT, PARTS = 960, ((4, 6), (2, 12))
ROOT = Path(__file__).parents[2]


class Ranks:
    """The trainer processes of one part of the run, which read and train nothing."""

    def __init__(self, folder: Path, world: int) -> None:
        self.records = [folder / f"{world}-{rank}.jsonl" for rank in range(world)]
        command = [sys.executable, "tests/joins/train.py", str(folder)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.processes = [
            subprocess.Popen([*command, str(record), str(rank), str(world)], cwd=ROOT, env=environment)
            for rank, record in enumerate(self.records)
        ]

    def lines(self) -> list[list[dict[str, Any]]]:
        """Returns the whole lines of each rank."""
        written = [record.read_text() if record.exists() else "" for record in self.records]
        return [[json.loads(line) for line in text.split("\n")[:-1]] for text in written]

    def reach(self, steps: int) -> list[list[dict[str, Any]]]:
        """Waits until each rank has made so many steps."""
        while min(map(len, found := self.lines())) < steps:
            assert all(process.poll() is None for process in self.processes), "it has ended before the kill"
            time.sleep(0.02)
        return found

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Returns rows with tars in another order for all but the last 30, and tars with rows in another order."""
    generator = np.random.default_rng(5)
    sides.parquet(tmp_path / "rows", range(COUNT))
    sides.write_left(tmp_path / "left", COUNT // 2)
    sides.tars(tmp_path / "tars", generator.permutation(COUNT - 30))
    sides.parquet(tmp_path / "parquet", generator.permutation(COUNT))
    return tmp_path


@pytest.fixture
def calm(data: Path, engine: EngineClient) -> Iterator[list[list[tuple[int, int, int]]]]:
    """Yields the global batches of an undisturbed epoch of one rank."""
    mix, datasets = train.mix_of(data)
    with StreamingDataLoader(mix, train.BATCH, report_every=None) as loader:
        yield [train.found_in(batch) for batch in loader]
    for dataset in (mix, *datasets):
        dataset.close()


def batches_of(lines: list[list[dict[str, Any]]], steps: int) -> list[list[tuple[int, int, int]]]:
    """Returns the global batches of the first steps."""
    parts = ([rank[step]["found"] for rank in lines] for step in range(steps))
    return [sorted(tuple(sample) for found in part for sample in found) for part in parts]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(420)
def test_killed_and_resumed_on_fewer_ranks(data: Path, calm: list[list[tuple[int, int, int]]]):
    """A killed run of joined datasets resumes on fewer ranks with the batches and rows of an undisturbed run."""
    batches: list[list[tuple[int, int, int]]] = []
    for world, steps in PARTS:
        ranks = Ranks(data, world)
        try:
            lines = ranks.reach(steps // 2)
            for rank in lines:
                with suppress(ProcessLookupError):
                    os.kill(rank[-1]["workers"][0], signal.SIGKILL)
            ranks.reach(steps // 2 + 2)
            with suppress(ProcessLookupError):
                os.kill(lines[0][-1]["engine"], signal.SIGKILL)
            ranks.reach(steps)
        finally:
            ranks.kill()
        lines = ranks.lines()
        made = min(map(len, lines))
        states = [rank[made - 1]["state"] for rank in lines]
        assert {(state["epoch"], state["position"]) for state in states} == {(0, (len(batches) + made) * train.BATCH)}
        (data / "state.json").write_text(json.dumps(states[0]))
        batches += batches_of(lines, made)
    last = Ranks(data, 1)
    try:
        assert last.processes[0].wait(200) == 0
    finally:
        last.kill()
    (lines,) = last.lines()
    batches += batches_of([lines], len(lines))
    assert batches == calm
    members = [[sample for batch in batches for sample in batch if sample[0] == member] for member in (0, 1)]
    assert {row for _, number, row in members[0] if number < COUNT - 30} == set(range(train.FIRST, COUNT - 30))
    for member, found in enumerate(members):
        wrong = [one for one in found if one[2] != (-1 if member == 0 and one[1] >= COUNT - 30 else one[1])]
        assert wrong == []
