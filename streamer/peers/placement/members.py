"""Describes the engines whose caches act as one, and their weights. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from streamer.base.splitmix import fold

# Weights are powers of 2 ** (1 / 4): caches of nearly the same size weigh the same, and homes do not move when a limit
# changes by some percent.
_STEPS_PER_OCTAVE = 4


class Member(msgspec.Struct, frozen=True, order=True):
    """Describes one engine.

    Attributes:
        id: root id of its cache folder: an engine that comes back with its disk is the same member.
        address: host:port of its peer server.
        limit_bytes: limit of its cache; its share of the homes is in proportion.
    """

    id: str
    address: str = ""
    limit_bytes: int = 1

    @property
    def weight(self) -> float:
        """Its share of the homes beside those of others."""
        return float(2.0 ** (round(_STEPS_PER_OCTAVE * math.log2(max(1, self.limit_bytes))) / _STEPS_PER_OCTAVE))

    @property
    def word(self) -> int:
        """The hash of its id, 64 bits."""
        return fold(0, *self.id.encode())


def members_digest(members: Iterable[Member]) -> str:
    """Returns eight hex digits that are equal if two engines know the same members with the same weights."""
    state = 0
    for member in sorted(members):
        state = fold(state, member.word, int(member.weight))
    return f"{state:016x}"[:8]
