"""Randomness by sample."""

from __future__ import annotations

import random

import numpy as np
import torch

from streamer.loader.seeding import kept_globals, sample_seed, sample_seeds, seed_globals


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
