"""Reads raw arrays from the chunk file directly into their rows: a scatter read, without a copy.

`row_reader.py` beside it does so for samples that need no transform, and reads all others in the ordinary way.

An array that is stored in its final form - an `.npy` file, or numbers for an `ArrayDecoder` - is a byte range of its
sample. One sample shows the offset of the range; other samples of the same length most likely have it at the same
offset. Such a sample is read into two kinds of memory by one call: the bytes of the array into its row, everything
around them (headers, other fields) into memory of this reader. When the sample is opened, every field must be at its
expected offset, and every array must have the same head. Otherwise the sample is read again in the ordinary way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec
import numpy as np

from streamer.batches.batch.buffers import Bytes, find_address
from streamer.batches.batch.placement import NO_SLOT, Key, Rows, RowShape
from streamer.batches.samples.cached_bytes import CachedBytes
from streamer.batches.samples.maker import SampleLocation
from streamer.decode.arrays import Row
from streamer.decode.dispatch import SampleDecoder
from streamer.formats.base import Field

logger = logging.getLogger(__name__)

# Smallest share of a sample that must be arrays: the bytes around them are kept for a whole batch.
_LEAST_SHARE = 0.5
# Number of batches that are read in the ordinary way after a batch of which most samples were read twice.
_PAUSED_BATCHES = 64


class Hole(msgspec.Struct, frozen=True):
    """The place of an array inside a sample's bytes.

    Attributes:
        field: name of the field that is the array.
        start: offset of the field in the sample.
        head: the bytes of the field before the numbers, which describe them.
        shape: dtype and shape of the numbers.
    """

    field: str
    start: int
    head: bytes
    shape: RowShape

    @property
    def first(self) -> int:
        """Offset of the numbers in the sample."""
        return self.start + len(self.head)

    @property
    def stop(self) -> int:
        """Offset of the end of the numbers, which is the end of the field."""
        return self.first + self.shape.nbytes


class Template(msgspec.Struct, frozen=True, dict=True):
    """The offsets of the arrays in samples of one length.

    Attributes:
        length: length of the sample in bytes.
        holes: the arrays in the order of their bytes, at least one.
    """

    length: int
    holes: tuple[Hole, ...]

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """The half-open ranges around the holes: one more than there are holes. Some may be empty."""
        cuts = [0, *(cut for hole in self.holes for cut in (hole.first, hole.stop)), self.length]
        return list(zip(cuts[::2], cuts[1::2], strict=True))

    @cached_property
    def edge_bytes(self) -> int:
        """Number of bytes of all edges together."""
        return sum(stop - start for start, stop in self.edges)

    @classmethod
    def from_sample(
        cls, content: memoryview, fields: Sequence[Field], decoder: SampleDecoder, rows: Rows
    ) -> Template | None:
        """Makes the template of a sample.

        None means that the sample has too few bytes in arrays for which there are rows.

        Args:
            content: bytes of the sample.
            fields: undecoded fields of the sample.
            decoder: decoder of the fields.
            rows: rows of the batch.
        """
        holes = [hole for field in fields if (hole := _hole(content, field, decoder, rows)) is not None]
        share = sum(hole.shape.nbytes for hole in holes) / max(1, len(content))
        return cls(len(content), tuple(sorted(holes, key=lambda hole: hole.start))) if share >= _LEAST_SHARE else None


class HeldSample(msgspec.Struct, frozen=True):
    """A sample whose arrays were read to their rows, and whose other bytes are in `content`.

    Attributes:
        content: bytes of the sample. Those of the arrays are undefined.
    """

    content: memoryview
    _template: Template
    _row: Row
    _count_in_place: Callable[[], None]

    def find_arrays(self, fields: Sequence[Field]) -> Row | None:
        """Returns the arrays in their rows, by field, or None if one lacks the template's place, length or head.

        Args:
            fields: Fields of the sample, opened from `content`.
        """
        found: dict[Key, np.ndarray] = {}
        by_name: Mapping[str, Field] = {field.name: field for field in fields}
        for hole in self._template.holes:
            field = by_name.get(hole.field)
            if field is None or len(field.content) != hole.stop - hole.start:
                return None
            if _offset(self.content, field) != hole.start or field.content[: len(hole.head)] != hole.head:
                return None
            found[hole.field] = self._row[hole.field]
        self._count_in_place()
        return found


class ScatterReader:
    """Reads the samples of a batch by the template of an earlier sample. Used by one thread.

    Args:
        source: reads the bytes.
        decoder: decoder of the fields.
    """

    def __init__(self, source: CachedBytes, decoder: SampleDecoder) -> None:
        self._source = source
        self._decoder = decoder
        self._template: Template | None = None
        self._rows: Rows = NO_SLOT
        self._ordinals: dict[int, int] = {}
        self._edges: Bytes = np.empty((0, 0), np.uint8)
        self._whole: Bytes = np.empty(0, np.uint8)
        self._learning = False
        # Number of samples of this batch that matched the template, and of batches to be read without a template.
        self._in_place = self._paused = 0

    def __repr__(self) -> str:
        return f"ScatterReader({self._template}, {len(self._ordinals)} samples)"

    def begin(self, places: Mapping[int, SampleLocation], rows: Rows, at: Callable[[int], None]) -> None:
        """Reads the samples of a batch that are as long as the template, their arrays into rows.

        Reads nothing if there is no template yet, if the slot is not known, if the rows have other shapes, or for 64
        batches after one of which most samples did not match the template.

        Args:
            places: Places of the samples, by index in the batch.
            rows: Rows of the batch in its slot.
            at: called with the index of the first sample of each chunk, before the samples of the chunk are read.

        Raises:
            ChunkUnreadableError: a chunk is missing or wrong.
        """
        self._rows = rows
        self._learning = rows.known
        # A pause begins where most samples of the last batch were read twice: equal lengths, different layouts.
        self._paused = _PAUSED_BATCHES if self._in_place * 2 < len(self._ordinals) else max(0, self._paused - 1)
        self._in_place = 0
        self._ordinals = {}
        template = self._template if not self._paused else None
        if template is None or not rows.known:
            return
        if any(rows.shapes.get(hole.field) != hole.shape for hole in template.holes):
            return
        alike = {index: place for index, place in places.items() if place.stop - place.start == template.length}
        if alike:
            samples = max(alike) + 1
            if self._edges.shape[0] < samples or self._edges.shape[1] != template.edge_bytes:
                self._edges = np.empty((samples, template.edge_bytes), np.uint8)
            if self._whole.size != template.length:
                self._whole = np.empty(template.length, np.uint8)
            targets = {index: (place, self._pieces(template, index, rows.row(index))) for index, place in alike.items()}
            for index in read_by_chunk(self._source, targets, at):
                self._ordinals[index] = alike[index].ordinal

    def find(self, index: int, ordinal: int) -> HeldSample | None:
        """Returns the sample at an index of the batch, or None if `begin` has not read this ordinal for the index.

        What it returns is valid until the next call.
        """
        template = self._template
        rows = self._rows
        if template is None or self._ordinals.get(index) != ordinal:
            return None
        at = 0
        for start, stop in template.edges:
            self._whole[start:stop] = self._edges[index, at : at + stop - start]
            at += stop - start
        # Read-only: decoders would use a writable buffer in place, and the next sample uses the same memory.
        return HeldSample(self._whole.data.toreadonly(), template, rows.row(index), self._count_in_place)

    def learn(self, content: memoryview, fields: Sequence[Field]) -> None:
        """Makes the template for the next batches from the first sample of a batch that is read in the ordinary way.

        Keeps the old template if `begin` has read samples of this batch, or if the sample makes no template.
        """
        if not self._learning:
            return
        self._learning = False
        template = Template.from_sample(content, fields, self._decoder, self._rows)
        if template is not None and not self._ordinals:
            self._template = template

    def _count_in_place(self) -> None:
        self._in_place += 1

    def _pieces(self, template: Template, index: int, row: Row) -> list[memoryview]:
        """Returns the memory of a sample in the order of its bytes: edge, array, edge, array, ..., edge."""
        edges = []
        at = 0
        for start, stop in template.edges:
            edges.append(self._edges[index, at : at + stop - start].data)
            at += stop - start
        arrays = [row[hole.field].reshape(-1).view(np.uint8).data for hole in template.holes]
        pairs = zip(edges, [*arrays, edges[-1][:0]], strict=True)
        return [piece for pair in pairs for piece in pair if len(piece) > 0]


def read_by_chunk(
    source: CachedBytes, targets: Mapping[int, tuple[SampleLocation, Sequence[memoryview]]], at: Callable[[int], None]
) -> Iterator[int]:
    """Reads samples, chunk by chunk, and yields the indices of those that were read.

    The samples of a chunk that fails with an OSError are left out: reading them one by one finds the sample with the
    error.

    Args:
        source: Source of the bytes.
        targets: Samples and their buffers, by index in the batch.
        at: called with the index of the first sample of each chunk, before the samples of the chunk are read.

    Raises:
        ChunkUnreadableError: a chunk is missing or wrong.
    """
    chunks: dict[int, list[int]] = {}
    for index, (place, _) in targets.items():
        chunks.setdefault(place.chunk, []).append(index)
    for chunk, indices in chunks.items():
        at(indices[0])
        try:
            source.read_into(chunk, [targets[index] for index in indices])
        except OSError:  # such as a CacheError: no more files can be opened
            logger.debug("chunk %d is read sample by sample", chunk, exc_info=True)
        else:
            yield from indices


def _hole(content: memoryview, field: Field, decoder: SampleDecoder, rows: Rows) -> Hole | None:
    """Returns the hole of a field, or None if its bytes cannot be read directly to a row."""
    shape = rows.shapes.get(field.name)
    # A checksum that is in the sample needs the bytes that would be in the hole.
    if shape is None or field.checked:
        return None
    try:
        plain = decoder.plain_array(field)
    except ValueError:  # the decoder reports it, with the sample's name
        return None
    if plain is None or RowShape(plain.dtype, plain.shape) != shape:
        return None
    hole = Hole(field.name, _offset(content, field), plain.head, shape)
    # A field that was decompressed is elsewhere.
    inside = hole.start >= 0 and hole.stop <= len(content)
    return hole if inside and hole.stop - hole.start == len(field.content) else None


def _offset(content: memoryview, field: Field) -> int:
    """Returns the offset of a field in the bytes of its sample."""
    return find_address(field.content) - find_address(content)
