"""Computes the home of each chunk: the member that keeps it, and fetches it from the store for all. Pure.

Homes are a function of the chunk's key and the members, so that engines that know the same members agree without a
message. An engine that knows others asks the wrong peer, which answers 404, and then the store: that costs only bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streamer.base.splitmix import Words
from streamer.peers.placement.members import Member, members_digest
from streamer.peers.placement.rendezvous import cell, cells, first_members


class Place:
    """Classifies a chunk for one member, as a class of its rank in the cache: a higher class is kept first.

    HOME: the chunk is kept here, so that the caches hold different chunks and more of the dataset.
    READ: the chunk is read here in every epoch, and kept by another member.
    SECOND: the chunk is looked for here when its home is gone.
    OTHER: the chunk fills free space.
    """

    OTHER: Final = 0
    SECOND: Final = 1
    READ: Final = 2
    HOME: Final = 3


class Homes:
    """Gives the homes of all chunks for one set of members, seen from one of them; O(members), see `first_members`."""

    def __init__(self, me: Member, others: Iterable[Member]) -> None:
        self.me = me
        self.members = sorted({member.id: member for member in (*others, me)}.values())
        self.digest = members_digest(self.members)
        self._mine = self.members.index(me)
        self._first = first_members(self.members)

    def __repr__(self) -> str:
        return f"Homes({len(self.members)} members, {self.digest})"

    @property
    def share(self) -> float:
        """The share of the chunks whose home is here."""
        return float((self._first[0] == self._mine).mean())

    def order(self, key: bytes) -> list[Member]:
        """Returns the home of a chunk, and the member that takes its place."""
        return [self.members[index] for index in self._first[:, cell(key)].tolist()]

    def places(self, words: Words) -> NDArray[np.int64]:
        """Returns the `Place` of chunks here, by the first 8 bytes of their keys as little-endian words."""
        first = self._first[:, cells(words)]
        place = np.where(first[0] == self._mine, Place.HOME, Place.OTHER)
        if len(first) > 1:
            place[first[1] == self._mine] = Place.SECOND
        return place
