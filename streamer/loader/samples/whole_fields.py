"""Samples that stay as they are, read whole to where their batch will lie: copied by nobody.

What nobody decodes is handed over as bytes. Its sample, with the headers around it, is read into the slot, and the
batch's description says where in it the field lies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamer.decode.dispatch import Raw
from streamer.loader.batch.placement import Rows
from streamer.loader.samples.maker import Place
from streamer.loader.samples.scatter import Scatter, read_by_chunk

# Of a sample's bytes that nobody decodes. Below it, headers and decoded fields would take more of the slot than the
# eighth that it has to spare.
_LEAST_SHARE = 0.9


class WholeReader:
    """Reads the samples of a batch if those of the last one stayed as they were. Used by one thread.

    Args:
        source: of the bytes.
    """

    def __init__(self, source: Scatter) -> None:
        self._source = source
        self._contents: dict[int, memoryview] = {}
        self._stay = self._learning = False

    def __repr__(self) -> str:
        return f"WholeReader({len(self._contents)} samples)"

    def begin(self, places: Sequence[Place], rows: Rows | None, at: Callable[[int], None]) -> None:
        """Reads all samples of a batch, if they fit.

        Args:
            places: of the samples, by index.
            rows: what they will lie behind; None: nothing is read.
            at: called with the ordinal of the first one of each chunk, before they are read.

        Raises:
            ChunkUnreadableError: a chunk is gone or wrong.
        """
        self._contents, self._learning = {}, rows is not None
        if rows is None or not self._stay:
            return
        memory = rows.reserve(sum(place.stop - place.start for place in places))
        if memory is None:
            return
        targets, start, view = {}, 0, memory.data
        for index, place in enumerate(places):
            stop = start + place.stop - place.start
            targets[index] = place, [view[start:stop]]
            start = stop
        for index in read_by_chunk(self._source, targets, at):
            self._contents[index] = targets[index][1][0]

    def held(self, index: int) -> memoryview | None:
        """The bytes of the sample of a index, if it was read."""
        return self._contents.get(index)

    def learn(self, place: Place, sample: dict[str, object]) -> None:
        """Looks at a sample, once a batch: whether it stayed as it was."""
        if self._learning:
            self._learning = False
            staying = sum(len(value.content) for value in sample.values() if type(value) is Raw)
            self._stay = staying >= _LEAST_SHARE * max(1, place.stop - place.start)
