"""Reads the samples of a batch from one dataset, their arrays directly into the rows of the batch where possible.

`batches/samples/recipe.py` has a reader for each dataset of a stream.

Fields without a decoder are delivered as bytes, and read into the slot without a copy: the whole sample, with the
headers around the fields, is read there, and the description of the batch contains the offsets of the fields.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from streamer.batches.batch.buffers import Bytes
from streamer.batches.batch.placement import NO_SLOT, Rows
from streamer.batches.samples.cached_bytes import CachedBytes
from streamer.batches.samples.maker import Sample, SampleLocation, SampleMaker
from streamer.batches.samples.scatter import ScatterReader, read_by_chunk
from streamer.decode.dispatch import Raw
from streamer.errors import DecodeError

# Least share of undecoded bytes with which samples are read whole into the slot. With less, headers and decoded fields
# would take more of the slot than its spare eighth.
_LEAST_SHARE = 0.9


class WholeReader:
    """Reads the samples of a batch together if those of the last batch were not decoded. Used by one thread."""

    def __init__(self, source: CachedBytes) -> None:
        self._source = source
        self._contents: dict[int, memoryview] = {}
        self._stay = self._learning = False

    def __repr__(self) -> str:
        return f"WholeReader({len(self._contents)} samples)"

    def begin(self, places: Mapping[int, SampleLocation], rows: Rows, at: Callable[[int], None]) -> None:
        """Reads the bytes of all samples into the slot, behind the rows, if they have space there.

        It reads nothing if the slot is not known, or unless the samples of the last batch mostly stayed undecoded.

        Args:
            places: Places of the samples of one dataset, by index in the batch.
            rows: Rows of the batch in its slot.
            at: called with the index of the first sample of each chunk, before the samples of the chunk are read.

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
        """Reads the bytes of all samples to memory of their own, chunk by chunk; arguments and errors as of `begin`."""
        self._contents = {}
        self._learning = False
        self._read(places, np.empty(_total_bytes(places), np.uint8), at)

    def _read(self, places: Mapping[int, SampleLocation], memory: Bytes, at: Callable[[int], None]) -> None:
        """Reads the bytes of samples one after the other into memory that has their length."""
        targets = {}
        start = 0
        view = memory.data
        for index, place in places.items():
            stop = start + place.stop - place.start
            targets[index] = place, [view[start:stop]]
            start = stop
        for index in read_by_chunk(self._source, targets, at):
            self._contents[index] = targets[index][1][0]

    def find(self, index: int) -> memoryview | None:
        """Returns the bytes of the sample at an index of the batch, or None if `begin` has not read them."""
        return self._contents.get(index)

    def learn(self, place: SampleLocation, sample: dict[str, object]) -> None:
        """Notes by one sample of each batch whether samples stay undecoded: the next batch is read together then."""
        if self._learning:
            self._learning = False
            staying = sum(len(value.content) for value in sample.values() if type(value) is Raw)
            self._stay = staying >= _LEAST_SHARE * max(1, place.stop - place.start)


def _total_bytes(places: Mapping[int, SampleLocation]) -> int:
    return sum(place.stop - place.start for place in places.values())


class RowReader:
    """Reads and makes the samples of a batch that are of one dataset. Used by one thread.

    Args:
        maker: makes the samples.
        content: reads the bytes of the dataset.
    """

    def __init__(self, maker: SampleMaker, content: CachedBytes) -> None:
        self.maker = maker
        self._scatter = ScatterReader(content, maker.decoder)
        self._whole = WholeReader(content)
        self._places: Mapping[int, SampleLocation] = {}
        self._rows: Rows = NO_SLOT

    def __repr__(self) -> str:
        return f"RowReader({len(self._places)} samples, {self._scatter!r}, {self._whole!r})"

    def begin(self, places: Mapping[int, SampleLocation], rows: Rows, at: Callable[[int], None]) -> None:
        """Begins a batch: reads arrays and bytes that need no decoding directly to the slot, where that is possible.

        Args:
            places: Places of the samples, by index in the batch.
            rows: Rows of the slot to which arrays may be written.
            at: called with the index of the first sample of each chunk, before samples of the chunk are read.

        Raises:
            ChunkUnreadableError: the bytes of a sample are missing or wrong.
            CacheError: as `SampleMaker.begin`.
        """
        self._places = places
        self._rows = rows
        self.maker.begin(places.values())
        own = rows if self.maker.decodes_into_rows else NO_SLOT
        self._scatter.begin(places, own, at)
        self._whole.begin(places, own, at)

    def begin_apart(self, places: Mapping[int, SampleLocation], at: Callable[[int], None]) -> None:
        """Begins a batch of documents: reads all of them to memory of their own; arguments and errors as of `begin`."""
        self._places = places
        self._rows = NO_SLOT
        self._scatter.begin(places, NO_SLOT, at)
        self._whole.begin_apart(places, at)

    def load_at(self, place: SampleLocation, index: int) -> object:
        """Makes one sample for an index of the current batch; errors as of `SampleMaker.make`.

        Its arrays may be in their rows of the slot, and its undecoded bytes may be `Raw`.

        Args:
            place: Place of the sample, not necessarily the one that `begin` got for the index.
            index: Index in the batch.
        """
        if not self._rows.known and (content := self._find_content(place, index)) is not None:
            return self.maker.transform(place, self.maker.decode(place, content))
        row = self._rows.row(index)
        if not self.maker.decodes_into_rows:
            return self.maker.transform(place, self.maker.sample(place), row)
        if sample := self._make_in_place(place, index):
            return sample
        if not self._rows.known:  # user code may keep its arguments
            return self.maker.sample(place, row)
        content = self._find_content(place, index)
        if content is None:
            sample = self.maker.sample(place, row, self._scatter.learn, raw=Raw)
        else:
            sample = self.maker.decode(place, content, row, self._scatter.learn, raw=Raw)
        self._whole.learn(place, sample)
        return sample

    def _find_content(self, place: SampleLocation, index: int) -> memoryview | None:
        """Returns the bytes of a sample, or None if they were not read for its index."""
        return self._whole.find(index) if place is self._places.get(index) else None

    def _make_in_place(self, place: SampleLocation, index: int) -> Sample | None:
        """Makes the sample if its arrays are in their rows already; returns None if it must be read."""
        held = self._scatter.find(index, place.ordinal)
        if held is None:
            return None
        started = time.perf_counter_ns()
        try:
            key, fields = self.maker.open(place, held.content)
            arrays = held.find_arrays(fields)
            if arrays is None:
                return None
            # Copied: the next sample uses the same memory.
            return self.maker.build(
                place, key, fields, in_place=arrays, raw=lambda content: Raw(memoryview(bytes(content)))
            )
        except DecodeError:  # unless the holes cause it, ordinary reading raises it again
            return None
        finally:
            self.maker.spent(1, started)
