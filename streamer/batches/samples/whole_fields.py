"""Reads samples that are not decoded directly into the slot of their batch, without a copy.

Fields without a decoder are delivered as bytes. The whole sample, with the headers around the fields, is read into the
slot, and the description of the batch contains the offsets of the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from streamer.batches.batch.buffers import Bytes
from streamer.batches.batch.placement import Rows
from streamer.batches.samples.cached_bytes import CachedBytes
from streamer.batches.samples.maker import SampleLocation
from streamer.batches.samples.scatter import read_by_chunk
from streamer.decode.dispatch import Raw

# Share of a sample's bytes that are not decoded. Below it, headers and decoded fields would take more of the slot than
# its spare eighth.
_LEAST_SHARE = 0.9


class WholeReader:
    """Reads the samples of a batch if those of the last one were not decoded. Used by one thread."""

    def __init__(self, source: CachedBytes) -> None:
        self._source = source
        self._contents: dict[int, memoryview] = {}
        self._stay = self._learning = False

    def __repr__(self) -> str:
        return f"WholeReader({len(self._contents)} samples)"

    def begin(self, places: Mapping[int, SampleLocation], rows: Rows, at: Callable[[int], None]) -> None:
        """Reads all samples of a batch, or of one member of it, if they fit.

        Args:
            places: of the samples, by index in the batch.
            rows: Rows of the batch; the bytes are read behind them, if the slot is known.
            at: called with the index of the first sample of each chunk, before they are read.

        Raises:
            ChunkUnreadableError: a chunk is missing or wrong.
        """
        self._contents = {}
        self._learning = rows.known
        if not (rows.known and self._stay):
            return
        memory = rows.reserve(_total_bytes(places))
        if memory is not None:
            self._read(places, memory, at)

    def begin_apart(self, places: Mapping[int, SampleLocation], at: Callable[[int], None]) -> None:
        """Reads all samples of a batch to memory of their own, one chunk after the other; see `begin`."""
        self._contents = {}
        self._learning = False
        self._read(places, np.empty(_total_bytes(places), np.uint8), at)

    def _read(self, places: Mapping[int, SampleLocation], memory: Bytes, at: Callable[[int], None]) -> None:
        targets = {}
        start = 0
        view = memory.data
        for index, place in places.items():
            stop = start + place.stop - place.start
            targets[index] = place, [view[start:stop]]
            start = stop
        for index in read_by_chunk(self._source, targets, at):
            self._contents[index] = targets[index][1][0]

    def held(self, index: int) -> memoryview | None:
        """The bytes of the sample at an index, if it was read."""
        return self._contents.get(index)

    def learn(self, place: SampleLocation, sample: dict[str, object]) -> None:
        """Records whether a sample was decoded, once per batch."""
        if self._learning:
            self._learning = False
            staying = sum(len(value.content) for value in sample.values() if type(value) is Raw)
            self._stay = staying >= _LEAST_SHARE * max(1, place.stop - place.start)


def _total_bytes(places: Mapping[int, SampleLocation]) -> int:
    return sum(place.stop - place.start for place in places.values())
