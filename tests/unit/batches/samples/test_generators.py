"""Tests of generators that user code holds: found wherever it may hold them, and seeded by the sample."""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Callable

import cloudpickle
import numpy as np
import pytest
import torch

from streamer import StreamingDataLoader
from streamer.batches.samples.seeding import OwnGenerators, SeededCode, warn_of_generators
from tests.fake_dataset import FakeDataset


class Holder:
    """Stands for user code that keeps something in an attribute, and draws from it."""

    def __init__(self, kept: object) -> None:
        self.kept = {"deep": [kept]}

    def __call__(self, sample: object) -> object:
        return draw(self.kept["deep"][0])


class Listed(list):
    """Stands for a list with attributes, as some compositions are."""

    def __init__(self, kept: object) -> None:
        super().__init__([len])
        self.kept = kept

    def __call__(self, sample: object) -> object:
        return draw(self.kept)


class Computed(dict):
    """Stands for code whose attributes raise, as those of some configurations do."""

    def __getattr__(self, name: str) -> object:
        return self[name]

    def __call__(self, sample: object) -> object:
        return draw(self.kept)


def draw(kept: object) -> float:
    if isinstance(kept, torch.Generator):
        return float(torch.rand(1, generator=kept))
    return float(kept.random()) if hasattr(kept, "random") else float(kept.random_sample())  # type: ignore[attr-defined]


_module_wide = np.random.default_rng(1)


def by_global(sample: object) -> object:
    return sum(draw(_module_wide) for _ in range(2))


def by_closure() -> Callable[[object], object]:
    rng = random.Random(3)
    return lambda sample: draw(rng)


def by_default(sample: object, rng: np.random.Generator = np.random.default_rng(1)) -> object:  # noqa: B008
    return draw(rng)


def with_argument(rng: np.random.Generator, sample: object) -> object:
    return draw(rng)


KINDS = {
    "Generator": lambda: np.random.default_rng(1),
    "PCG64DXSM": lambda: np.random.Generator(np.random.PCG64DXSM(1)),
    "Philox": lambda: np.random.Generator(np.random.Philox(1)),
    "SFC64": lambda: np.random.Generator(np.random.SFC64(1)),
    "RandomState": lambda: np.random.RandomState(1),
    "Random": lambda: random.Random(1),
    "torch": lambda: torch.Generator().manual_seed(1),
}
PLACES = {
    "list": lambda: Listed(np.random.default_rng(1)),
    "computed": lambda: Computed(kept=np.random.default_rng(1)),
    "global": lambda: by_global,
    "closure": by_closure,
    "default": lambda: by_default,
    "partial": lambda: functools.partial(with_argument, np.random.default_rng(1)),
    "method": lambda: Holder(np.random.default_rng(1)).__call__,
    "bound": lambda: functools.partial(lambda draw, sample: draw(), np.random.default_rng(1).random),
}


def drawn(code: Callable[[object], object], seeds: list[int]) -> list[object]:
    seeded = SeededCode((code,), seeds_globals=False)
    return [seeded.run(seed, code, None) for seed in seeds]


@pytest.mark.parametrize(
    "make",
    [*(functools.partial(lambda m: Holder(m()), m) for m in KINDS.values()), *PLACES.values()],
    ids=[*KINDS, *PLACES],
)
def test_draws_depend_on_the_seed_only(make):
    """A sample draws the same from any generator in any place, whatever was drawn before.

    Another sample draws something else.
    """
    there, back = drawn(make(), [1, 2, 3]), drawn(make(), [3, 3, 2, 1])
    assert there == back[3:0:-1]
    assert back[0] == back[1]
    assert len(set(there)) == 3


def test_each_generator_draws_differently():
    """Two generators of one transform draw differently.

    Two flips of one composition would always agree otherwise.
    """

    def both(sample, one=np.random.default_rng(1), two=np.random.default_rng(1)):  # noqa: B008
        return one.random() == two.random()

    assert drawn(both, [1, 2, 3]) == [False] * 3


def test_a_method_seeds_what_cannot_be_seen():
    """`set_random_seed` of user code gets the seed of the sample.

    It is for generators that cannot be found, as those of a C extension.
    """

    class Opaque:
        """Stands for code whose generator cannot be found, as of a C extension; it keeps the seeds that it gets."""

        seen: list[int] = []

        def set_random_seed(self, seed: int) -> None:
            self.seen.append(seed)

        def __call__(self, sample):
            return self.seen[-1]

    assert drawn(Opaque(), [1, 2, 1])[0] == Opaque.seen[-1]
    assert len(set(Opaque.seen)) == 2
    assert all(0 <= seed < 2**32 for seed in Opaque.seen)


def test_the_steps_of_a_composition_draw_differently():
    """The steps of a composition with `set_random_state` draw differently, as those of albumentations.

    Its `set_random_seed` gives all steps the same numbers, so it is not called.
    """

    class Flip:
        """Stands for a step of albumentations, which takes generators."""

        def set_random_state(self, random_generator, py_random):
            self.numpy, self.python = random_generator, py_random

        def set_random_seed(self, seed):
            raise AssertionError(seed)

    class Both(Flip):
        """Stands for a composition of albumentations, which passes its generators to its steps."""

        steps = [Flip(), Flip()]

        def set_random_state(self, random_generator, py_random):
            for step in self.steps:
                step.set_random_state(random_generator, py_random)

        def __call__(self, sample):
            return [(step.numpy.random(), step.python.random()) for step in self.steps]

    found = drawn(Both(), [1, 2, 1])
    assert found[0] == found[2] != found[1]
    assert found[0][0] != found[0][1]


def test_code_runs_once_for_each_sample():
    """Code runs once for each sample, also where its first call makes a generator."""
    calls = []

    class Lazy:
        """Stands for code that makes its generator at the first call."""

        rng = None

        def __call__(self, sample):
            calls.append(sample)
            self.rng = self.rng or np.random.default_rng()
            return self.rng.random()

    drawn(Lazy(), [7, 8])
    assert len(calls) == 2


def test_copies_in_other_processes_are_seeded_alike():
    """Generators of a copy of the code are seeded alike.

    The order in which they are found does not depend on the process.
    """
    rngs = {"a": np.random.default_rng(1), "b": random.Random(2)}

    def code(sample):
        return [draw(rng) for rng in rngs.values()]

    expected = drawn(code, [5])
    assert drawn(cloudpickle.loads(cloudpickle.dumps(code)), [5]) == expected


def test_the_global_generators_are_not_taken_for_own_ones():
    """The global generators are not taken for those of user code that calls them."""

    def code(sample):
        return random.random(), np.random.rand(), functools.partial(random.random)

    assert OwnGenerators((code, random.random, np.random.rand)).found == []


def test_large_tables_are_not_searched():
    """A list of a million texts is not searched for generators."""
    holder = Holder([str(number) for number in range(1_000_000)] + [np.random.default_rng()])
    assert OwnGenerators((holder,)).found == []


def test_what_cannot_be_seeded_is_said_once(caplog):
    """Generators that cannot be seeded are one warning when the loader is made.

    They are those of the operating system, and methods with other arguments.
    """

    class Odd:
        """Stands for code whose `set_random_state` takes other arguments than that of albumentations."""

        def set_random_state(self, generator, py_random): ...

    with StreamingDataLoader(FakeDataset(8, lambda e, o: o), 4, collate_fn=Holder([random.SystemRandom(), Odd()])):
        pass
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "random.SystemRandom" in record.message
    assert "Odd.set_random_state" in record.message


def test_threads_share_them(caplog):
    """Generators that worker threads share are warned of, as they cannot be seeded, and others are not."""
    warn_of_generators((Holder(np.random.default_rng()),), shared=True)
    assert "1 generators of its own, which worker threads share" in caplog.text
    warn_of_generators((Holder(np.random.default_rng()),), shared=False)
    assert len(caplog.records) == 1
