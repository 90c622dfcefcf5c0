"""The only source of chance: splitmix64 folded over words, on uint64.

Never a library's generator: those change between versions, and golden tests pin this order for
good. The finaliser is a bijection of 64-bit words, so for equal leading words two different last
words never collide: sorting by such a hash has no ties.
Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]
Integers: TypeAlias = NDArray[np.int64]
Chunks: TypeAlias = NDArray[np.uint32]
Flags: TypeAlias = NDArray[np.bool_]

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB

GAMMA = np.uint64(_GAMMA)
_STEPS = ((np.uint64(30), np.uint64(_FIRST)), (np.uint64(27), np.uint64(_SECOND)))
_LAST = np.uint64(31)

# What a hash is for; the first word after the seed, so that no two uses share a stream.
TAG_CUT = 0
TAG_LANE = 1
TAG_GROUP = 3
TAG_PIECE = 4


def mix(words: Words) -> Words:
    """Applies splitmix64's finaliser to an array, in place, and returns it."""
    shifted = np.empty_like(words)
    for shift, factor in _STEPS:
        np.right_shift(words, shift, out=shifted)
        words ^= shifted
        words *= factor
    np.right_shift(words, _LAST, out=shifted)
    words ^= shifted
    return words


def fold(seed: int, *words: int) -> int:
    """Hashes a seed and words to 64 bits: `h(seed, tag, ...)` of the design, on plain integers."""
    state = _mix_one(seed + _GAMMA)
    for word in words:
        state = _mix_one((state ^ (word & _MASK)) + _GAMMA)
    return state


def fold_each(state: int | Words, words: Integers | Chunks | Words) -> Words:
    """Folds one more word into a state, for each word: `fold(seed, ..., w)` for every w.

    Args:
        state: what `fold` or `fold_each` returned; one for all, or one per word.
        words: the next words, any shape, >= 0.

    Returns:
        The new states, in the shape of `words`; injective in the word for one state.
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
