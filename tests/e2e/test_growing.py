"""A growing dataset with real engines, loaders and worker processes: steps, uses, replay, resume, refused options."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from torch.utils.data import DataLoader

from streamer import Growing, Index, MixedDataset, Packing, StreamingDataLoader, StreamingDataset
from streamer.decode import ArrayDecoder
from streamer.errors import ConfigError, StateError
from tests.documents import documents, lengths, pieces_in, pieces_of, write_megatron

# By value: workers would import this module otherwise, and torch with it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SAMPLES, BATCH, EPOCH = 300, 5, 200
REUSE = 3
VALUES = (64, 128)

Close = Callable[[StreamingDataset], StreamingDataset]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns 300 blocks of 32 KiB, each full of its number; chunks have 60 KiB."""
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "data").mkdir()
    for number in range(SAMPLES):
        np.full(VALUES, number, "<f4").tofile(tmp_path / "data" / f"{number:03}.bin")
    return tmp_path / "data"


def numbered(sample: dict, rng: np.random.Generator) -> tuple[int, float]:
    """Returns the number of a sample, and a random number of this use."""
    assert (sample["bin"] == sample["bin"][0, 0]).all()
    return int(sample["bin"][0, 0]), float(rng.random())


def growing(data: Path, grow: str | list[int] = "auto", **options: object) -> StreamingDataset:
    return StreamingDataset(
        data,
        cache_bytes="6MB",
        decode={"bin": ArrayDecoder("<f4", VALUES)},
        transform=numbered,
        growing=Growing(REUSE, EPOCH, grow),
        **options,
    )


def trained(loader: StreamingDataLoader, epochs: int) -> list[list[tuple[int, float]]]:
    """Returns the batches of some epochs."""
    return [list(zip(batch[0].tolist(), batch[1].tolist(), strict=True)) for _ in range(epochs) for batch in loader]


@pytest.mark.process
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_epochs_have_the_same_steps_and_uses_stay_level(data: Path, workers: int, closing: Close) -> None:
    """Every epoch of a growing dataset has epoch_samples / batch_size steps, and uses differ by at most reuse + 1."""
    loader = StreamingDataLoader(closing(growing(data)), BATCH, workers, report_every=None)
    uses, drawn = np.zeros(SAMPLES, int), set()
    with loader:
        for _ in range(8):
            assert len(loader) == EPOCH // BATCH
            steps = 0
            for numbers, draws in loader:
                np.add.at(uses, numbers.numpy(), 1)
                assert uses.max() - uses.min() <= REUSE + 1
                drawn.update(zip(numbers.tolist(), draws.tolist(), strict=True))
                steps += 1
            assert steps == EPOCH // BATCH
    assert uses.sum() == 8 * EPOCH
    # Each use has random numbers of its own.
    assert len(drawn) == 8 * EPOCH


@pytest.mark.process
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("batch", "workers"),
    [(10, 0), pytest.param(10, 2, marks=pytest.mark.slow), pytest.param(400, 2, marks=pytest.mark.slow)],
)
def test_batches_may_be_in_rounds_that_train_samples_twice(
    tmp_path: Path, batch: int, workers: int, closing: Close
) -> None:
    """A batch of a growing dataset may span two rounds and so two passes; uses still differ by at most reuse + 1.

    With 64 files of 55 kB, batch 14 of 10 is in a round of all cohorts and in the next, which begins the next pass.
    """
    (tmp_path / "data").mkdir()
    for number in range(64):
        (tmp_path / "data" / f"{number:02}.bin").write_bytes(number.to_bytes(1, "big") * 55_000)
    data = closing(
        StreamingDataset(
            tmp_path / "data",
            cache_dir=tmp_path / "cache",
            transform=lambda sample: sample["bin"][0],
            growing=Growing(reuse=3, epoch_samples=60),
        )
    )
    uses = np.zeros(64, int)
    with StreamingDataLoader(data, batch, workers, report_every=None) as loader:
        for numbers in (numbers for _ in range(6) for numbers in loader):
            np.add.at(uses, numbers, 1)
    assert uses.sum() == 6 * max(60, batch)
    assert uses.max() - uses.min() <= 4


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 2])
def test_packed_documents_grow_in_rows(tmp_path: Path, workers: int, closing: Close) -> None:
    """Documents in rows of a growing dataset are used as evenly as samples, and a state goes on with the same rows."""
    given = documents(lengths(600, 64))
    url = write_megatron(tmp_path / "tokens", given, files=40)

    def made() -> StreamingDataLoader:
        options = {"format": "tokens", "packing": Packing(64, rows_per_set=8), "growing": Growing(REUSE, EPOCH, "3kB")}
        return StreamingDataLoader(
            closing(StreamingDataset(url, cache_dir=tmp_path / "cache", **options)), BATCH, workers, report_every=None
        )

    pieces = [piece for piece in pieces_of(given, 64) if len(piece) > 8]
    uses, rows, state = Counter(), [], {}
    with made() as loader:
        for epoch in range(4):
            for step, batch in enumerate(loader):
                uses.update(pieces_in([batch]))
                assert max(uses[one] for one in pieces) - min(uses[one] for one in pieces) <= REUSE + 1
                if (epoch, step) == (1, 7):
                    state = loader.state_dict()
                elif state:
                    rows.append(batch["tokens"].tolist())
            assert step + 1 == len(loader) == EPOCH // BATCH
    with made() as loader:
        loader.load_state_dict(state)
        assert [batch["tokens"].tolist() for _ in range(3) for batch in loader] == rows


@pytest.mark.process
def test_a_run_is_repeated_from_its_admissions(data: Path, closing: Close) -> None:
    """round_bytes=loader.admissions repeats a run with the same samples and random numbers, with other workers."""
    with StreamingDataLoader(closing(growing(data)), BATCH, 2, report_every=None) as loader:
        first = trained(loader, 4)
        admissions = loader.admissions
    assert sum(admissions) > admissions[0]
    with StreamingDataLoader(closing(growing(data, admissions)), BATCH, 0, report_every=None) as loader:
        assert trained(loader, 4) == first
        assert loader.admissions[: len(admissions)] == admissions


@pytest.mark.slow
@pytest.mark.process
def test_batches_made_far_ahead_wait_for_room(data: Path, closing: Close) -> None:
    """Batches made far ahead span rounds that do not fit into the cache together, and have the same samples."""
    repeated = [growing(data, [5] * 30) for _ in range(2)]
    with StreamingDataLoader(closing(repeated[0]), BATCH, 0, report_every=None) as loader:
        one_by_one = trained(loader, 3)
    with StreamingDataLoader(closing(repeated[1]), BATCH, 1, prefetch_batches=100, report_every=None) as loader:
        assert trained(loader, 3) == one_by_one


@pytest.mark.slow
@pytest.mark.process
def test_bytes_per_round_fix_the_order(data: Path, closing: Close) -> None:
    """With round_bytes= in bytes no run depends on what has arrived, and any epoch can be next."""
    with StreamingDataLoader(closing(growing(data, "400KB")), BATCH, 2, report_every=None) as loader:
        first = trained(loader, 3)
    with StreamingDataLoader(closing(growing(data, "400KB")), BATCH, 0, report_every=None) as loader:
        loader.set_epoch(1)
        assert trained(loader, 2) == first[EPOCH // BATCH :]


@pytest.mark.process
@pytest.mark.parametrize("stop", [17, *(pytest.param(stop, marks=pytest.mark.slow) for stop in (EPOCH // BATCH, 61))])
def test_a_state_goes_on_with_the_same_samples(data: Path, stop: int, closing: Close) -> None:
    """A growing dataset that resumes from a state yields the rest of the run that was not stopped.

    This holds as far as the run's rounds were decided.
    """
    with StreamingDataLoader(closing(growing(data)), BATCH, 2, report_every=None) as loader:
        first = trained(loader, 3)
        admissions = loader.admissions
    replayed = closing(growing(data, admissions))
    with StreamingDataLoader(replayed, BATCH, 1, report_every=None) as loader:
        batches = 0
        while batches < stop:
            for _ in loader:
                batches += 1
                if batches == stop:
                    state = loader.state_dict()
                    break
    with StreamingDataLoader(closing(growing(data)), BATCH, 2, report_every=None) as loader:
        loader.load_state_dict(state)
        epochs = 3 - stop // (EPOCH // BATCH)
        assert trained(loader, epochs) == first[stop:]


@pytest.mark.slow
@pytest.mark.process
def test_a_state_goes_on_with_another_batch_size(data: Path, closing: Close) -> None:
    """A state of a growing dataset goes on with another batch size over the same samples of the epoch that are left."""
    with StreamingDataLoader(closing(growing(data, "400KB")), BATCH, 1, report_every=None) as loader:
        for step, _ in enumerate(loader, 1):
            if step == 10:
                state = loader.state_dict()
                break
        loader.load_state_dict(state)
        rest = [sample for batch in trained(loader, 1) for sample in batch]
    with StreamingDataLoader(closing(growing(data, "400KB")), 8, 1, report_every=None) as loader:
        loader.load_state_dict(state)
        found = [sample for batch in trained(loader, 1) for sample in batch]
        assert sorted(found) == sorted(rest)


@pytest.mark.slow
@pytest.mark.process
def test_a_bare_loop_has_the_samples_of_the_loader(data: Path, closing: Close) -> None:
    """A loop over a growing dataset has the samples of the loader, and its state goes on at the exact sample."""
    dataset = closing(growing(data, "400KB", batch_size=BATCH))
    seen = [next(samples) for samples in [iter(dataset)] for _ in range(EPOCH - 3)]
    state = dataset.state_dict()
    seen += list(dataset)[:0]
    dataset.load_state_dict(state)
    seen += list(dataset)
    with StreamingDataLoader(closing(growing(data, "400KB")), BATCH, 0, report_every=None) as loader:
        assert sorted(seen) == sorted(sample for batch in trained(loader, 1) for sample in batch)


@pytest.mark.slow
@pytest.mark.process
def test_an_epoch_that_is_left_early_does_not_stop_the_next_one(data: Path, closing: Close) -> None:
    """An epoch of a growing dataset that is left early does not stop the next one, which is whole.

    The uses of the rest are lost, as with any dataset.
    """
    with StreamingDataLoader(closing(growing(data)), BATCH, 1, report_every=None) as loader:
        for _ in loader:
            break
        assert len(trained(loader, 1)) == EPOCH // BATCH
        assert loader.state_dict()["epoch"] == 2


@pytest.mark.process
def test_a_restarted_trainer_finds_its_cohorts(data: Path, closing: Close) -> None:
    """Cohorts in use stay in the cache when a session ends: a restarted trainer has its chunks from there."""
    dataset = closing(growing(data))
    with StreamingDataLoader(dataset, BATCH, 1, report_every=None) as loader:
        trained(loader, 3)
        state = loader.state_dict()
        wait_for_look_ahead(loader)
        hits = loader.stats().engine.hits
    with StreamingDataLoader(closing(growing(data)), BATCH, 1, report_every=None) as loader:
        loader.load_state_dict(state)
        next(iter(loader))
        # Chunks that were in use, or had arrived for the next rounds; how many of them depends on when it ended.
        assert loader.stats().engine.hits > hits


def wait_for_look_ahead(loader: StreamingDataLoader) -> None:
    """Waits until the engine has fetched all that it fetches ahead."""
    before, engine = -1, loader.stats().engine
    while engine.fetches or engine.store_bytes != before:
        before = engine.store_bytes
        time.sleep(0.3)
        engine = loader.stats().engine


@pytest.mark.process
def test_states_of_other_orders_are_refused(data: Path, closing: Close) -> None:
    """A state of another order is refused by a StateError that names what differs."""
    with StreamingDataLoader(closing(growing(data)), BATCH, 0, report_every=None) as loader:
        next(iter(loader))
        state = loader.state_dict()
        with pytest.raises(StateError, match="not of a StreamingDataset with growing="):
            loader.load_state_dict({name: value for name, value in state.items() if name != "kind"})
        with pytest.raises(StateError, match="round 1 cannot admit"):
            loader.load_state_dict({**state, "admitted": [1, 10_000]})
        with pytest.raises(StateError, match="reuse was 9"):
            loader.load_state_dict({**state, "reuse": 9})
    plain = closing(StreamingDataset(data, cache_bytes="4MB"))
    with StreamingDataLoader(plain, BATCH, 0, report_every=None) as loader:
        with pytest.raises(StateError, match="StreamingDataset with growing="):
            loader.load_state_dict(state)
        with pytest.raises(ConfigError, match="growing="):
            _ = loader.admissions


@pytest.mark.process
def test_workers_of_a_plain_dataloader_are_refused(data: Path, closing: Close) -> None:
    """A growing dataset refuses workers of a plain DataLoader, which do not know what the others have trained."""
    plain = DataLoader(closing(growing(data, batch_size=BATCH)), BATCH, num_workers=1)
    with pytest.raises(ConfigError, match="StreamingDataLoader"):
        next(iter(plain))


@pytest.mark.parametrize(
    "options",
    [
        {"growing": 5},
        {"growing": Growing(2, 10), "manifest": Index(on_change="refresh")},
        {"growing": Growing(2, 10), "shuffle": False},
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict) -> None:
    """growing= is refused unless it is a Growing, and with a dataset that is not shuffled or that refreshes."""
    with pytest.raises(ConfigError, match="growing"):
        StreamingDataset("data/", **options)


@pytest.mark.parametrize(
    "wrong", [{"reuse": 0}, {"epoch_samples": 1.5}, {"round_bytes": "much"}, {"round_bytes": [1, -1]}]
)
def test_a_growth_that_cannot_be_is_refused(wrong: dict) -> None:
    """Growing refuses an impossible value with a ConfigError that names the argument."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Growing(**{"reuse": 2, "epoch_samples": 10, **wrong})


def test_a_mix_of_growing_datasets_is_refused() -> None:
    """A MixedDataset refuses a growing member, because members share a cache by their passes."""
    member = StreamingDataset("data/", growing=Growing(2, 10))
    with pytest.raises(ConfigError, match="growing"):
        MixedDataset({"a": member, "b": StreamingDataset("other/")})
