"""Tests of rows whose tokens were estimated: what does not fit is left out and counted, and no row is another.

Datasets are read through real loaders, on a fake engine.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch

from streamer import Balance, Buckets, Estimate, Packing, StreamingDataLoader, StreamingDataset
from streamer.batches.rows.options import read_packing
from streamer.batches.rows.pieces import Pieces
from streamer.errors import ConfigError, DecodeError, StateError
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
    """Returns four fifths to eight fifths of a document's tokens, by its first one."""
    tokens = sample["tokens"]
    count = len(tokens) * (8 + int(tokens[0]) % 9) // 10
    return {"tokens": np.resize(tokens, count), "at": np.arange(count)}


def settled_one_by_one(pieces: Pieces, tokens: dict[int, int], packing: Packing) -> tuple[list, int]:
    """Returns (begin, size) of each piece, one after the other, and the tokens that overflow."""
    found, lost = [], 0
    for first, stop in pairwise(pieces.first.tolist()):
        room = ROW
        for at in range(first, stop):
            planned, count = int(pieces.tokens[at]), tokens.get(at, 0)
            if packing.overflow == "truncate":
                planned, count = min(planned, packing.spec().length), min(count, ROW)
            begin = int(pieces.begin[at]) * count // planned
            size = int(pieces.begin[at] + pieces.size[at]) * count // planned - begin
            kept = min(size, max(room, 0))
            found.append((begin, kept))
            lost += size - kept
            room -= -(-size // packing.multiple_of) * packing.multiple_of
    return found, lost


@pytest.mark.parametrize(("multiple", "overflow"), [(1, "split"), (8, "split"), (8, "truncate")])
def test_a_piece_is_the_same_share_of_its_document(multiple, overflow):
    """A piece of a document with estimated tokens is the same share of its true tokens, and what overflows is counted.

    Compared with a loop over the pieces of 200 random batches, with empty rows and failed documents.
    """
    random = np.random.default_rng(multiple)
    packing = Packing(ROW, overflow=overflow, lengths=Estimate(1, 0.2), multiple_of=multiple)
    lost = 0
    for _ in range(200):
        counts = random.integers(0, 6, 5)
        planned = random.integers(1, 90 if overflow == "truncate" else 40, counts.sum())
        kept = np.minimum(planned, packing.spec().length)
        begin = random.integers(0, kept)
        size = random.integers(1, kept - begin + 1)
        pieces = Pieces(np.arange(len(planned)), begin, size, planned, np.append(0, np.cumsum(counts)))
        made = {at: int(random.integers(0, 80)) for at in range(len(planned)) if random.random() < 0.9}
        found = pieces.settle(made, packing)
        expected, overflowed = settled_one_by_one(pieces, made, packing)
        assert list(zip(found.begin.tolist(), found.size.tolist(), strict=True)) == expected
        assert found.overflowed == overflowed
        assert found.estimated == size[list(made)].sum()
        lost += overflowed
    assert lost > 1000


TEXTS = [10, 20, 30, 40, 60, 64, 90, 300, 0, 5]


def texts(folder: Path) -> Path:
    """Writes lines of JSON of 12 bytes and texts of these lengths, and returns their folder."""
    folder.mkdir()
    (folder / "a.jsonl").write_text("\n".join(json.dumps({"text": "x" * count}) for count in TEXTS))
    return folder


def rows_of(dataset: StreamingDataset) -> list[list[int]]:
    """Returns the tokens of each document of all rows."""
    found = []
    with StreamingDataLoader(dataset, 1, report_every=None) as loader:
        for batch in loader:
            assert batch["tokens"].dtype == torch.int64
            found += np.diff(batch["cu_seqlens"])[: int(batch["document_ids"].max())].tolist()
    return found


@pytest.mark.parametrize("fields", [None, ["tokens"]])
@pytest.mark.parametrize("made", [list, np.array, torch.tensor])
def test_a_document_without_tokens_is_in_no_row(make_dataset, tmp_path, fields, made):
    """A document with bytes and no tokens is in no row, whether it is an empty list, an array or a tensor.

    Empty arrays and tensors are of floating point.
    """

    def tokenize(sample: dict) -> dict:
        return {"tags": [], "tokens": made(list(sample["text"].encode()))}

    packing = Packing(ROW * 8, lengths=Estimate(1), fields=fields)
    assert sorted(rows_of(make_dataset(texts(tmp_path / "texts"), transform=tokenize, packing=packing))) == sorted(
        count for count in TEXTS if count
    )


def in_bytes(sample: dict) -> dict:
    return {"tokens": list(sample["text"].encode())}


def test_truncated_documents_have_the_first_tokens_of_a_row(make_dataset, tmp_path):
    """`overflow="truncate"` gives the first tokens of a row of each document, however wrong the estimate is."""
    packing = Packing(ROW, overflow="truncate", lengths=Estimate(0.5, margin=0))
    dataset = make_dataset(texts(tmp_path / "texts"), transform=in_bytes, packing=packing)
    assert sorted(rows_of(dataset)) == sorted(min(count, ROW) for count in TEXTS if count)


def failing(sample: dict) -> dict:
    """Stands for a user's transform that fails for the text of 40 bytes."""
    if len(sample["text"]) == 40:
        raise ValueError("no good")
    return in_bytes(sample)


def test_a_document_that_fails_leaves_its_room(make_dataset, tmp_path):
    """With `on_error="skip"` the place of a failed document serves the others of its row."""
    packing = Packing(sum(TEXTS) - 40, lengths=Estimate(4, margin=0))
    dataset = make_dataset(
        texts(tmp_path / "texts"), transform=failing, packing=packing, on_error="skip", shuffle=False
    )
    assert sorted(rows_of(dataset)) == sorted(count for count in TEXTS if count not in (0, 40))


@pytest.mark.parametrize("policy", ["best_fit", "concat"])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.process)])
def test_what_has_no_room_is_counted(make_dataset, url, given, policy, workers):
    """Tokens beyond an estimate that is too low are left out and counted; rows are as long as ever.

    The figures in stats and report are those of a recount.
    """
    packing = Packing(ROW, policy, lengths=Estimate(2, margin=0.1), rows_per_set=8, fields=["tokens", "at"])
    dataset = make_dataset(url, format="tokens", transform=scattered, packing=packing)
    all_tokens = sum(len(scattered({"tokens": one})["tokens"]) for one in given if len(one))
    with StreamingDataLoader(dataset, 4, workers, report_every=None) as loader:
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
    """An estimate that is right loses no token: rows are those of the tokens, each a tenth less full.

    So they are in a bare loop.
    """
    length = ROW - 7
    exact = make_dataset(url, format="tokens", packing=Packing(length, policy, rows_per_set=8))
    estimated = make_dataset(
        url,
        format="tokens",
        packing=Packing(ROW, policy, lengths=Estimate(2, margin=0.1), rows_per_set=8),
        batch_size=1,
    )
    assert estimated.rows == exact.rows
    rows = list(estimated)
    assert all(len(row["tokens"]) == ROW for row in rows)
    with StreamingDataLoader(exact, 1, report_every=None) as loader:
        assert pieces_in(rows) == pieces_in(loader)
    if policy == "best_fit":
        assert pieces_in(rows) == pieces_of(given, length)


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        pytest.param(Packing(ROW, lengths=Estimate(2.1, 0), rows_per_set=8), "costs", id="bytes"),
        pytest.param(Packing(ROW, lengths=Estimate(2, 0.2), rows_per_set=8), "length", id="margin"),
        pytest.param(Packing(2 * ROW, lengths=Estimate(2, 0.5), rows_per_set=8), "costs", id="margin and length"),
    ],
)
def test_a_state_names_another_estimate(make_dataset, url, changed, part):
    """A state of another `Estimate` is refused, as bytes per token and margin are parts of the rows."""

    def loader(packing: Packing) -> StreamingDataLoader:
        return StreamingDataLoader(make_dataset(url, format="tokens", packing=packing), 4, report_every=None)

    given = Packing(ROW, lengths=Estimate(2, 0), rows_per_set=8)
    with loader(given) as run:
        next(iter(run))
        state = run.state_dict()
    with loader(changed) as run, pytest.raises(StateError, match=rf"packing\.{part} was"):
        run.load_state_dict(state)
    with loader(given) as run:
        run.load_state_dict(state)


def two_lengths(sample: dict) -> dict:
    """Stands for a user's transform whose fields have different lengths."""
    return {"tokens": sample["tokens"], "mask": sample["tokens"][:-1]}


def test_named_fields_are_as_long_as_each_other(make_dataset, url):
    """Named fields with other lengths than the first are a `DecodeError` that names both."""
    packing = Packing(ROW, lengths=Estimate(2), fields=["tokens", "mask"])
    dataset = make_dataset(url, format="tokens", transform=two_lengths, packing=packing)
    with pytest.raises(DecodeError, match=r"one value for each token, and here 'tokens' has \d+, 'mask' has \d+; name"):
        next(iter(StreamingDataLoader(dataset, 4, report_every=None)))


def test_samples_are_balanced_by_their_bytes(make_dataset, url):
    """Estimated lengths balance samples without being checked.

    They say which samples share a batch, and nothing else.
    """

    def keys(balance: Balance) -> list[list[str]]:
        dataset = make_dataset(url, format="tokens", balance=balance)
        with StreamingDataLoader(dataset, 8, ragged=["tokens"], report_every=None) as loader:
            return [batch["__key__"] for batch in loader]

    known = keys(Balance(rows_per_rank=2, coefficients=(0, 1)))
    assert keys(Balance(rows_per_rank=2, coefficients=(0, 1), lengths=Estimate(2))) == known
    assert keys(Balance(rows_per_rank=2, coefficients=(0, 1), lengths=Estimate(50))) != known


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Estimate(0), "bytes_per_token=0 must be a number, 0.01 to 1073741824"),
        (lambda: Estimate(True), "bytes_per_token=True must be"),
        (lambda: Estimate("4"), "bytes_per_token='4' must be"),
        (lambda: Estimate(4, -0.1), "margin=-0.1 must be a number, 0 to 0.5"),
        (lambda: Packing(8, lengths=Estimate(4)), "length=8 must be 16 to"),
        (lambda: Packing(100, multiple_of=8, lengths=Estimate(4)), "multiple_of=8 must divide length=100"),
        (
            lambda: Packing(64, overflow="error", lengths=Estimate(4)),
            "which documents are longer than a row is not known",
        ),
        (
            lambda: read_packing({"length": 64, "lengths": {"bytes_per_token": 4, "saftey": 0}}),
            "arguments of an Estimate",
        ),
        (lambda: Buckets(100, lengths=Estimate(4)), "max_tokens is a limit of memory"),
    ],
)
def test_estimates_outside_the_rules_are_refused(make, message):
    """An `Estimate` outside the rules, or a packing that cannot have one, is refused when it is made."""
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_file_may_have_an_estimate():
    """A mapping may have an `Estimate`; rows are planned shorter by its margin, and those of the least length whole."""
    packing = read_packing({"length": 1024, "lengths": {"bytes_per_token": 4, "margin": 0.25}, "multiple_of": 512})
    assert packing == Packing(1024, lengths=Estimate(4, 0.25), multiple_of=512)
    assert packing.spec().length == 1024
    assert Packing(1024, lengths=Estimate(4, 0.25)).spec().length == 768
    assert Packing(16, lengths=Estimate(np.float32(4))).spec().length == 16
