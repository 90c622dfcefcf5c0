"""Randomness by sample."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from streamer.loader import seeding
from streamer.loader.maker import BatchMaker, MakerRules, SampleFailedError
from streamer.loader.seeding import GlobalDraws, kept_globals, sample_seed, sample_seeds, seed_globals
from streamer.loader.testing import FakeRecipe

SAMPLES, BATCH = 96, 16
Make = Callable[[int, int], object]


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def test_golden():
    """The seeds never change: a resumed run must draw what it would have drawn."""
    assert sample_seed(17, 3, 12345) == 0x3DFB9230CB9F2C0F


def test_many_at_once():
    """The seeds of a batch are those of its samples, up to the largest numbers."""
    ordinals = np.array([0, 1, 2, 12345, 2**40, 2**63 - 1], np.int64)
    assert sample_seeds(17, 3, ordinals) == [sample_seed(17, 3, ordinal) for ordinal in ordinals.tolist()]
    assert sample_seeds(2**64 - 1, 0, ordinals[:1]) == [sample_seed(2**64 - 1, 0, 0)]


def test_each_part_matters():
    """Seed, epoch and ordinal each give another stream; the same three the same."""
    seeds = {sample_seed(s, e, o) for s in range(4) for e in range(4) for o in range(100)}
    assert len(seeds) == 1600
    with kept_globals():
        seed_globals(sample_seed(1, 2, 3))
        first = draw()
        seed_globals(sample_seed(1, 2, 3))
        assert draw() == first
        seed_globals(sample_seed(1, 2, 4))
        assert all(a != b for a, b in zip(draw(), first, strict=True))


def test_the_trainers_generators_are_left_alone():
    """After samples made inline, the trainer draws what it would have drawn without them."""
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    expected = draw()
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    with kept_globals():
        seed_globals(sample_seed(1, 2, 3))
        draw()
    assert draw() == expected


@pytest.fixture
def own_generators() -> Iterator[None]:
    """The test may seed and draw."""
    with kept_globals():
        yield


def maker_of(make: Make, collate_fn: Callable[[list[object]], object] | None = None) -> BatchMaker:
    return BatchMaker(FakeRecipe(SAMPLES, BATCH, make).open(), MakerRules(17, collate_fn))


def made(maker: BatchMaker) -> list[object]:
    """All samples of an epoch."""
    return [sample for batch in range(SAMPLES // BATCH) for sample in maker.load(0, batch).samples]


def seeded(make: Make) -> list[object]:
    """The same, each sample after its own seeding."""
    found = []
    for ordinal in range(SAMPLES):
        seed_globals(sample_seed(17, 0, ordinal))
        found.append(make(0, ordinal))
    return found


def never(epoch: int, ordinal: int) -> object:
    return ordinal


def always(epoch: int, ordinal: int) -> object:
    return random.random(), float(np.random.rand())


def rarely(epoch: int, ordinal: int) -> object:
    """For the first time in the middle of the fourth batch, when samples are not looked at one by one any more."""
    return random.randrange(1000) if ordinal == 55 else None


def rarely_numpy(epoch: int, ordinal: int) -> object:
    return float(np.random.standard_normal()) if ordinal in (63, 64) else None


def by_gauss(epoch: int, ordinal: int) -> object:
    """Its second number comes from memory, not from the generator's words."""
    return (random.gauss(0, 1), random.gauss(0, 1), np.random.randn(3).tolist()) if ordinal >= 40 else None


def words(epoch: int, ordinal: int) -> object:
    """As many words as the generators have in their state: their place in it is as before."""
    return (np.random.bytes(4 * 624), random.getrandbits(32 * 624)) if ordinal == 70 else None


def seeds_itself(epoch: int, ordinal: int) -> object:
    if ordinal == 50:
        random.seed(3)
    return random.random() if ordinal > 50 else None


def with_torch(epoch: int, ordinal: int) -> object:
    """Puts torch's generator back, as `fork_rng` does."""
    with torch.random.fork_rng():
        return float(torch.rand(1))


@pytest.mark.usefixtures("own_generators")
@pytest.mark.parametrize(
    "make",
    [never, always, rarely, rarely_numpy, by_gauss, words, seeds_itself, with_torch],
    ids=lambda make: make.__name__,
)
def test_what_a_sample_draws_is_its_own(make):
    """Whenever the first one draws, and from whatever: each gets what it would get if all were seeded."""
    maker = maker_of(make)
    assert made(maker) == seeded(make)
    assert made(maker) == seeded(make)


@pytest.mark.usefixtures("own_generators")
def test_what_nobody_draws_from_is_not_seeded_for_each_sample(monkeypatch):
    """After the first batch Python's and numpy's generators are seeded three times a batch; torch's for each sample."""
    plain, by_torch = [], []
    seed_plain, seed_torch = seeding._seed_plain, seeding._seed_torch
    monkeypatch.setattr(seeding, "_seed_plain", lambda mixed: (plain.append(mixed), seed_plain(mixed)))
    monkeypatch.setattr(seeding, "_seed_torch", lambda mixed: (by_torch.append(mixed), seed_torch(mixed)))
    maker = maker_of(never)
    counts = []
    for batch in range(4):
        plain.clear(), by_torch.clear()
        maker.load(0, batch)
        counts.append(len(plain))
        assert len(by_torch) == BATCH
    assert counts[0] >= BATCH
    assert counts[2:] == [3, 3]


@pytest.mark.usefixtures("own_generators")
@pytest.mark.parametrize("first", [0, 3, 16, 50])
def test_what_is_drawn_from_torch_by_the_sample_that_imports_it(monkeypatch, first):
    """Its generator could not be seeded before: the batch is made again, and only that one."""
    calls: list[int] = []

    def imports(epoch: int, ordinal: int) -> object:
        calls.append(ordinal)
        if ordinal < first:
            return None
        sys.modules["torch"] = torch
        return float(torch.rand(1))

    expected = seeded(imports)
    monkeypatch.delitem(sys.modules, "torch")
    calls.clear()
    maker = maker_of(imports)
    assert made(maker) == expected
    assert made(maker) == expected
    assert len(calls) == 2 * SAMPLES + BATCH


@pytest.mark.usefixtures("own_generators")
@pytest.mark.parametrize("bad", [0, 5, BATCH - 1])
@pytest.mark.parametrize("has_torch", [True, False])
def test_what_a_collate_function_draws_after_a_skipped_sample(monkeypatch, bad, has_torch):
    """It goes on where the sample that took its place has stopped, watched or seeded one by one."""

    def fails(epoch: int, ordinal: int) -> object:
        if ordinal % BATCH == bad:
            raise ValueError(str(ordinal))
        return ordinal

    def drawn(maker: BatchMaker) -> list[object]:
        batches = [maker.load(0, batch) for batch in range(SAMPLES // BATCH)]
        assert [len(batch.skipped) for batch in batches] == [1] * len(batches)
        return [(maker.put_together(maker.load(0, batch).samples), batches[batch].samples) for batch in range(4)]

    if not has_torch:
        monkeypatch.delitem(sys.modules, "torch")
    rules = MakerRules(17, lambda samples: (samples, random.random(), float(np.random.rand())), on_error="skip")
    watching, seeding = (BatchMaker(FakeRecipe(SAMPLES, BATCH, fails).open(), rules) for _ in range(2))
    assert seeding._draws is not None
    seeding._draws._drawn = True
    assert drawn(watching) == drawn(seeding)
    assert watching._draws is not None
    assert watching._draws.watches


@pytest.mark.usefixtures("own_generators")
def test_a_batch_is_made_again_once():
    """The first sample that draws late costs one batch; from then on each sample is seeded."""
    calls: list[int] = []

    def late(epoch: int, ordinal: int) -> object:
        calls.append(ordinal)
        return random.random() if ordinal >= 50 else None

    assert made(maker_of(late)) == seeded(late)
    calls.clear()
    made(maker_of(late))
    assert calls == [*range(64), *range(48, SAMPLES)]


@pytest.mark.usefixtures("own_generators")
@pytest.mark.parametrize("make", [never, always, rarely], ids=lambda make: make.__name__)
def test_what_a_collate_function_draws(make):
    """It goes on where the last sample of its batch has stopped."""
    collate = lambda samples: (random.random(), random.gauss(0, 1), float(np.random.randn()), float(torch.rand(1)))  # noqa: E731
    maker, expected = maker_of(make, collate), []
    found = [maker.put_together(maker.load(0, batch).samples) for batch in range(SAMPLES // BATCH)]
    for last in range(BATCH - 1, SAMPLES, BATCH):
        seed_globals(sample_seed(17, 0, last))
        make(0, last)
        expected.append(collate([]))
    assert found == expected


@pytest.mark.usefixtures("own_generators")
def test_an_error_after_a_draw_is_the_samples_own():
    """What it says was drawn by its own sample, and it comes in any case."""

    def fails(epoch: int, ordinal: int) -> object:
        if ordinal == 58:
            raise ValueError(str(random.random()))
        return ordinal

    maker = maker_of(fails)
    for batch in range(3):
        maker.load(0, batch)
    assert maker._draws.watches
    with pytest.raises(SampleFailedError) as caught:
        maker.load(0, 3)
    seed_globals(sample_seed(17, 0, 58))
    assert str(caught.value.__cause__) == str(random.random())
    assert not maker._draws.watches


@pytest.mark.usefixtures("own_generators")
def test_small_batches_are_not_watched():
    """To watch costs as much as to seed five samples."""
    draws = GlobalDraws()
    for _ in range(20):
        draws.begin([1, 2, 3])
        for mixed in (1, 2, 3):
            draws.sample(mixed)
            assert random.random() == random.Random(mixed).random()
        assert draws.finish()
    assert not draws.watches
