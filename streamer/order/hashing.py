"""Provides the only source of chance of an order: hashes of a seed, a tag and numbers, and permutations by them.

Used by all of `order/`, which has its types of arrays from here, too, and by what draws in `batches/`. The hash is
splitmix64 (`base/splitmix.py`).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamer.base.splitmix import GAMMA, Words, fold, fold_each, mix

__all__ = [
    "GAMMA",
    "TAG_AUDIT",
    "TAG_COMMON",
    "TAG_COMPANION",
    "TAG_CUT",
    "TAG_GROUP",
    "TAG_LANE",
    "TAG_LEVEL",
    "TAG_PACKED",
    "TAG_PIECE",
    "TAG_SET",
    "TAG_TURN",
    "Chunks",
    "Flags",
    "Integers",
    "Words",
    "fold",
    "fold_each",
    "mix",
    "permute",
]

Integers: TypeAlias = NDArray[np.int64]
Chunks: TypeAlias = NDArray[np.uint32]
Flags: TypeAlias = NDArray[np.bool_]

# The tag of a purpose is hashed next after the seed, so that no two purposes share random numbers.
TAG_CUT = 0
TAG_LANE = 1
TAG_GROUP = 3
TAG_PIECE = 4
TAG_COMMON = 5
TAG_SET = 60
TAG_COMPANION = 61
TAG_LEVEL = 62
TAG_TURN = 63
TAG_PACKED = 64
TAG_AUDIT = 65

# Rounds of the Feistel network.
_ROUNDS = 4
_ONE = np.uint64(1)


def permute(values: Integers, sizes: Integers, keys: Words) -> Integers:
    """Maps each value to its place under the permutation of [0, size) with its key, without a table.

    Four Feistel rounds, cycle-walked: a word of ceil(log2 size) bits is cut in two halves that hash each other in turn,
    which permutes [0, 2**bits). A value that lands outside [0, size) is permuted again until it is inside: less than
    two passes on average, because 2**bits < 2 size. Sources: Luby, Rackoff 1988 (four rounds), and Black, Rogaway,
    "Ciphers with arbitrary finite domains", CT-RSA 2002 (cycle walking).

    Args:
        values: (N,) with 0 <= value < size.
        sizes: (N,) domain of each value, >= 1.
        keys: (N,) one key per permutation. Equal size and key means the same permutation.

    Returns:
        (N,) int64, each in [0, size).
    """
    found = values.astype(np.uint64)
    limits = sizes.astype(np.uint64)
    # frexp is exact below 2**53, and no chunk or group has that many samples.
    bits: Words = np.frexp((limits - _ONE).astype(np.float64))[1].astype(np.uint64)
    outside = np.flatnonzero(limits > _ONE)
    while outside.size:
        walked = _rounds(found[outside], bits[outside], keys[outside])
        found[outside] = walked
        outside = outside[walked >= limits[outside]]
    return found.astype(np.int64)


def _rounds(words: Words, bits: Words, keys: Words) -> Words:
    """Permutes each word among the numbers of `bits` bits by its key: a Feistel network of `_ROUNDS` rounds."""
    low_bits = bits >> _ONE
    low_mask = (_ONE << low_bits) - _ONE
    high_mask = (_ONE << (bits - low_bits)) - _ONE
    low = words & low_mask
    high = words >> low_bits
    state = keys.copy()
    for turn in range(_ROUNDS):
        state += GAMMA
        if turn % 2:
            low ^= mix(state ^ high) & low_mask
        else:
            high ^= mix(state ^ low) & high_mask
    joined: Words = (high << low_bits) | low
    return joined
