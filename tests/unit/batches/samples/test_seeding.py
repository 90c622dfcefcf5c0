"""Tests of randomness by sample: seeds, and what samples and collate functions draw from global generators."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from streamer.batches.samples.seeding import collate_seed, keep_globals, sample_seeds, seed_globals
from streamer.batches.workers.batch_maker import BatchMaker, MakerRules, SampleFailedError
from tests.fake_dataset import FakeRecipe

SAMPLES, BATCH = 96, 16
Make = Callable[[int, int], object]


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def sample_seed(seed: int, epoch: int, ordinal: int) -> int:
    return sample_seeds(seed, epoch, np.array([ordinal], np.int64))[0]


def test_golden():
    """The seeds of a sample and of a batch never change, as a resumed run must draw what it would have drawn."""
    assert sample_seeds(17, 3, np.array([12345, 2**63 - 1], np.int64))[0] == 0x3DFB9230CB9F2C0F
    assert collate_seed(17, 3, 12345) == 0xD2B454669EB9E5D5


def test_each_part_matters():
    """Seed, epoch and ordinal each give another stream of random numbers, and the same three the same."""
    seeds = {sample_seed(s, e, o) for s in range(4) for e in range(4) for o in range(100)}
    seeds |= {collate_seed(s, e, o) for s in range(4) for e in range(4) for o in range(100)}
    assert len(seeds) == 3200
    with keep_globals():
        seed_globals(sample_seed(1, 2, 3))
        first = draw()
        seed_globals(sample_seed(1, 2, 3))
        assert draw() == first
        seed_globals(sample_seed(1, 2, 4))
        assert all(a != b for a, b in zip(draw(), first, strict=True))


def test_the_trainers_generators_are_left_alone():
    """The trainer's generators are put back after samples were made, so that it draws what it would have drawn."""
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    expected = draw()
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    with keep_globals():
        seed_globals(sample_seed(1, 2, 3))
        draw()
    assert draw() == expected


@pytest.fixture
def own_generators() -> Iterator[None]:
    """Lets the test seed and draw, and puts the global generators back."""
    with keep_globals():
        yield


def maker_of(make: Make, collate_fn: Callable[[list[object]], object] | None = None) -> BatchMaker:
    return BatchMaker(FakeRecipe(SAMPLES, BATCH, make).open(), MakerRules(17, collate_fn))


def made(maker: BatchMaker) -> list[object]:
    """Returns all samples of an epoch."""
    return [sample for batch in range(SAMPLES // BATCH) for sample in maker.load(0, batch).samples]


def seeded(make: Make) -> list[object]:
    """Returns all samples of an epoch, each made after its own seeding."""
    found = []
    for ordinal in range(SAMPLES):
        seed_globals(sample_seed(17, 0, ordinal))
        found.append(make(0, ordinal))
    return found


def never(epoch: int, ordinal: int) -> object:
    """Makes samples without a draw."""
    return ordinal


def always(epoch: int, ordinal: int) -> object:
    """Makes samples that draw from the generators of Python and NumPy."""
    return random.random(), float(np.random.rand())


def rarely(epoch: int, ordinal: int) -> object:
    """Makes samples of which one draws, late in the epoch."""
    return random.randrange(1000) if ordinal == 55 else None


def by_gauss(epoch: int, ordinal: int) -> object:
    """Draws numbers of which the second comes from memory, not from the generator's words."""
    return random.gauss(0, 1), np.random.randn(3).tolist(), random.gauss(0, 1)


def seeds_itself(epoch: int, ordinal: int) -> object:
    """Makes samples of which one seeds the generator of Python, from which the later ones draw."""
    if ordinal == 50:
        random.seed(3)
    return random.random() if ordinal > 50 else None


def with_torch(epoch: int, ordinal: int) -> object:
    """Draws, and puts torch's generator back, as `fork_rng` does."""
    with torch.random.fork_rng():
        return float(torch.rand(1))


@pytest.mark.usefixtures("own_generators")
@pytest.mark.parametrize(
    "make",
    [never, always, rarely, by_gauss, seeds_itself, with_torch],
    ids=lambda make: make.__name__,
)
def test_what_a_sample_draws_is_its_own(make):
    """A sample draws what its seed says, whatever the samples before it drew or seeded."""
    maker = maker_of(make)
    assert made(maker) == seeded(make)
    assert made(maker) == seeded(make)


def drawn_by_collate(maker: BatchMaker) -> list[object]:
    return [maker.collate(maker.load(0, batch)) for batch in range(SAMPLES // BATCH)]


@pytest.mark.usefixtures("own_generators")
@pytest.mark.parametrize("make", [never, always, rarely], ids=lambda make: make.__name__)
def test_what_a_collate_function_draws_is_its_batchs_own(make):
    """A collate function draws by seed, epoch and batch, whatever the samples drew."""
    collate = lambda samples: (random.random(), random.gauss(0, 1), float(np.random.randn()), float(torch.rand(1)))  # noqa: E731
    expected = []
    for batch in range(SAMPLES // BATCH):
        seed_globals(collate_seed(17, 0, batch * BATCH))
        expected.append(collate([]))
    assert drawn_by_collate(maker_of(make, collate)) == expected


@pytest.mark.usefixtures("own_generators")
def test_what_a_collate_function_draws_after_a_skipped_sample():
    """A collate function draws the same after skipped samples as if none had failed."""

    def fails(epoch: int, ordinal: int) -> object:
        if ordinal % BATCH in (0, 5):
            raise ValueError(str(ordinal))
        return ordinal

    collate = lambda samples: (random.random(), float(np.random.rand()))  # noqa: E731
    maker = BatchMaker(FakeRecipe(SAMPLES, BATCH, fails).open(), MakerRules(17, collate, on_error="skip"))
    assert drawn_by_collate(maker) == drawn_by_collate(maker_of(never, collate))


@pytest.mark.usefixtures("own_generators")
def test_an_error_after_a_draw_is_the_samples_own():
    """The error of a sample that failed after a draw has the numbers of its own seed."""

    def fails(epoch: int, ordinal: int) -> object:
        if ordinal == 58:
            raise ValueError(str(random.random()))
        return ordinal

    maker = maker_of(fails)
    with pytest.raises(SampleFailedError) as caught:
        maker.load(0, 3)
    seed_globals(sample_seed(17, 0, 58))
    assert str(caught.value.__cause__) == str(random.random())


@pytest.mark.usefixtures("own_generators")
def test_threads_of_the_trainer_seed_nothing():
    """Worker threads seed no global generator, as they share them with the trainer."""
    maker = BatchMaker(FakeRecipe(SAMPLES, BATCH, never).open(), MakerRules(17, list, seed_globals=False))
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    expected = draw()
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    maker.collate(maker.load(0, 0))
    assert draw() == expected
