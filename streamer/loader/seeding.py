"""Randomness that depends on seed, epoch and sample only: never on the worker, the batch or the time.

Transforms that take `rng` get their own generator; others use the global ones, which are seeded for each sample that
draws from them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import numpy.typing as npt

from streamer.order.hashing import fold

# Separates the draws of transforms from those of the order.
TAG_TRANSFORM = 16

# Samples at the start that are looked at one by one: most transforms that draw do so for each of them.
_TRIALS = 16
# To watch Python's and numpy's generators over a batch takes 22 us, to seed them 4.8 us a sample (2026-11-20).
_LEAST_SAMPLES = 8

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def sample_seed(seed: int, epoch: int, ordinal: int) -> int:
    """64 well mixed bits.

    Source: splitmix64, Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    return _mix(_mix(_mix(0, seed), epoch), ordinal)


def _mix(mixed: int, part: int) -> int:
    mixed = (mixed ^ (part & _MASK)) + _STEP & _MASK
    mixed = (mixed ^ mixed >> 30) * _FACTORS[0] & _MASK
    mixed = (mixed ^ mixed >> 27) * _FACTORS[1] & _MASK
    return mixed ^ mixed >> 31


def sample_seeds(seed: int, epoch: int, ordinals: npt.NDArray[np.int64]) -> list[int]:
    """`sample_seed` of many samples: 0.1 us each instead of 1.2 (2026-11-20)."""
    first = _mix(_mix(0, seed), epoch)
    mixed = (np.uint64(first) ^ ordinals.astype(np.uint64)) + np.uint64(_STEP)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(_FACTORS[0])
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(_FACTORS[1])
    found: list[int] = (mixed ^ mixed >> np.uint64(31)).tolist()
    return found


def seed_globals(mixed: int) -> None:
    """Seeds `random`, `numpy.random` and, where it is imported, torch's CPU generator for one sample.

    Args:
        mixed: what `sample_seed` says of it.
    """
    _seed_plain(mixed)
    _seed_torch(mixed)


def _seed_plain(mixed: int) -> None:
    random.seed(mixed)
    np.random.seed(mixed & 0xFFFFFFFF)


def _seed_torch(mixed: int) -> None:
    if torch := sys.modules.get("torch"):
        torch.random.default_generator.manual_seed(mixed)


def _draw_plain() -> tuple[float, float]:
    return random.random(), np.random.random_sample()


class GlobalDraws:
    """Seeds the global generators for each sample, but Python's and numpy's not in vain. One thread has them.

    Most transforms draw from neither, and seeding both costs as much as the copy of the sample (4.8 us; a picture of
    150 KB 5 us, 2026-11-20). So: the first samples are seeded and looked at. Where none of them has drawn, a batch
    seeds the two once and sees at its end whether they still stand there. If not, it is made again with every sample
    seeded, as is all that follows: what a sample draws depends on seed, epoch and sample in any case. A function that
    puts a generator back as it found it is not seen; torch's generator, for which that is common (`fork_rng`), is
    seeded for each sample. A batch over which torch was imported is made again: what drew from it was not seeded.
    """

    def __init__(self) -> None:
        self._trials = _TRIALS
        self._drawn = False
        self._pays = False
        self._watching = False
        self._trying = False
        self._torch = False
        self._first = (0.0, 0.0)
        self._last = 0

    def __repr__(self) -> str:
        return f"GlobalDraws(drawn={self._drawn}, trials={self._trials})"

    @property
    def watches(self) -> bool:
        """Whether batches are watched as a whole from now on."""
        return not self._drawn and self._trials == 0

    @property
    def each(self) -> bool:
        """Whether `sample` has to be called for each sample of the batch in order."""
        return not self._watching or self._torch

    def begin(self, seeds: Sequence[int]) -> None:
        """A batch of samples with these seeds begins."""
        self._trying, self._torch, self._last = False, "torch" in sys.modules, seeds[-1]
        self._pays = len(seeds) >= _LEAST_SAMPLES
        self._watching = self._pays and self.watches
        if self._watching:
            self._set_watch(seeds[0])

    def sample(self, mixed: int) -> None:
        """A sample with this seed begins."""
        self._last = mixed
        if self._watching:
            _seed_torch(mixed)
            return
        if self._trying:
            self._judge()
        self._trying = self._pays and self._trials > 0
        if self._trying:
            self._set_watch(mixed)
            _seed_torch(mixed)
        else:
            seed_globals(mixed)

    def finish(self) -> bool:
        """The samples are made. False: one has drawn what was not its own, all of them have to be made again."""
        imported = not self._torch and "torch" in sys.modules
        if not self._watching:
            return not imported
        self._watching = False
        self._drawn = self._touched()
        # What a collate function draws comes after the last sample.
        _seed_plain(self._last)
        return not self._drawn and not imported

    def _judge(self) -> None:
        """Looks at what the sample before has left."""
        self._drawn = self._touched()
        self._trials = 0 if self._drawn else self._trials - 1

    def _set_watch(self, mixed: int) -> None:
        _seed_plain(mixed)
        self._first = _draw_plain()
        _seed_plain(mixed)

    def _touched(self) -> bool:
        """Whether the next numbers are others than the first; takes them."""
        return _draw_plain() != self._first


class SampleDraws:
    """A generator per sample, set anew instead of made anew (0.4 against 16 us, 2026-11-20).

    Args:
        seed: of the data set.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._bits = np.random.Philox(0)
        self._epoch = -1
        # Lists: numpy reads them number by number, arrays take six times the time.
        self._key = [0, 0]
        self._blank = {**self._bits.state, "state": {"counter": [0] * 4, "key": self._key}, "buffer": [0] * 4}

    @cached_property
    def _generator(self) -> np.random.Generator:
        return np.random.Generator(self._bits)

    def at(self, epoch: int, ordinal: int) -> np.random.Generator:
        """The generator of one sample in one epoch; valid until the next call."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._key[0] = fold(self._seed, TAG_TRANSFORM, epoch)
        self._key[1] = ordinal
        self._bits.state = self._blank  # type: ignore[assignment]  # lists where numpy says arrays
        return self._generator


@contextmanager
def kept_globals() -> Iterator[None]:
    """Puts the global generators back as they were: samples made in the trainer's process must not touch its own."""
    python, numpy = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    state = torch.random.default_generator.get_state() if torch else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch and state is not None:
            torch.random.default_generator.set_state(state)
