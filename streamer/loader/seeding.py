"""Randomness that depends on seed, epoch and sample only: never on the worker, the batch or the time.

Transforms that take `rng` get their own generator from the data set; this seeds the global ones that others use.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_MASK = (1 << 64) - 1


def sample_seed(seed: int, epoch: int, ordinal: int) -> int:
    """64 well mixed bits.

    Source: splitmix64, Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    mixed = 0
    for part in (seed, epoch, ordinal):
        mixed = (mixed ^ (part & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
        mixed ^= mixed >> 31
    return mixed


def seed_globals(seed: int, epoch: int, ordinal: int) -> None:
    """Seeds `random`, `numpy.random` and, where it is imported, torch's CPU generator for one sample."""
    mixed = sample_seed(seed, epoch, ordinal)
    random.seed(mixed)
    np.random.seed(mixed & 0xFFFFFFFF)
    if torch := sys.modules.get("torch"):
        torch.random.default_generator.manual_seed(mixed)


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
