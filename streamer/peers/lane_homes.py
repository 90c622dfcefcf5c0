"""Computes homes for one job that reads through all members: a chunk is kept where its lane is read. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.base.splitmix import Words
from streamer.peers.homes import ChunkPlace, Homes, PeerMember, cells, rank_members

Share = tuple[int, int]
"""Index of a member, and its share: samples of a lane that it reads, or bytes of it that it holds."""


class LaneReaders(msgspec.Struct, frozen=True, eq=False):
    """Says which members read the chunks of one dataset.

    Attributes:
        words: (M,) the first 8 bytes of the chunks' keys.
        lanes: (M,) lane of each chunk; -1 for a chunk in no lane.
        readers: for each lane the members that read it, at least one.
        former: for each lane other members that still hold chunks of it.
    """

    words: Words
    lanes: NDArray[np.int64]
    readers: Sequence[Sequence[Share]]
    former: Sequence[Sequence[Share]]


class _Chunks(msgspec.Struct, frozen=True, eq=False):
    """Holds the chunks of one dataset, by their words in ascending order.

    Attributes:
        words: (C,) words.
        first, second: (C,) indices of members; -1 in `second` for none.
        places: (C,) their `ChunkPlace` here.
    """

    words: Words
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    places: NDArray[np.int64]

    def find(self, words: Words) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Returns the index of each word, and whether it is there."""
        at = np.minimum(np.searchsorted(self.words, words), len(self.words) - 1)
        return at, self.words[at] == words


class LaneHomes(Homes):
    """Gives the homes of all chunks, seen from one member.

    The home of a chunk is the member that reads its lane; of several the one that comes first by rendezvous. The
    member that takes its place is one that held the lane before, if there is any, because that is where the home finds
    chunks without the store. Chunks in no lane have homes by their keys.

    Args:
        me: this engine.
        others: the other members, with `me` in the order of the indices in `datasets` when sorted.
        datasets: readers of the datasets, by name. For a chunk in several of them the first one decides its home,
            and all of them its place here.
    """

    def __init__(self, me: PeerMember, others: Iterable[PeerMember], datasets: Mapping[str, LaneReaders]) -> None:
        super().__init__(me, others)
        self._chunks = [self._place(readers) for readers in datasets.values()]

    @property
    def share(self) -> float:
        """The share of the chunks whose home is here."""
        here = [chunks.first == self._mine for chunks in self._chunks if len(chunks.first)]
        return float(np.concatenate(here).mean()) if here else super().share

    def order(self, key: bytes) -> list[PeerMember]:
        """Returns the home of a chunk, and the member that takes its place."""
        word = np.array([int.from_bytes(key[:8], "little")], np.uint64)
        for chunks in self._chunks:
            (at,), (there,) = chunks.find(word)
            if there:
                found = int(chunks.first[at]), int(chunks.second[at])
                return [self.members[index] for index in found if index >= 0]
        return super().order(key)

    def places(self, words: Words) -> NDArray[np.int64]:
        """Returns the `ChunkPlace` of chunks here, the highest over the datasets."""
        places = np.full(len(words), -1)
        for chunks in self._chunks:
            at, there = chunks.find(words)
            places[there] = np.maximum(places[there], chunks.places[at[there]])
        unknown = places < 0
        places[unknown] = super().places(words[unknown])
        return places

    def _place(self, readers: LaneReaders) -> _Chunks:
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
            first[mine], second[mine] = self._two(readers.readers[lane], readers.former[lane], at)
        places = np.where(second == self._mine, ChunkPlace.SECOND, ChunkPlace.OTHER)
        read = [any(member == self._mine for member, _ in lane) for lane in readers.readers]
        places[np.array(read)[lanes]] = ChunkPlace.READ
        places[first == self._mine] = ChunkPlace.HOME
        return _Chunks(words, first, second, places)

    def _two(
        self, readers: Sequence[Share], former: Sequence[Share], at: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the home of some chunks of a lane, and the member that takes its place."""
        reading = self._first_of(readers, at)
        if former:
            return reading[0], self._first_of(former, at)[0]
        return reading[0], reading[1] if len(reading) > 1 else np.full(len(at), -1)

    def _first_of(self, shares: Sequence[Share], at: NDArray[np.int64]) -> NDArray[np.int64]:
        indices, weights = zip(*shares, strict=True)
        found = rank_members([self.members[index].word for index in indices], [float(one) for one in weights], at)
        return np.array(indices)[found]
