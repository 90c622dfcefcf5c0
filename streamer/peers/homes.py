"""Decides which of several engines keeps a chunk: its home, which fetches it from the store for all. No clock, no I/O.

`peers/group.py` and `peers/by_job.py` make the homes of the present members, and `peers/source.py` asks by them.
`service/long_requests.py` reads the members of a job, and `streamer warm` (`cli/warming.py`) finds its chunks by them.
Homes are a function of the chunk's key and the members, so that engines that know the same members agree without a
message. An engine that knows other members asks the wrong peer, which answers 404, and then the store: that costs only
bytes.

Keys are divided into 2^18 cells by a hash, and each cell has a first and a second member, by rendezvous hashing
(Thaler, Ravishankar, 1998). Each pair of a cell and a member has a score of its own, and the member with the best score
comes first. So the cells of a member that leaves go to those that were second, and one that joins takes only its share.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.base.splitmix import Words, fold, fold_each

# Version of the rule by which homes are computed; engines with different numbers cannot be peers.
PLACEMENT: Final = 1
# Weights are powers of 2 ** (1 / 4), so that caches of nearly the same size weigh the same, and homes do not move when
# a limit changes by some percent.
_STEPS_PER_OCTAVE = 4


class PeerMember(msgspec.Struct, frozen=True, order=True):
    """Describes an engine that shares its cache.

    Attributes:
        id: id of its cache folder. An engine that comes back with its disk is the same member.
        address: host:port at which it answers peers, or "" if it is not asked.
        limit_bytes: limit of its cache, to which its share of the homes is proportional.
    """

    id: str
    address: str = ""
    limit_bytes: int = 1

    @property
    def weight(self) -> float:
        """Its weight: its share of the homes is this, divided by the sum of all weights."""
        return float(2.0 ** (round(_STEPS_PER_OCTAVE * math.log2(max(1, self.limit_bytes))) / _STEPS_PER_OCTAVE))

    @property
    def word(self) -> int:
        """Hash of its id, 64 bits, with which its scores are computed."""
        return fold(0, *self.id.encode())


def members_digest(members: Iterable[PeerMember]) -> str:
    """Returns eight hex digits that are equal if two engines know the same members with the same weights."""
    state = 0
    for member in sorted(members):
        state = fold(state, member.word, int(member.weight))
    return f"{state:016x}"[:8]


# ---------------------------------------------------------------- rendezvous hashing

CELL_BITS = 18
CELLS = 1 << CELL_BITS
# A cell has a first member, and a second one that takes its place when it is gone.
DEPTH = 2
_TAG_KEY = fold(0, int.from_bytes(b"homes"))
_TAG_CELL = fold(0, int.from_bytes(b"cells"))


def cell(key: bytes) -> int:
    """Returns the cell of the chunk with this key (16 bytes)."""
    return fold(0, int.from_bytes(b"homes"), int.from_bytes(key[:8], "little")) >> (64 - CELL_BITS)


def cells(words: Words) -> NDArray[np.int64]:
    """Returns the cells of many chunks, by the first 8 bytes of their keys as little-endian words."""
    return (fold_each(_TAG_KEY, words) >> np.uint64(64 - CELL_BITS)).astype(np.int64)


def first_members(members: Sequence[PeerMember]) -> NDArray[np.uint16]:
    """Returns the first and second member of every cell.

    It takes 2.6 ms a member, 0.7 s for 256. So it is to be run in a thread.

    Args:
        members: the engines, at least one, in an order that is the same everywhere.

    Returns:
        Indices of `members`, shape (2, CELLS), or (1, CELLS) for a single member.
    """
    return rank_members([member.word for member in members], [member.weight for member in members], np.arange(CELLS))


def rank_members(members: Sequence[int], weights: Sequence[float], cells: NDArray[np.int64]) -> NDArray[np.uint16]:
    """Returns the first and second member of some cells.

    Args:
        members: words of the members (`PeerMember.word`), at least one.
        weights: weights of the members. If all are equal, they have no effect.
        cells: (N,) cells, in which a cell may occur repeatedly.

    Returns:
        Indices of `members`, shape (2, N), or (1, N) for a single member.
    """
    equal = len(set(weights)) == 1
    states = fold_each(_TAG_CELL, cells)
    shape = min(DEPTH, len(members)), len(cells)
    best = np.full(shape, -np.inf) if not equal else np.zeros(shape, np.uint64)
    order = np.zeros(shape, np.uint16)
    for index, member in enumerate(members):
        hashes = fold_each(states, np.full(len(cells), member, np.uint64))
        # A member has the largest of these scores in a share of the cells that is proportional to its weight.
        scores = hashes if equal else np.log((hashes.astype(np.float64) + 0.5) / 2.0**64) / weights[index]
        # The member replaces the last one where its score is better, and then moves up row by row: row k has the k-th
        # best score.
        at = np.flatnonzero(scores >= best[-1])
        best[-1, at] = scores[at]
        order[-1, at] = index
        for row in range(len(best) - 1, 0, -1):
            swap = at[best[row, at] > best[row - 1, at]]
            for column in (best, order):
                column[row - 1, swap], column[row, swap] = column[row, swap], column[row - 1, swap]
    return order


# ---------------------------------------------------------------- homes


class ChunkPlace:
    """Lists the classes of a chunk for the cache of one member. Chunks of a lower class are evicted first.

    HOME: this member is the home. So the caches hold different chunks, and together more of the dataset.
    READ: this member reads the chunk in every epoch, and another one is its home.
    SECOND: the chunk is looked for here when its home is gone.
    OTHER: the chunk is kept only if there is free space.
    """

    OTHER: Final = 0
    SECOND: Final = 1
    READ: Final = 2
    HOME: Final = 3


class Homes:
    """Gives the homes of all chunks for one set of members, as one of them sees it.

    Making one takes time in proportion to the members (see `first_members`).

    Args:
        me: this engine.
        others: the other members. `me` may be among them.

    Attributes:
        me: this engine.
        members: all members, sorted, with this engine.
        digest: text that is equal if engines know the same members with the same weights.
    """

    def __init__(self, me: PeerMember, others: Iterable[PeerMember]) -> None:
        self.me = me
        self.members = sorted({member.id: member for member in (*others, me)}.values())
        self.digest = members_digest(self.members)
        self._mine = self.members.index(me)
        self._first = first_members(self.members)

    def __repr__(self) -> str:
        return f"Homes({len(self.members)} members, {self.digest})"

    @property
    def share(self) -> float:
        """Share of the chunks whose home is this engine, 0 to 1."""
        return float((self._first[0] == self._mine).mean())

    def order(self, key: bytes) -> list[PeerMember]:
        """Returns the home of the chunk with this key, then the member that takes its place, if there are several."""
        return [self.members[index] for index in self._first[:, cell(key)].tolist()]

    def places(self, words: Words) -> NDArray[np.int64]:
        """Returns the `ChunkPlace` of chunks for this engine, (N,).

        Args:
            words: (N,) first 8 bytes of the chunks' keys, as little-endian words.
        """
        first = self._first[:, cells(words)]
        place = np.where(first[0] == self._mine, ChunkPlace.HOME, ChunkPlace.OTHER)
        if len(first) > 1:
            place[first[1] == self._mine] = ChunkPlace.SECOND
        return place


Share = tuple[int, int]
"""Index of a member, and what it has of a lane: how many samples it reads, or how many bytes it holds."""


class LaneReaders(msgspec.Struct, frozen=True, eq=False):
    """Says which members of a job read the chunks of one dataset. Members are indices of `Homes.members`.

    Attributes:
        words: (M,) first 8 bytes of the chunks' keys, as little-endian words.
        lanes: (M,) lane of each chunk, or -1 for a chunk in no lane.
        readers: members that read each lane, at least one.
        former: other members that still hold chunks of each lane.
    """

    words: Words
    lanes: NDArray[np.int64]
    readers: Sequence[Sequence[Share]]
    former: Sequence[Sequence[Share]]


class _Chunks(msgspec.Struct, frozen=True, eq=False):
    """Holds the homes of one dataset's chunks that are in a lane.

    Attributes:
        words: (C,) first 8 bytes of their keys, ascending.
        first, second: (C,) indices of the home and of the member that takes its place, which is -1 if there is none.
        places: (C,) their `ChunkPlace` for this engine.
    """

    words: Words
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    places: NDArray[np.int64]

    def find(self, words: Words) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Returns the place of each word in `words`, and whether it is there; without that the place means nothing."""
        if not len(self.words):
            return np.zeros(len(words), np.int64), np.zeros(len(words), np.bool_)
        at = np.minimum(np.searchsorted(self.words, words), len(self.words) - 1)
        return at, self.words[at] == words


class LaneHomes(Homes):
    """Gives the homes of all chunks in a job whose ranks say which member reads what.

    The home of a chunk is the member that reads its lane; if several do, rendezvous hashing chooses one. The second
    member is one that held the lane before, if there is any, because there the home finds chunks without the store.
    Chunks in no lane have homes by their keys, as in `Homes`.

    Args:
        me: this engine.
        others: the other members. `me` may be among them.
        datasets: readers of the datasets, by name. If a chunk is in several of them, the first one decides its home,
            and `places` gives the highest class over all.
    """

    def __init__(self, me: PeerMember, others: Iterable[PeerMember], datasets: Mapping[str, LaneReaders]) -> None:
        super().__init__(me, others)
        self._chunks = [self._place(readers) for readers in datasets.values()]

    @property
    def share(self) -> float:
        """Share of the datasets' chunks whose home is this engine, 0 to 1."""
        here = [chunks.first == self._mine for chunks in self._chunks if len(chunks.first)]
        return float(np.concatenate(here).mean()) if here else super().share

    def order(self, key: bytes) -> list[PeerMember]:
        """Returns the home of the chunk with this key, then the member that takes its place, if there is one."""
        word = np.array([int.from_bytes(key[:8], "little")], np.uint64)
        for chunks in self._chunks:
            (at,), (there,) = chunks.find(word)
            if there:
                found = int(chunks.first[at]), int(chunks.second[at])
                return [self.members[index] for index in found if index >= 0]
        return super().order(key)

    def places(self, words: Words) -> NDArray[np.int64]:
        """Returns the `ChunkPlace` of chunks for this engine, as `Homes.places`: the highest over the datasets."""
        places = np.full(len(words), -1)
        for chunks in self._chunks:
            at, there = chunks.find(words)
            places[there] = np.maximum(places[there], chunks.places[at[there]])
        unknown = places < 0
        places[unknown] = super().places(words[unknown])
        return places

    def _place(self, readers: LaneReaders) -> _Chunks:
        """Computes the homes and places of one dataset's chunks."""
        ordered = np.argsort(readers.words, kind="stable")
        ordered = ordered[readers.lanes[ordered] >= 0]
        words = readers.words[ordered]
        lanes = readers.lanes[ordered]
        first, second = np.full((2, len(words)), -1)
        by_lane = np.argsort(lanes, kind="stable")
        bounds = np.searchsorted(lanes[by_lane], np.arange(len(readers.readers) + 1))
        for lane, run in enumerate(itertools.pairwise(bounds.tolist())):
            mine = by_lane[slice(*run)]
            at = cells(words[mine])
            reading = self._first_of(readers.readers[lane], at)
            first[mine] = reading[0]
            if readers.former[lane]:
                second[mine] = self._first_of(readers.former[lane], at)[0]
            elif len(reading) > 1:
                second[mine] = reading[1]
        places = np.where(second == self._mine, ChunkPlace.SECOND, ChunkPlace.OTHER)
        read = [any(member == self._mine for member, _ in lane) for lane in readers.readers]
        places[np.array(read, np.bool_)[lanes]] = ChunkPlace.READ
        places[first == self._mine] = ChunkPlace.HOME
        return _Chunks(words, first, second, places)

    def _first_of(self, shares: Sequence[Share], at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the first and second of these members for cells, as `rank_members`, but as indices of `members`."""
        indices, weights = zip(*shares, strict=True)
        found = rank_members([self.members[index].word for index in indices], [float(one) for one in weights], at)
        return np.array(indices)[found]
