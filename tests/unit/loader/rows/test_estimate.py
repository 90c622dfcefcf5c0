"""Rows whose tokens were estimated: no error and no other row; what has no room is left out, and counted."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from streamer import Balance, Buckets, Estimate, Packing, StreamingDataLoader
from streamer.errors import ConfigError, DecodeError, StateError
from streamer.loader.rows.options import as_packing
from streamer.loader.rows.planned import Pieces
from streamer.loader.stall.report import compare
from tests.documents import documents, lengths, pieces_in, pieces_of, write_megatron

# By value: processes would import this module otherwise, and torch with it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROW = 64


@pytest.fixture(scope="module")
def given() -> list[np.ndarray]:
    return documents(lengths(300, ROW))


@pytest.fixture(scope="module")
def url(tmp_path_factory, given) -> Path:
    return write_megatron(tmp_path_factory.mktemp("tokens"), given)


def scattered(sample: dict) -> dict:
    """Four fifths to eight fifths of a document's tokens, by its first one."""
    tokens = sample["tokens"]
    count = len(tokens) * (8 + int(tokens[0]) % 9) // 10
    return {"tokens": np.resize(tokens, count), "at": np.arange(count)}


def settled_one_by_one(pieces: Pieces, tokens: dict[int, int], length: int, multiple: int) -> tuple[list, int]:
    """(begin, size) of each piece, token by token, and the tokens that overflow."""
    found, lost = [], 0
    for first, stop in pairwise(pieces.first.tolist()):
        room = length
        for at in range(first, stop):
            planned = int(pieces.tokens[at])
            count = tokens.get(at, planned)
            begin = int(pieces.begin[at]) * count // planned
            size = int(pieces.begin[at] + pieces.size[at]) * count // planned - begin
            kept = min(size, max(room, 0))
            found.append((begin, kept))
            lost += size - kept if at in tokens else 0
            room -= -(-size // multiple) * multiple
    return found, lost


@pytest.mark.parametrize("multiple", [1, 8])
def test_a_piece_is_the_same_share_of_its_document(multiple):
    """200 random batches: as a loop over the pieces says; rows without a document, documents that failed."""
    random = np.random.default_rng(multiple)
    lost = 0
    for _ in range(200):
        counts = random.integers(0, 6, 5)
        planned = random.integers(1, 40, counts.sum())
        begin = random.integers(0, planned)
        size = random.integers(1, planned - begin + 1)
        pieces = Pieces(np.arange(len(planned)), begin, size, planned, np.append(0, np.cumsum(counts)))
        made = {at: int(random.integers(0, 80)) for at in range(len(planned)) if random.random() < 0.9}
        found = pieces.settled(made, 64, multiple)
        expected, overflowed = settled_one_by_one(pieces, made, 64, multiple)
        assert list(zip(found.begin.tolist(), found.size.tolist(), strict=True)) == expected
        assert found.overflowed == overflowed
        assert found.estimated == size[list(made)].sum()
        lost += overflowed
    assert lost > 1000


@pytest.mark.parametrize("policy", ["best_fit", "concat"])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.process)])
def test_what_has_no_room_is_counted(make_dataset, url, given, policy, workers):
    """Too low by a fifth and scattered: no error, rows as long as ever, and a recount gives the same figures."""
    packing = Packing(ROW, policy, cost=Estimate(2, safety=0.1), set_rows=8, fields=["tokens", "at"])
    dataset = make_dataset(url, format="tokens", transform=scattered, packing=packing)
    all_tokens = sum(len(scattered({"tokens": one})["tokens"]) for one in given if len(one))
    with StreamingDataLoader(dataset, 4, workers, reports=None) as loader:
        before = loader.snapshot()
        batches = [{name: np.asarray(batch[name]) for name in ("tokens", "at", "document_ids")} for batch in loader]
        stats, report = loader.stats().packing, compare(before, loader.snapshot())
    assert all(batch["tokens"].shape[1] == ROW for batch in batches)
    assert sum(len(batch["tokens"]) for batch in batches) == dataset.rows
    kept = sum(int((batch["document_ids"] > 0).sum()) for batch in batches)
    assert 0 < all_tokens - kept < all_tokens / 5
    if workers == 0:
        assert (stats.tokens, stats.overflowed) == (kept, all_tokens - kept)
        assert stats.estimated == sum(map(len, given))
        share = f"{stats.overflowed / all_tokens:.2%} of the tokens had no room in their rows: documents have "
        assert f"{share}{all_tokens / stats.estimated:.3f} of the estimated tokens" in str(report)
    else:
        # Workers have begun the next epoch.
        assert stats.overflowed >= all_tokens - kept
    for batch in batches:
        for tokens, numbers in zip(batch["at"], batch["document_ids"], strict=True):
            runs = [tokens[numbers == one] for one in range(1, int(numbers.max(initial=0)) + 1)]
            assert all((np.diff(run) == 1).all() for run in runs), "a run of the document, without a gap"


@pytest.mark.parametrize("policy", ["best_fit", "concat"])
def test_nothing_is_lost_of_an_estimate_that_is_right(make_dataset, url, given, policy):
    """The rows are those of the tokens, each a tenth less full than it might be; the bare loop makes them, too."""
    length = ROW - 7
    exact = make_dataset(url, format="tokens", packing=Packing(length, policy, set_rows=8))
    estimated = make_dataset(
        url, format="tokens", packing=Packing(ROW, policy, cost=Estimate(2, safety=0.1), set_rows=8), batch_size=1
    )
    assert estimated.rows == exact.rows
    rows = list(estimated)
    assert all(len(row["tokens"]) == ROW for row in rows)
    with StreamingDataLoader(exact, 1, reports=None) as loader:
        assert pieces_in(rows) == pieces_in(loader)
    if policy == "best_fit":
        assert pieces_in(rows) == pieces_of(given, length)


def test_a_state_names_another_estimate(make_dataset, url):
    """Bytes of a token and the safety are parts of the rows."""

    def loader(estimate: Estimate) -> StreamingDataLoader:
        dataset = make_dataset(url, format="tokens", packing=Packing(ROW, cost=estimate, set_rows=8))
        return StreamingDataLoader(dataset, 4, reports=None)

    with loader(Estimate(2)) as run:
        next(iter(run))
        state = run.state_dict()
    for changed, part in ((Estimate(2.1), "costs"), (Estimate(2, 0.2), "length")):
        with loader(changed) as run, pytest.raises(StateError, match=rf"packing\.{part} was"):
            run.load_state_dict(state)
    with loader(Estimate(2)) as run:
        run.load_state_dict(state)


def two_lengths(sample: dict) -> dict:
    return {"tokens": sample["tokens"], "mask": sample["tokens"][:-1]}


def test_named_fields_are_as_long_as_each_other(make_dataset, url):
    """Without a planned number, the first field says it."""
    packing = Packing(ROW, cost=Estimate(2), fields=["tokens", "mask"])
    dataset = make_dataset(url, format="tokens", transform=two_lengths, packing=packing)
    with pytest.raises(DecodeError, match=r"one value for each token, and here 'tokens' has \d+, 'mask' has \d+; name"):
        next(iter(StreamingDataLoader(dataset, 4, reports=None)))


def test_samples_are_balanced_by_their_bytes(make_dataset, url):
    """Lengths that are estimated are not checked: they say which samples share a batch, and nothing else."""

    def keys(balance: Balance) -> list[list[str]]:
        dataset = make_dataset(url, format="tokens", balance=balance)
        with StreamingDataLoader(dataset, 8, ragged=["tokens"], reports=None) as loader:
            return [batch["__key__"] for batch in loader]

    known = keys(Balance(rows=2, cost=(0, 1)))
    assert keys(Balance(rows=2, cost=(0, 1), lengths=Estimate(2))) == known
    assert keys(Balance(rows=2, cost=(0, 1), lengths=Estimate(50))) != known


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Estimate(0), "bytes_per_token=0 must be a number above 0"),
        (lambda: Estimate("4"), "bytes_per_token='4' must be"),
        (lambda: Estimate(4, -0.1), "safety=-0.1 must be a number, 0 to 0.5"),
        (lambda: Buckets(100, cost=Estimate(4)), "the budget is a limit of memory"),
    ],
)
def test_estimates_outside_the_rules_are_refused(make, message):
    """When they are made."""
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_file_may_have_an_estimate():
    """As a mapping, as of `MixedDataset.from_file`; rows of the least length are planned whole."""
    packing = as_packing({"length": 1024, "cost": {"bytes_per_token": 4, "safety": 0.25}, "multiple_of": 512})
    assert packing == Packing(1024, cost=Estimate(4, 0.25), multiple_of=512)
    assert packing.spec().length == 1024
    assert Packing(1024, cost=Estimate(4, 0.25)).spec().length == 768
    assert Packing(16, cost=Estimate(4)).spec().length == 16
