"""Cuts a dataset into lanes: says which chunks, and parts of chunks, belong to each lane.

Used by `order/epoch.py`; cohorts of a growing dataset sort chunks by the same hashes. M is the number of chunks, L that
of lanes, n that of samples. A piece is the part of a chunk that one lane has, mostly all of it.
"""

from __future__ import annotations

import msgspec
import numpy as np

from streamer.errors import ConfigError
from streamer.order.hashing import TAG_COMMON, TAG_CUT, TAG_LANE, Chunks, Integers, Words, fold, fold_each
from streamer.order.spec import OrderSpec


class LaneCut(msgspec.Struct, frozen=True, eq=False):
    """The non-empty chunks in hashed order, one after the other, cut into L lanes of equal length.

    Lane l has the chunks `order[begin[l]:end[l]]`, the first one from its sample `head[l]` on, the last one up to its
    sample `tail[l]`. Only these two can be parts of chunks, so a cut takes 4 bytes per chunk and a few words per lane.

    Attributes:
        order: numbers of the chunks with samples, in hashed order.
        start: (L+1,) samples before each lane, and n.
        begin, end: (L,) half-open run of each lane in `order`; equal for an empty lane.
        head: (L,) first sample that the lane has of its first chunk, counted in the chunk.
        tail: (L,) sample behind the last one that the lane has of its last chunk, counted in the chunk.
        piece: (L+1,) number of pieces before each lane.
    """

    order: Chunks
    start: Integers
    begin: Integers
    end: Integers
    head: Integers
    tail: Integers
    piece: Integers

    def pieces(self, lanes: Integers, chunk_samples: Integers) -> tuple[Integers, Chunks, Integers]:
        """Returns the pieces of some lanes, lane by lane in hashed order.

        Args:
            lanes: the lanes.
            chunk_samples: (M,) samples of each chunk.

        Returns:
            For each piece: the place of its lane in `lanes`, its chunk, and its number of samples.
        """
        counts = self.end[lanes] - self.begin[lanes]
        starts = np.cumsum(counts) - counts
        number = np.repeat(np.arange(len(lanes)), counts)
        chunks = self.order[np.arange(len(number)) + (self.begin[lanes] - starts)[number]]
        sizes = chunk_samples[chunks].astype(np.int64)
        filled = counts > 0
        sizes[(starts + counts - 1)[filled]] = self.tail[lanes[filled]]
        sizes[starts[filled]] -= self.head[lanes[filled]]
        return number, chunks, sizes

    def chunk_lanes(self, chunks: int) -> Integers:
        """Returns the lane of the first piece of each of `chunks` chunks, (M,); -1 for a chunk without samples."""
        lanes = np.full(chunks, -1)
        # The loop runs backwards, so that the first lane of a chunk with several remains.
        for lane in range(len(self.begin) - 1, -1, -1):
            lanes[self.order[self.begin[lane] : self.end[lane]]] = lane
        return lanes

    def shift_lanes(self, chunk_samples: Integers, shift: int) -> LaneCut:
        """Returns the cut of the same chunks for position 0 in lane `shift`: ends of lanes move by less than L."""
        return _cut(self.order, len(self.begin), chunk_samples, shift)


def cut_lanes(
    spec: OrderSpec, chunk_samples: Integers, epoch: int, shift: int = 0, *, chunk_words: Words | None = None
) -> LaneCut:
    """Cuts the dataset into lanes, the same for every epoch unless the cut is redrawn.

    Args:
        spec: what fixes the order.
        chunk_samples: (M,) samples of each chunk.
        epoch: number of the epoch, used only with cut="redrawn".
        shift: lane of position 0.
        chunk_words: (M,) the first 8 bytes of the chunks' keys, little-endian, used only with cut="by_key".

    Raises:
        ConfigError: cut="by_key" without the words.
    """
    chunks = np.flatnonzero(chunk_samples).astype(np.uint32)
    if spec.cut == "by_key":
        if chunk_words is None:
            raise ConfigError(
                'cut="by_key" needs the keys of the chunks; a mix and a growing dataset take no cut', field="cut"
            )
        # Two keys that begin alike, one pair in 2**64, stay in the order of their numbers.
        order = chunks[np.argsort(fold_each(fold(0, TAG_COMMON), chunk_words[chunks]), kind="stable")]
    else:
        order = sort_by_hash(fold(spec.seed, TAG_CUT, *((epoch,) if spec.cut == "redrawn" else ())), chunks)
    return _cut(order, spec.lanes, chunk_samples, shift)


def _cut(order: Chunks, lanes: int, chunk_samples: Integers, shift: int) -> LaneCut:
    """Cuts chunks, in the given order, into lanes whose lengths differ by one sample at most."""
    stops = np.cumsum(chunk_samples[order], dtype=np.int64)
    start = lane_starts(int(stops[-1]), lanes, shift)
    first, last = start[:-1], start[1:] - 1
    begin = np.searchsorted(stops, first, side="right").astype(np.int64)
    end = np.where(last < first, begin, np.searchsorted(stops, last, side="right") + 1)
    before = np.concatenate([np.zeros(1, np.int64), stops[:-1]])
    head = first - before[np.minimum(begin, len(order) - 1)]
    tail = last + 1 - before[np.maximum(end - 1, 0)]
    piece = np.concatenate([np.zeros(1, np.int64), np.cumsum(end - begin)])
    return LaneCut(order=order, start=start, begin=begin, end=end, head=head, tail=tail, piece=piece)


def lane_starts(samples: int, lanes: int, shift: int = 0) -> Integers:
    """Returns the samples before each lane, and n: (L+1,). Lane l has n//L + ((l - shift) % L < n%L) samples.

    Args:
        samples: n.
        lanes: L.
        shift: lane of position 0.
    """
    lane = np.arange(lanes, dtype=np.int64)
    sizes = samples // lanes + ((lane - shift) % lanes < samples % lanes)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def epoch_state(spec: OrderSpec, epoch: int) -> int:
    """Returns the state of the hash by which the pieces of a lane are ordered in an epoch.

    The lane is not part of it: both pieces of a chunk in two lanes come up at nearly the same time, so that one fetch
    serves both.
    """
    return fold(spec.seed, TAG_LANE, epoch)


def sort_by_hash(state: int, chunks: Chunks) -> Chunks:
    """Sorts chunk numbers by their hash; there are no ties, so any sort gives the same order."""
    return chunks[np.argsort(fold_each(state, chunks))]
