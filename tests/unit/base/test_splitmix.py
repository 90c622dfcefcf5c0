"""The hash splitmix64: published values, arrays as integers, no ties, no warnings."""

from __future__ import annotations

import numpy as np

from streamer.base.splitmix import fold, fold_each, mix


def test_mix_gives_the_published_first_outputs_of_splitmix64() -> None:
    """Seeded with 1234567, splitmix64 begins with these numbers (Rosetta Code)."""
    gamma, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1
    states = np.array([(1234567 + i * gamma) & mask for i in range(1, 6)], dtype=np.uint64)
    assert mix(states).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_folding_an_array_equals_folding_each_word() -> None:
    """Hashing an array of words gives the same values as hashing each word as an integer."""
    words = np.array([0, 1, 2, 77, (1 << 40) + 5], dtype=np.int64)
    state = fold(17, 3, 9)
    assert fold_each(state, words).tolist() == [fold(17, 3, 9, int(w)) for w in words]


def test_folding_takes_one_state_per_word() -> None:
    """Hashing an array of states with an array of words pairs them one by one."""
    states = fold_each(fold(17), np.arange(4))
    assert fold_each(states, np.arange(4)).tolist() == [fold(17, i, i) for i in range(4)]


def test_folding_leaves_its_words_alone() -> None:
    """Hashing arrays leaves the arrays of the caller as they were."""
    words = np.arange(3, dtype=np.uint64)
    states = np.arange(3, dtype=np.uint64)
    fold_each(states, words)
    assert words.tolist() == states.tolist() == [0, 1, 2]


def test_hashes_of_one_state_have_no_ties() -> None:
    """Hashes of 100,000 different words from one state are all different, so that a sort by hash is a total order."""
    assert len(np.unique(fold_each(fold(0, 1), np.arange(100_000)))) == 100_000


def test_the_largest_seed_overflows_silently() -> None:
    """Hashes of the largest seed wrap modulo 2**64 without a warning of numpy (warnings are errors here)."""
    assert 0 <= fold((1 << 64) - 1, (1 << 64) - 1) < 1 << 64
    assert fold_each((1 << 64) - 1, np.array([1 << 62])).dtype == np.uint64
