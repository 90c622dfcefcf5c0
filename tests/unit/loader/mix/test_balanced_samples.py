"""Tests of single samples and mixes whose batches cost every rank the same: exact, elastic, level.

Documents are read from Megatron files through real loaders, on a fake engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from streamer import Balance, MixedDataset, Packing, StreamingDataLoader, StreamingDataset
from streamer.errors import ConfigError, StateError
from tests.documents import documents, lengths, write_megatron

COSTS = (0, 1)
ROW = 64


def number(sample: dict) -> dict:
    """Returns the length of a document, and its first token, which tells it from the others."""
    tokens = sample["tokens"]
    return {"length": len(tokens), "first": int(tokens[0]) if len(tokens) else -1}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> dict[str, tuple[Path, np.ndarray]]:
    """Returns two sets of documents with their lengths."""
    found = {}
    for seed, name in enumerate(("web", "code")):
        counts = lengths(400, ROW * (seed + 1), seed)
        url = write_megatron(tmp_path_factory.mktemp(name), documents(counts, seed))
        np.save(url.parent / f"{url.name}.npy", counts.astype(np.int32))
        found[name] = url, counts
    return found


@pytest.fixture
def make(make_dataset, data) -> Callable[..., StreamingDataset]:
    """Documents one by one, whose cost is the square of their tokens."""

    def make(rows: int | None = 2, lengths: str | None = None, name: str = "web", **options: object):
        balance = None if rows is None else Balance(rows_per_rank=rows, coefficients=COSTS, lengths=lengths)
        own = {"transform": number} if "packing" not in options else {}
        return make_dataset(data[name][0], format="tokens", balance=balance, **own, **options)

    return make


@pytest.fixture
def mix(make):
    """Makes mixes of three parts of web and one of code."""

    made = []

    def mix(rows: int | None = 2, share: int = 3, rank: int = 0, world_size: int = 1, **options: object):
        members = {name: make(rows, name=name, **options) for name in ("web", "code")}
        made.append(MixedDataset(members, weights={"web": share, "code": 1}, rank=rank, world_size=world_size))
        return made[-1]

    yield mix
    while made:
        made.pop().close()


def epoch_of(dataset: StreamingDataset | MixedDataset, size: int) -> list[list[tuple]]:
    """Returns length and first token of each sample, batch after batch."""
    with StreamingDataLoader(dataset, size, report_every=None) as loader:
        return [samples(batch) for batch in loader]


def samples(batch: dict) -> list[tuple]:
    """Returns length and first token of each sample of a batch."""
    return list(zip(batch["length"].tolist(), batch["first"].tolist(), strict=True))


def spread(ranks: list[list[list[tuple]]]) -> float:
    """Returns the cost of the dearest rank of a step by the mean of all ranks, on average over the whole batches."""
    costs = np.array([[sum(length**2 for length, *_ in batch) for batch in rank[:-1]] for rank in ranks])
    return float((costs.max(axis=0) / costs.mean(axis=0)).mean())


@pytest.mark.parametrize("kind", ["make", pytest.param("mix", marks=pytest.mark.slow)])
def test_the_same_batches_on_any_ranks_and_equal_cost(request, kind):
    """With `balance=` 4 and 8 ranks have the samples of one rank in each batch, at more equal costs than without.

    Their differences are below 0.65 of those; an epoch has the samples of an order that is not balanced.
    """
    dataset = request.getfixturevalue(kind)
    whole, ranks = epoch_of(dataset(), 16), []
    for world in (4, 8):
        ranks = [epoch_of(dataset(rank=rank, world_size=world), 16 // world) for rank in range(world)]
        for number, batch in enumerate(whole[:-1]):
            assert Counter(one for rank in ranks for one in rank[number]) == Counter(batch)
    plain = [epoch_of(dataset(None, rank=rank, world_size=8), 2) for rank in range(8)]
    assert spread(ranks) < 1 + 0.65 * (spread(plain) - 1)
    all_plain = Counter(one for batch in epoch_of(dataset(None), 16) for one in batch)
    assert Counter(one for batch in whole for one in batch) == all_plain


@pytest.mark.parametrize("kind", ["make", "mix"])
def test_a_run_goes_on_with_other_ranks_and_batches(request, kind):
    """A balanced run that goes on with other ranks and batch sizes, 4 ranks, 2 and then 1, has every sample once."""
    dataset = request.getfixturevalue(kind)
    found, state = [], None
    for world, size, batches in ((4, 2, 7), (2, 4, 1), (1, 3, None)):
        for rank in range(world):
            with StreamingDataLoader(dataset(rank=rank, world_size=world), size, report_every=None) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                taken = iter(loader)
                for _, batch in zip(range(batches or 10**6), taken, strict=False):
                    found += samples(batch)
                saved = loader.state_dict()
        state = saved
    assert Counter(found) == Counter(one for batch in epoch_of(dataset(None), 8) for one in batch)


def test_lengths_are_known_or_measured(make, data):
    """Lengths come from the index of the tokens or from a file, with one order.

    A state of other lengths is a `StateError`.
    """
    url, counts = data["web"]
    path = f"{url}.npy"
    assert epoch_of(make(lengths=path), 8) == epoch_of(make(), 8)
    with StreamingDataLoader(make(lengths=path), 8, report_every=None) as loader:
        next(iter(loader))
        state = loader.state_dict()
    other = f"{url}.other.npy"
    np.save(other, counts[::-1].astype(np.int32))
    with (
        StreamingDataLoader(make(lengths=other), 8, report_every=None) as loader,
        pytest.raises(StateError, match=r"balance\.lengths was .* and is .* now; pass balance="),
    ):
        loader.load_state_dict(state)


def test_rows_of_a_mix(mix):
    """With `balance=` the rows of a mix cost 4 ranks more equally, and each batch has the shares of its members."""
    packing = Packing(ROW, rows_per_set=8)
    balanced, plain = (
        [row_batches(mix(rows, rank=rank, world_size=4, packing=packing), 4) for rank in range(4)] for rows in (4, None)
    )
    costs = [np.array([[batch.cost for batch in rank[:-1]] for rank in ranks]) for ranks in (balanced, plain)]
    apart = [float((each.max(axis=0) / each.mean(axis=0)).mean()) for each in costs]
    assert apart[0] < 1 + 0.6 * (apart[1] - 1)
    for ranks in (balanced, plain):
        assert {sum(batch.web for batch in step) for step in zip(*ranks, strict=True)} == {12}


class Rows:
    """Keeps what is compared of a batch of rows: its cost, and the rows of the first member."""

    def __init__(self, batch: dict, sources: np.ndarray) -> None:
        ids = np.asarray(batch["document_ids"])
        self.cost = sum(int((row == one).sum()) ** 2 for row in ids for one in range(1, row.max() + 1))
        self.web = int((sources == 0).sum())


def row_batches(dataset: MixedDataset, size: int) -> list[Rows]:
    """Returns cost and shares of each batch of an epoch."""
    with StreamingDataLoader(dataset, size, report_every=None) as loader:
        return [Rows(batch, loader.sources) for batch in loader]


def test_a_changed_mix_goes_on_at_the_end_of_an_epoch(mix):
    """A balanced mix with changed weights goes on from a state at the end of an epoch, and refuses one inside of it.

    Inside an epoch the samples before a state are not the first of each member.
    """
    with StreamingDataLoader(mix(), 8, report_every=None) as loader:
        batches = iter(loader)
        next(batches)
        inside = loader.state_dict()
        for _ in batches:
            pass
        ended = loader.state_dict()
    with StreamingDataLoader(mix(share=1), 8, report_every=None) as loader:
        with pytest.raises(StateError, match="a run with balance=, inside an epoch"):
            loader.load_state_dict(inside, strict=False)
        loader.load_state_dict(ended, strict=False)
        assert loader.state_dict()["epoch"] == 1


def test_members_are_balanced_alike(make):
    """Members that differ in `balance=` are refused with both names and values."""
    with pytest.raises(
        ConfigError, match=r"members a and b differ in balance: Balance.*rows_per_rank=2.* and Balance.*rows_per_rank=4"
    ):
        MixedDataset({"a": make(2), "b": make(4)})


def test_lengths_must_be_known(make_dataset, folder):
    """`balance=` is refused for files, whose lengths are not known, with the way to measure them."""
    with pytest.raises(ConfigError, match=r"not known before it is read; measure it once: .* Balance\(\.\.\., lengths"):
        len(make_dataset(folder, balance=Balance(rows_per_rank=2)))
