"""Randomness that depends on seed, epoch and sample only: never on the worker, the batch or the time.

Transforms that take `rng` get a generator. The global generators, and those that user code holds, are seeded before
each call of user code.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from streamer.batches.samples.generators import OwnGenerators
from streamer.order.hashing import fold, fold_each

# Separate the draws of transforms, of collate functions and of clips from those of the order.
TAG_TRANSFORM = 16
TAG_COLLATE = 17
TAG_CLIP = 18

# A transform with this attribute does not depend on the global generators: to seed them takes 8 us for each sample.
UNSEEDED = "streamer_unseeded"

Argument = TypeVar("Argument")
Made = TypeVar("Made")


def sample_seeds(seed: int, epoch: int, ordinals: npt.NDArray[np.int64]) -> list[int]:
    """The global generators' seeds for samples: 64 well mixed bits each."""
    found: list[int] = fold_each(fold(seed, epoch), ordinals).tolist()
    return found


def collate_seed(seed: int, epoch: int, first: int) -> int:
    """Returns the global generators' seed for the collate function of a batch; `first`: ordinal of its first sample."""
    return fold(seed, TAG_COLLATE, epoch, first)


def seed_globals(mixed: int) -> None:
    """Seeds `random`, `numpy.random` and, if imported, torch's CPU generator: 7 us, with torch 8 (2026-11-23)."""
    random.seed(mixed)
    np.random.seed(mixed & 0xFFFFFFFF)
    if torch := sys.modules.get("torch"):
        torch.random.default_generator.manual_seed(mixed)


class SeededCode:
    """Runs user code with its own generators seeded, and the global ones, if told so. Used by one thread."""

    def __init__(self, user_code: Sequence[object], *, seeds_globals: bool = True) -> None:
        self._own = OwnGenerators(user_code)
        self._seeds_globals = seeds_globals

    def run(self, mixed: int, function: Callable[[Argument], Made], argument: Argument) -> Made:
        """Runs the function once, after seeding with 64 bits."""
        if self._seeds_globals:
            seed_globals(mixed)
        self._own.seed(mixed)
        return function(argument)


class SampleDraws:
    """A generator per sample; its state is set instead of making a new one (0.4 against 16 us, 2026-11-20)."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._epoch = -1
        # Lists: numpy reads them item by item, and arrays take six times as long.
        self._key = [0, 0]

    @cached_property
    def _bits(self) -> np.random.Philox:
        return np.random.Philox(0)

    @cached_property
    def _blank(self) -> dict[str, object]:
        return {**self._bits.state, "state": {"counter": [0] * 4, "key": self._key}, "buffer": [0] * 4}

    @cached_property
    def _generator(self) -> np.random.Generator:
        return np.random.Generator(self._bits)

    def at(self, epoch: int, ordinal: int) -> np.random.Generator:
        """The generator of one sample in one epoch; valid until the next call."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._key[0] = fold(self._seed, TAG_TRANSFORM, epoch)
        self._key[1] = ordinal
        self._bits.state = self._blank  # type: ignore[assignment]  # lists instead of arrays
        return self._generator


@contextmanager
def kept_globals() -> Iterator[None]:
    """Restores the global generators afterwards: samples made in the trainer's process must not change their state."""
    python = random.getstate()
    numpy = np.random.get_state()
    torch = sys.modules.get("torch")
    state = torch.random.default_generator.get_state() if torch else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch and state is not None:
            torch.random.default_generator.set_state(state)
