"""splitmix64 on 64-bit words: one at a time as plain integers, many at a time as uint64 arrays.

Never a library's generator: those change between versions, and what is drawn here (the order, what the cache keeps,
fractions of a dataset, the seeds of transforms) must not. The finalizer is a bijection of 64-bit words, so for equal
leading words two different last words never collide: sorting by such a hash has no ties.
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
    """Applies the finalizer to an array, in place, and returns it."""
    shifted = np.empty_like(words)
    for shift, factor in _STEPS:
        np.right_shift(words, shift, out=shifted)
        words ^= shifted
        words *= factor
    np.right_shift(words, _LAST, out=shifted)
    words ^= shifted
    return words


def fold(seed: int, *words: int) -> int:
    """Hashes a seed and words to 64 bits."""
    state = _mix_one(seed + _GAMMA)
    for word in words:
        state = _mix_one((state ^ (word & _MASK)) + _GAMMA)
    return state


def fold_each(state: int | Words, words: NDArray[np.integer[Any]]) -> Words:
    """Folds one more word into a state, for each word: `fold(seed, ..., w)` for every w.

    Args:
        state: what `fold` or `fold_each` returned, one for all or one per word.
        words: the next words, any shape, >= 0.

    Returns:
        The new states, in the shape of `words`. They differ for different words of one state.
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
