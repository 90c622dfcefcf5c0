"""Tests of `streamer explain` for rows: the figures are those of the batches that a job then makes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from streamer import Balance, Packing, StreamingDataLoader
from streamer.batches.rows.explain import explain_rows
from tests.documents import documents, lengths, write_megatron

ROW, RANKS = 64, 4


@pytest.fixture
def make(make_dataset, tmp_path):
    url = write_megatron(tmp_path / "tokens", documents(lengths(700, ROW)))
    return lambda **options: make_dataset(url, format="tokens", packing=Packing(ROW, rows_per_set=16), **options)


def dearest(make, rows: int, **options: object) -> float:
    """Returns the cost of the dearest rank of a step by the mean of all, over an epoch's first 64 steps at most."""
    costs = []
    for rank in range(RANKS):
        with StreamingDataLoader(make(rank=rank, world_size=RANKS, **options), rows, report_every=None) as loader:
            whole = [batch["document_ids"].numpy() for batch in loader][: loader.dataset.rows // (RANKS * rows)]
        costs.append([sum(_cost(row) for row in batch) for batch in whole[:64]])
    found = np.array(costs, float)
    return float((found.max(axis=0) / found.mean(axis=0)).mean())


def _cost(row: np.ndarray) -> int:
    sizes = np.bincount(row)[1:]
    return int((24576 * sizes + sizes**2).sum())


def test_the_balance_of_ranks_is_that_of_the_job(make):
    """`streamer explain` says what the dearest rank costs by the mean, as a job has it.

    It says so without `Balance` and with it.
    """
    text = explain_rows(make()._member.open().rows, 1 << 20, RANKS * 2, 17)
    found = re.search(rf"{RANKS} ranks of 2 rows: ([\d.]+), with Balance\(rows_per_rank=2\) ([\d.]+)", text)
    wanted = dearest(make, 2), dearest(make, 2, balance=Balance(rows_per_rank=2))
    assert tuple(map(float, found.groups())) == pytest.approx(wanted, abs=0.0006)


def test_rows_and_sets_are_described(make):
    """`streamer explain` says how many rows and sets there are, and what must be local.

    A batch larger than an epoch has no steps to compare.
    """
    dataset = make()
    lines = explain_rows(dataset._member.open().rows, 1 << 20, 10 * dataset.rows, 17).splitlines()
    assert lines[0].startswith(f"rows     {dataset.rows:,} rows of 64 tokens in ")
    assert re.match(r"sets     [\d.]+ .?B each, local before the first of their rows: ", lines[1])
    assert len(lines) == 3
