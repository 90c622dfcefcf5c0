"""Hashes 64-bit words by splitmix64: one at a time as plain integers, many at a time as uint64 arrays.

Everything that is drawn at random and must be repeated uses it: the order (`order/hashing.py`), what the cache keeps,
the fraction of a dataset, homes of chunks among peers, shards. A library's generator is not used: it may change between
versions, and what is drawn must not. The last step of the hash, its finalizer, maps 64-bit words one to one. Two lists
of words that differ only in their last word therefore never have the same hash, and sorting by such hashes has no ties.
Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB

GAMMA = np.uint64(_GAMMA)
_STEPS = ((np.uint64(30), np.uint64(_FIRST)), (np.uint64(27), np.uint64(_SECOND)))
_LAST = np.uint64(31)


def mix(words: Words) -> Words:
    """Applies the finalizer to each word of an array, in place, and returns the array."""
    shifted = np.empty_like(words)
    for shift, factor in _STEPS:
        np.right_shift(words, shift, out=shifted)
        words ^= shifted
        words *= factor
    np.right_shift(words, _LAST, out=shifted)
    words ^= shifted
    return words


def fold(seed: int, *words: int) -> int:
    """Hashes a seed and words to an integer of 64 bits; of larger or negative integers the lowest 64 bits count."""
    state = _mix_one(seed + _GAMMA)
    for word in words:
        state = _mix_one((state ^ (word & _MASK)) + _GAMMA)
    return state


def fold_each(state: int | Words, words: NDArray[np.integer[Any]]) -> Words:
    """Hashes many words after the same beginning: for each word w what `fold(seed, ..., w)` returns.

    Args:
        state: result of `fold(seed, ...)`, one for all words, or an array of results, one for each word.
        words: array of one or more dimensions, values >= 0.

    Returns:
        The hashes, a new array in the shape of `words`, which may be the state for further words. Different words
        after one state have different hashes.
    """
    states = np.array(state, dtype=np.uint64)
    mixed = np.bitwise_xor(np.atleast_1d(words).astype(np.uint64), states)
    mixed += GAMMA
    return mix(mixed)


def _mix_one(word: int) -> int:
    word &= _MASK
    word = ((word ^ (word >> 30)) * _FIRST) & _MASK
    word = ((word ^ (word >> 27)) * _SECOND) & _MASK
    return word ^ (word >> 31)
