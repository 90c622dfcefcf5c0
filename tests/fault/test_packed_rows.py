"""Rows with the real engine: killed processes change no row, and a document that crashes its worker is left out."""

from __future__ import annotations

import os
import signal
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
        packing = Packing(ROW, labels="shifted", set_rows=16)
        made.append(StreamingDataset(url, format="tokens", packing=packing, cache_dir=tmp_path / "cache", **options))
        return made[-1]

    yield make
    while made:
        made.pop().close()


def rows_of(batch: dict) -> dict[str, np.ndarray]:
    return {name: np.asarray(batch[name]).copy() for name in FIELDS}


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("balance", [None, Balance(rows=2)], ids=["plain", "balanced"])
def test_killed_workers_and_engines_change_no_row(make, given, balance):
    """A worker after every fifth batch, the engine once: two epochs as in a calm run."""
    with StreamingDataLoader(make(balance=balance), 4, reports=None) as loader:
        calm = [rows_of(batch) for _ in range(2) for batch in loader]
    found = []
    dataset = make(balance=balance)
    with StreamingDataLoader(dataset, 4, 2, reports=None) as loader:
        for epoch in range(2):
            for number, batch in enumerate(loader):
                found.append(rows_of(batch))
                if number % 5 == 2:
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
    """Twice, then its place stays empty; it is named, and all other documents are there."""
    assert len(given[1234])
    dataset = make(transform=crashing, on_error="skip")
    with StreamingDataLoader(dataset, 4, 2, reports=None) as loader:
        batches = [rows_of(batch) for batch in loader]
        assert [entry.ordinal for entry in loader.skipped] == [1234]
    assert sum(len(batch["tokens"]) for batch in batches) == dataset.rows
    assert pieces_in(batches) == pieces_of([one for number, one in enumerate(given) if number != 1234], ROW)


def test_a_killed_maker_of_the_table_leaves_nothing_in_the_way(make):
    """Its lock ends with it, and what it has written is not a table: the next process makes it."""
    dataset = make()
    rows, folder = dataset.rows, Path(dataset._member.manifest.path).parent
    (table,) = folder.glob("*.rows.arrows")
    half = folder / ".building-0123456789abcdef"
    half.mkdir()
    (half / table.name).write_bytes(table.read_bytes()[:50])
    half.with_name(half.name + ".lock").touch()
    table.unlink()
    assert make().rows == rows
    assert not half.exists()
