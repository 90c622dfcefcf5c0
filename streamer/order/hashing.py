"""The only source of chance of the order: `splitmix` folded over a seed, a tag and words; its array types."""

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
]

Integers: TypeAlias = NDArray[np.int64]
Chunks: TypeAlias = NDArray[np.uint32]
Flags: TypeAlias = NDArray[np.bool_]

# Purposes of hashes; the first word after the seed, so that no two uses share a stream.
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
