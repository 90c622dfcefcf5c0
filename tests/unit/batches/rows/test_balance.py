"""Tests of datasets whose batches of rows cost every rank the same: exact, elastic, as level as documents allow.

Documents are read from Megatron files through real loaders, on a fake engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from streamer import Balance, Growing, Order, Packing, StreamingDataLoader, StreamingDataset
from streamer.errors import ConfigError, StateError
from tests.documents import documents, lengths, pieces_in, pieces_of, write_megatron

ROW = 64
FIELDS = ("tokens", "document_ids")
COSTS = (0, 1)


@pytest.fixture(scope="module")
def given() -> list[np.ndarray]:
    return documents(lengths(700, ROW))


@pytest.fixture(scope="module")
def url(tmp_path_factory, given) -> Path:
    return write_megatron(tmp_path_factory.mktemp("tokens"), given)


@pytest.fixture
def make(make_dataset, url) -> Callable[..., StreamingDataset]:
    """Makes datasets of rows of 64 tokens, in which the cost of a document is the square of its tokens."""

    def make(rows: int | None = 2, **options: object) -> StreamingDataset:
        balance = None if rows is None else Balance(rows_per_rank=rows, coefficients=COSTS)
        return make_dataset(url, format="tokens", packing=Packing(ROW, rows_per_set=16), balance=balance, **options)

    return make


def epoch_of(dataset: StreamingDataset, batch_size: int, workers: int = 0) -> list[dict]:
    """Returns the tokens and document numbers of each batch of an epoch."""
    with StreamingDataLoader(dataset, batch_size, workers, report_every=None) as loader:
        return [{name: np.asarray(batch[name]).copy() for name in FIELDS} for batch in loader]


def spread(ranks: list[list[dict]]) -> float:
    """Returns the cost of the dearest rank of a step by the mean of all, on average over steps with whole batches."""
    costs = np.array([[_cost(batch) for batch in rank[:-1]] for rank in ranks])
    return float((costs.max(axis=0) / costs.mean(axis=0)).mean())


def _cost(batch: dict) -> int:
    return sum(int((row == number).sum()) ** 2 for row in batch["document_ids"] for number in range(1, row.max() + 1))


def test_every_token_once_and_equal_cost(make, given):
    """Balanced rows have every token once, at costs that differ by less than half of what they do without.

    Four ranks have the batches of one.
    """
    ranks = [epoch_of(make(rank=rank, world_size=4), 2) for rank in range(4)]
    plain = [epoch_of(make(None, rank=rank, world_size=4), 2) for rank in range(4)]
    assert spread(ranks) < 1 + 0.5 * (spread(plain) - 1)
    whole = epoch_of(make(order=Order(last_batch="fill")), 8)
    for number, batch in enumerate(whole):
        parts = Counter(row.tobytes() for rank in ranks for row in rank[number]["tokens"])
        assert parts == Counter(row.tobytes() for row in batch["tokens"])
    assert pieces_in(epoch_of(make(), 8)) == pieces_of(given, ROW)


@pytest.mark.process
def test_workers_make_the_same_batches(make):
    """Two workers make the balanced batches that the trainer's process makes."""
    one, other = epoch_of(make(), 4), epoch_of(make(), 4, workers=2)
    assert all(np.array_equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in FIELDS)


@pytest.mark.parametrize("stop", [pytest.param(1, marks=pytest.mark.slow), 7, pytest.param(24, marks=pytest.mark.slow)])
def test_a_run_goes_on_with_other_ranks_and_batches(make, given, stop):
    """A balanced run that goes on with other ranks and batch sizes, 4 ranks, 2 and then 1, has every token once."""
    found, state = [], None
    for world, size, batches in ((4, 2, stop), (2, 4, 1), (1, 3, None)):
        for rank in range(world):
            with StreamingDataLoader(make(rank=rank, world_size=world), size, report_every=None) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                taken = iter(loader)
                for _, batch in zip(range(batches or 10**6), taken, strict=False):
                    found.append({name: np.asarray(batch[name]).copy() for name in FIELDS})
                saved = loader.state_dict()
        state = saved
    assert pieces_in(found) == pieces_of(given, ROW)


@pytest.mark.parametrize(
    ("other", "message"),
    [(4, r"balance\.rows was 2 .* and is 4 now; pass balance="), (None, r"balance\.rows was 2")],
    ids=["other rows", "none"],
)
def test_a_state_names_what_has_changed(make, other, message):
    """A state of another `balance=` is a `StateError` that names the part that has changed."""
    with StreamingDataLoader(make(), 4, report_every=None) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with StreamingDataLoader(make(other), 4, report_every=None) as loader, pytest.raises(StateError, match=message):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"balance": Balance(rows_per_rank=2), "growing": Growing(reuse=2, epoch_samples=100)},
            "balance= with growing=",
        ),
        (
            {"balance": Balance(rows_per_rank=2), "packing": Packing(64), "shuffle": False},
            "balance= with shuffle=False",
        ),
        (
            {"balance": Balance(rows_per_rank=2, lengths="a.npy"), "packing": Packing(64)},
            "leave lengths of Balance out",
        ),
        ({"balance": 4, "packing": Packing(64)}, "balance=4 is not a streamer.Balance"),
    ],
)
def test_arguments_that_exclude_each_other(make_dataset, folder, options, message):
    """`balance=` beside arguments that exclude it is refused when the dataset is constructed."""
    with pytest.raises(ConfigError, match=message):
        make_dataset(folder, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows_per_rank": 0}, "rows_per_rank=0 is below 1"),
        ({"rows_per_rank": 1, "coefficients": 3}, "coefficients=3: give a pair"),
        ({"rows_per_rank": 1, "coefficients": (0, 0)}, "coefficients=.0, 0. must be two whole numbers"),
    ],
)
def test_balances_outside_the_rules_are_refused(arguments, message):
    """A `Balance` outside the rules is refused with its value and the rule."""
    with pytest.raises(ConfigError, match=message):
        Balance(**arguments)


def test_lanes_must_divide_the_batch(make):
    """Lanes that do not divide the global batch are refused with `balance=`."""
    with (
        StreamingDataLoader(make(order=Order(lanes=3)), 4, report_every=None) as loader,
        pytest.raises(ConfigError, match="lanes that divide the global batch: 3 do not divide 4"),
    ):
        next(iter(loader))
