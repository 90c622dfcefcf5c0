"""Rows with the real engine: killed processes change no row, and a document that crashes its worker is left out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from streamer import Balance, Packing, StreamingDataLoader, StreamingDataset
from tests.documents import documents, lengths, pieces_in, pieces_of, write_megatron
from tests.inspection import inspect

ROW, COUNT = 128, 3000
FIELDS = ("tokens", "position_ids", "document_ids", "cu_seqlens")


@pytest.fixture(scope="module")
def given() -> list[np.ndarray]:
    return documents(lengths(COUNT, ROW))


@pytest.fixture
def make(tmp_path, given, monkeypatch):
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    url = write_megatron(tmp_path / "tokens", given, files=8)
    made = []

    def make(**options: object) -> StreamingDataset:
        packing = Packing(ROW, labels="shifted", rows_per_set=16)
        made.append(StreamingDataset(url, format="tokens", packing=packing, cache_dir=tmp_path / "cache", **options))
        return made[-1]

    yield make
    while made:
        made.pop().close()


def rows_of(batch: dict) -> dict[str, np.ndarray]:
    return {name: np.asarray(batch[name]).copy() for name in FIELDS}


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("balance", [None, Balance(rows_per_rank=2)], ids=["plain", "balanced"])
def test_killed_workers_and_engines_change_no_row(make, given, balance):
    """Packed rows of two epochs are those of an undisturbed run, though workers and the engine are killed."""
    with StreamingDataLoader(make(balance=balance), 4, report_every=None) as loader:
        calm = [rows_of(batch) for _ in range(2) for batch in loader]
    found = []
    dataset = make(balance=balance)
    with StreamingDataLoader(dataset, 4, 2, report_every=None) as loader:
        for epoch in range(2):
            for number, batch in enumerate(loader):
                found.append(rows_of(batch))
                if number % 5 == 2:
                    with suppress(ProcessLookupError):  # the one killed before, whose successor is not there yet
                        os.kill(inspect(loader).worker_pids[0], signal.SIGKILL)
                if (epoch, number) == (0, 12):
                    with dataset._member.connections.for_requests() as connection:
                        os.kill(connection.welcome.pid, signal.SIGKILL)
        assert loader.stats().respawns > 0
    assert len(found) == len(calm)
    for one, other in zip(found, calm, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in FIELDS)
    assert pieces_in(found[: len(found) // 2]) == pieces_of(given, ROW)


def crashing(sample: dict) -> dict:
    if sample["__key__"] == "1234":
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_document_that_crashes_its_worker_is_left_out(make, given):
    """A document that crashes its worker is skipped and named, and all other documents are delivered."""
    assert len(given[1234])
    dataset = make(transform=crashing, on_error="skip")
    with StreamingDataLoader(dataset, 4, 2, report_every=None) as loader:
        batches = [rows_of(batch) for batch in loader]
        assert [entry.ordinal for entry in loader.skipped] == [1234]
    assert sum(len(batch["tokens"]) for batch in batches) == dataset.rows
    assert pieces_in(batches) == pieces_of([one for number, one in enumerate(given) if number != 1234], ROW)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_killed_trainer_goes_on(tmp_path, given, monkeypatch):
    """A trainer on packed rows that is killed three times and resumed delivers every token of the epoch once."""
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    url, records = write_megatron(tmp_path / "tokens", given, files=8), tmp_path / "records"
    root = Path(__file__).parents[2]
    command = [sys.executable, "tests/fault/pack_rows.py", str(url), str(tmp_path / "cache"), str(records), str(ROW)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    steps, kills = 0, 0
    while True:
        trainer = subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True)
        wanted = steps + 7
        while kills < 3 and trainer.poll() is None and steps < wanted:
            steps = records.read_text().count("\n") if records.exists() else 0
            time.sleep(0.01)
        if kills == 3:
            break
        assert trainer.poll() is None, "the epoch is too short for the kills"
        trainer.kill()
        trainer.communicate()
        kills += 1
    assert trainer.communicate(timeout=200)[0] == "done\n"
    found = [bytes.fromhex(piece) for line in records.read_text().splitlines() for piece in json.loads(line)["pieces"]]
    assert Counter(found) == pieces_of(given, ROW)


def test_a_killed_maker_of_the_table_leaves_nothing_in_the_way(make):
    """A process after one that was killed while it wrote the table of rows removes its files and makes the table."""
    dataset = make()
    rows, folder = dataset.rows, Path(dataset._member.open().manifest.path).parent
    (table,) = folder.glob("*.rows.arrows")
    half = folder / ".building-0123456789abcdef"
    half.mkdir()
    (half / table.name).write_bytes(table.read_bytes()[:50])
    half.with_name(half.name + ".lock").touch()
    table.unlink()
    assert make().rows == rows
    assert not half.exists()
