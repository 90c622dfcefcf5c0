"""Tests of a mix of packed datasets: shares of rows are shares of tokens, in every batch and from any state on.

Documents are read from Megatron files through real loaders, on a fake engine.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from streamer import Estimate, MixedDataset, Order, Packing, StreamingDataLoader, StreamingDataset, Weights
from streamer.errors import ConfigError
from tests.documents import documents, lengths, pieces_in, pieces_of, write_megatron

ROW = 64
FIELDS = ("tokens", "document_ids")
# Members with short and with long documents: over documents, shares of tokens would be others.
MEMBERS = {"web": (500, 64, 0.5), "code": (150, 200, 0.3), "chat": (300, 30, 0.2)}


@pytest.fixture(scope="module")
def given() -> dict[str, list[np.ndarray]]:
    """Returns the documents of each member."""
    return {
        name: documents(lengths(count, scale, place), seed=place + 1)
        for place, (name, (count, scale, _)) in enumerate(MEMBERS.items())
    }


@pytest.fixture(scope="module")
def urls(tmp_path_factory, given):
    """Writes the documents of each member as a Megatron file, and returns the urls."""
    root = tmp_path_factory.mktemp("members")
    return {name: write_megatron(root / name, own) for name, own in given.items()}


@pytest.fixture
def make(fake_engine, urls):
    """Makes mixes of the members on the fake engine, with packings by name."""
    made = []

    def make(packings: dict[str, Packing | None] | None = None, **options: object) -> MixedDataset:
        members = {
            name: StreamingDataset(
                url, format="tokens", packing=(packings or {}).get(name, Packing(ROW, rows_per_set=8))
            )
            for name, url in urls.items()
        }
        made.append(MixedDataset(members, **options))
        return made[-1]

    yield make
    while made:
        made.pop().close()


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.process)])
def test_whole_passes_have_every_token(make, given, workers):
    """`repeat=1` of packed members gives every token once in each epoch, in other rows in the next."""
    mixed = make(repeat=dict.fromkeys(MEMBERS, 1))
    wanted = sum((pieces_of(own, ROW) for own in given.values()), Counter())
    with StreamingDataLoader(mixed, 4, workers, report_every=None) as loader:
        epochs = [[{name: np.asarray(batch[name]).copy() for name in FIELDS} for batch in loader] for _ in range(2)]
    assert [pieces_in(batches) for batches in epochs] == [wanted, wanted]
    assert not np.array_equal(epochs[0][0]["tokens"], epochs[1][0]["tokens"])


def test_shares_are_of_tokens(make):
    """Weights of packed members are shares of the tokens.

    They hold within two rows of 16 in every batch, and within one percent over an epoch.
    """
    weights = {name: weight for name, (_, _, weight) in MEMBERS.items()}
    mixed = make(weights=Weights(weights, epoch_samples=640))
    tokens = Counter()
    with StreamingDataLoader(mixed, 16, report_every=None) as loader:
        for batch in loader:
            sources = loader.sources
            for number, name in enumerate(MEMBERS):
                assert abs(int((sources == number).sum()) - 16 * weights[name]) <= 2
                tokens[name] += int((batch["document_ids"][sources == number] > 0).sum())
        stats = loader.stats().members
    for name, weight in weights.items():
        assert tokens[name] / tokens.total() == pytest.approx(weight, abs=0.01)
        assert stats[name].share == pytest.approx(weight, abs=0.01)


def test_a_run_goes_on_on_other_ranks(make):
    """A packed mix that is stopped on two ranks inside an epoch goes on with exactly the remaining rows on one."""

    def run(world: int, batches: int, state: dict | None) -> tuple[list[Counter], dict]:
        found = [Counter() for _ in range(batches)]
        for rank in range(world):
            mixed = make(repeat=dict.fromkeys(MEMBERS, 1), rank=rank, world_size=world, order=Order(last_batch="fill"))
            with StreamingDataLoader(mixed, 8 // world, report_every=None) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for number, batch in zip(range(batches), loader, strict=False):
                    found[number].update(row.tobytes() for row in np.asarray(batch["tokens"]))
                saved = loader.state_dict()
        return found, saved

    whole, _ = run(1, 30, None)
    first, state = run(2, 11, None)
    rest, _ = run(1, 19, state)
    assert first + rest == whole


def test_members_must_have_rows_of_one_kind(make):
    """Members that differ in `packing=`, or have none, are refused with the names of both."""
    with pytest.raises(ConfigError, match=r"members web and code differ in packing: Packing\(length=64"):
        make({"code": Packing(2 * ROW, rows_per_set=8)})
    with pytest.raises(ConfigError, match="and None"):
        make({"chat": None})


def test_members_are_estimated_together(make):
    """Members may have estimated bytes a token of their own.

    Members of exact and of estimated tokens, or of other margins, are refused.
    """
    packings = {name: Packing(ROW, lengths=Estimate(2 + at / 10), rows_per_set=8) for at, name in enumerate(MEMBERS)}
    with StreamingDataLoader(make(packings), 4, report_every=None) as loader:
        assert next(iter(loader))["tokens"].shape == (4, ROW)
    for other in (packings["chat"], Packing(ROW, lengths=Estimate(2, 0.1), rows_per_set=8)):
        with pytest.raises(ConfigError, match="members web and chat: rows are equally full where all tokens are known"):
            make({**({} if other is packings["chat"] else packings), "chat": other})
