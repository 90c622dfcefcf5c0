"""Tests of a dataset of buckets: every sample once in each epoch, within the budget, on any ranks, from any state.

Sounds are read from `.npy` files through real loaders, on a fake engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from streamer import Balance, Buckets, Packing, StreamingDataLoader, StreamingDataset, collate_rows, measure_lengths
from streamer.batches.rows.bucket import BucketAssembler
from streamer.batches.rows.options import read_packing
from streamer.errors import ConfigError, DecodeError, StateError, WorkerError

COUNT, BUDGET = 160, 400


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> tuple[Path, list[np.ndarray]]:
    """Writes sounds of 5 to 120 frames of 4 numbers, a file each; the first number is that of the sound."""
    root, random = tmp_path_factory.mktemp("sounds"), np.random.default_rng(0)
    sounds = []
    for number in range(COUNT):
        sound = random.normal(size=(int(random.integers(5, 121)), 4)).astype(np.float32)
        sound[0, 0] = number
        np.save(root / f"{number:03}.npy", sound)
        sounds.append(sound)
    return root, sounds


@pytest.fixture(scope="module")
def costs(tmp_path_factory) -> Path:
    """Returns the path of the lengths of the sounds, which the first dataset writes."""
    return tmp_path_factory.mktemp("costs") / "costs.npy"


@pytest.fixture
def make(make_dataset, given, costs) -> Callable[..., StreamingDataset]:
    def make(packing: Buckets | None = None, **options: object) -> StreamingDataset:
        if not costs.exists():
            measure_lengths(make_dataset(given[0]), "npy", path=costs)
        packing = packing or Buckets(BUDGET, lengths=str(costs), rows_per_set=8)
        return make_dataset(given[0], packing=packing, **options)

    return make


def sounds_of(batches: list[dict]) -> Counter[bytes]:
    """Returns the sounds in batches, without their padding, which must be 0."""
    found: Counter[bytes] = Counter()
    for batch in batches:
        sounds, lengths = np.asarray(batch["npy"]), np.asarray(batch["lengths"])
        assert sounds.shape[0] * sounds.shape[1] <= BUDGET
        assert sounds.shape[1] == lengths.max()
        assert len(batch["__key__"]) == len(lengths)
        for sound, length in zip(sounds, lengths.tolist(), strict=True):
            assert not sound[length:].any()
            found[sound[:length].tobytes()] += 1
    return found


def epoch_of(dataset: StreamingDataset, workers: int = 0) -> list[dict]:
    with StreamingDataLoader(dataset, 1, workers, report_every=None) as loader:
        return [{name: _copy(value) for name, value in batch.items()} for batch in loader]


def _copy(value: object) -> object:
    return value if isinstance(value, list) else np.asarray(value).copy()


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.process)])
def test_every_sample_once_within_the_budget(make, given, workers):
    """Buckets have every sample once in each of two epochs, within the budget, with less than 10 % padding."""
    dataset, wanted = make(), Counter(sound.tobytes() for sound in given[1])
    with StreamingDataLoader(dataset, 1, workers, report_every=None) as loader:
        for _ in range(2):
            batches = [{name: _copy(value) for name, value in batch.items()} for batch in loader]
            assert sounds_of(batches) == wanted
            assert len(batches) == len(loader) == dataset.rows
            padded = sum(batch["npy"].shape[0] * batch["npy"].shape[1] for batch in batches)
            assert sum(int(batch["lengths"].sum()) for batch in batches) / padded > 0.9


@pytest.mark.process
def test_stock_loader_and_bare_loop(make):
    """torch's DataLoader with `collate_rows`, and a bare loop, give the same buckets as the streaming loader."""
    dataset, ours = make(batch_size=1), epoch_of(make())
    assert len(dataset) == len(ours)
    stock = list(DataLoader(dataset, batch_size=1, num_workers=1, collate_fn=collate_rows))
    bare = list(make())
    for one, other, third in zip(ours, stock, bare, strict=True):
        assert np.array_equal(one["npy"], other["npy"].numpy())
        assert np.array_equal(one["npy"], third["npy"])
        assert one["__key__"] == other["__key__"] == third["__key__"]


@pytest.mark.parametrize("balance", [None, Balance(rows_per_rank=1)])
def test_ranks_and_resume(make, given, balance):
    """A bucketed run on 4 ranks that goes on with 2 and then 1 has every sample once.

    All ranks have as many steps.
    """
    found, state = [], None
    for world, steps in ((4, 3), (2, 4), (1, None)):
        counts = set()
        for rank in range(world):
            with StreamingDataLoader(
                make(rank=rank, world_size=world, balance=balance), 1, report_every=None
            ) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                own = [_taken(batch) for _, batch in zip(range(steps or 10**6), loader, strict=False)]
                counts.add(len(own))
                found += own
                saved = loader.state_dict()
        assert len(counts) == 1
        state = saved
    assert sounds_of(found) == Counter(sound.tobytes() for sound in given[1])


def _taken(batch: dict) -> dict:
    return {name: _copy(value) for name, value in batch.items()}


def picky(sample: dict) -> dict:
    """Stands for a user's transform that fails for one sample in a hundred."""
    if int(sample["npy"][0, 0]) % 100 == 7:
        raise ValueError("no good")
    return sample


def test_samples_that_fail_are_left_out(make, given):
    """With `on_error="skip"` samples that fail are left out of their buckets; there are as many buckets."""
    dataset = make(transform=picky, on_error="skip")
    with StreamingDataLoader(dataset, 1, report_every=None) as loader:
        batches = [_taken(batch) for batch in loader]
        assert len(loader.skipped) == 2
    assert len(batches) == dataset.rows
    kept = [sound for number, sound in enumerate(given[1]) if number % 100 != 7]
    assert sounds_of(batches) == Counter(sound.tobytes() for sound in kept)


@pytest.mark.parametrize(
    ("packing", "part"),
    [
        pytest.param(Buckets(BUDGET + 1), "length", id="budget"),
        pytest.param(Buckets(BUDGET, max_samples=2), "most", id="limit of samples"),
        pytest.param(Packing(BUDGET), "policy", id="policy"),
    ],
)
def test_a_state_names_what_has_changed(make, costs, packing, part):
    """A state of other `Buckets` is a `StateError` that names the part: budget, limit of samples or policy."""
    with StreamingDataLoader(make(), 1, report_every=None) as loader:
        state = loader.state_dict()
    changed = type(packing)(**{**vars(packing), "lengths": str(costs), "rows_per_set": 8})
    with (
        StreamingDataLoader(make(changed), 1, report_every=None) as loader,
        pytest.raises(StateError, match=rf"packing\.{part} was"),
    ):
        loader.load_state_dict(state)


def test_a_bucket_is_a_batch(make, costs):
    """A bucket is a batch, so that other batch sizes are refused.

    Samples longer than the budget are refused, too, unless they are dropped.
    """
    with (
        StreamingDataLoader(make(), 2, report_every=None) as loader,
        pytest.raises(ConfigError, match="a bucket is a batch; give batch_size=1"),
    ):
        next(iter(loader))
    longer = r'\d+ documents are longer than the budget of 100 .*; give a larger budget, or overflow="drop"$'
    with pytest.raises(ConfigError, match=longer):
        len(make(Buckets(100, lengths=str(costs))))
    assert make(Buckets(100, lengths=str(costs), overflow="drop")).rows > 0


def document(sample: dict, packing: Buckets | None = None) -> object:
    return BucketAssembler(packing or Buckets(100)).document(sample, 3)


def test_fields_of_buckets():
    """The fields that a bucket pads are those of the sample's length, or those that are named.

    Others are one per sample.
    """
    sample = {"mel": np.zeros((3, 80)), "labels": [1, 2, 3], "text": "abc", "ids": np.arange(5)}
    found = document(sample)
    assert list(found.tokens) == ["mel", "labels"]
    assert list(found.others) == ["text", "ids"]
    assert list(document(sample, Buckets(100, fields=["ids"])).tokens) == ["ids"]


@pytest.mark.parametrize(
    ("sample", "packing", "message"),
    [
        ({"mel": np.zeros((4, 80)), "text": "a"}, None, "3 steps are planned .* 'mel' of 4, 'text' of no length"),
        ({"mel": np.zeros((4, 80))}, Buckets(100, fields=["ids"]), "fields of one length are padded together"),
        ({"a": np.zeros(4), "b": np.zeros(5)}, Buckets(100, fields=["a", "b"]), "'a' of 4, 'b' of 5"),
        ({"mel": np.zeros((3, 80)), "lengths": [1]}, None, "packing makes lengths itself"),
        ([1], None, "the transform has returned list"),
    ],
)
def test_samples_that_cannot_be_padded(sample, packing, message):
    """A sample that cannot be padded is a `DecodeError` of this sample."""
    with pytest.raises(DecodeError, match=message):
        document(sample, packing)


def test_buckets_of_samples_that_differ():
    """A bucket of samples with other fields or shapes is a `DecodeError`.

    One without any sample is a `WorkerError`.
    """
    assembler = BucketAssembler(Buckets(100))
    one = assembler.document({"mel": np.zeros((3, 80))}, 3)
    with pytest.raises(DecodeError, match="has rows of"):
        assembler._bucket([one, assembler.document({"mel": np.zeros((3, 40))}, 3)])
    with pytest.raises(DecodeError, match="one pads mel, another ids"):
        assembler._bucket([one, assembler.document({"ids": np.zeros(3)}, 3)])
    with pytest.raises(WorkerError, match="all samples of a bucket failed"):
        assembler._bucket([])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_tokens": 3}, "length=3 must be 16 to"),
        ({"max_tokens": 64, "max_samples": 0}, "max_samples=0 is below 1"),
        ({"max_tokens": 64, "overflow": "split"}, "overflow='split' must be one of 'error', 'drop'"),
        ({"max_tokens": 64, "length": 64}, "is not a streamer.Packing or Buckets"),
    ],
)
def test_arguments_outside_the_rules_are_refused(arguments, message):
    """Arguments of `Buckets`, given as a mapping, that are outside the rules are refused with the rule."""
    with pytest.raises(ConfigError, match=message):
        read_packing(arguments)
    assert read_packing({"max_tokens": 64}) == Buckets(64)
