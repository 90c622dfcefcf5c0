"""Raw arrays from the chunk file straight into their rows: read once, checked there, copied by nobody.

An array that is stored as it is needed - an `.npy` file, or numbers that an `ArrayDecoder` takes - stands somewhere in
its sample's bytes. Where, one sample tells; others of the same length most likely have it at the same place. So those
are read into two kinds of memory at once: the array's bytes into the row, everything around them (headers, other
fields) into memory of this reader. When the sample is opened, every field must lie where it was expected and every
array's head must be the same; else the sample is read again in the ordinary way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Protocol

import msgspec
import numpy as np

from streamer.decode.arrays import Row
from streamer.decode.dispatch import SampleDecoder
from streamer.formats.base import Field
from streamer.loader.batch.buffers import Bytes, address
from streamer.loader.batch.placement import Key, Rows, RowShape
from streamer.loader.samples.maker import Place

logger = logging.getLogger(__name__)

# Below it, what is around the arrays would be held for a whole batch to save the smaller part of the copying.
_LEAST_SHARE = 0.5
# Batches that are read in the ordinary way after one in which most samples had to be read twice.
_PAUSED_BATCHES = 64


class Scatter(Protocol):
    """Reads samples into pieces of memory."""

    def read_into(self, chunk: int, targets: Sequence[tuple[Place, Sequence[memoryview]]]) -> None:
        """Reads samples of one chunk.

        Raises:
            ChunkUnreadableError: the chunk is gone or wrong.
        """
        ...


class Hole(msgspec.Struct, frozen=True):
    """An array inside a sample's bytes.

    Attributes:
        field: its name.
        start: where the field begins in the sample.
        head: what stands before the numbers, and says what they are.
        shape: of the numbers.
    """

    field: str
    start: int
    head: bytes
    shape: RowShape

    @property
    def first(self) -> int:
        """Where the numbers begin."""
        return self.start + len(self.head)

    @property
    def stop(self) -> int:
        """Where they end, and the field with them."""
        return self.first + self.shape.nbytes


class Template(msgspec.Struct, frozen=True, dict=True):
    """Where the arrays stand in samples of one length.

    Attributes:
        length: of the sample in bytes.
        holes: in the order of the bytes; at least one.
    """

    length: int
    holes: tuple[Hole, ...]

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """What is around the holes, half-open; one more than there are holes, some of them empty."""
        cuts = [0, *(cut for hole in self.holes for cut in (hole.first, hole.stop)), self.length]
        return list(zip(cuts[::2], cuts[1::2], strict=True))

    @cached_property
    def edge_bytes(self) -> int:
        """All of them together."""
        return sum(stop - start for start, stop in self.edges)

    @classmethod
    def of(cls, content: memoryview, fields: Sequence[Field], decoder: SampleDecoder, rows: Rows) -> Template | None:
        """What a sample's bytes tell; None: it has no array that a row waits for, or too much else."""
        holes = [hole for field in fields if (hole := _hole(content, field, decoder, rows)) is not None]
        share = sum(hole.shape.nbytes for hole in holes) / max(1, len(content))
        return cls(len(content), tuple(sorted(holes, key=lambda hole: hole.start))) if share >= _LEAST_SHARE else None


class Held(msgspec.Struct, frozen=True):
    """A sample that was read around its holes.

    Attributes:
        content: its bytes; what stands in the holes is anything.
    """

    content: memoryview
    _template: Template
    _row: Row
    _count_in_place: Callable[[], None]

    def in_place(self, fields: Sequence[Field]) -> Row | None:
        """The arrays in their rows, by field; None: this sample is not like the template."""
        found = self._found(fields)
        if found is not None:
            self._count_in_place()
        return found

    def _found(self, fields: Sequence[Field]) -> Row | None:
        found: dict[Key, np.ndarray] = {}
        by_name: Mapping[str, Field] = {field.name: field for field in fields}
        for hole in self._template.holes:
            field = by_name.get(hole.field)
            if field is None or len(field.content) != hole.stop - hole.start:
                return None
            if _offset(self.content, field) != hole.start or field.content[: len(hole.head)] != hole.head:
                return None
            found[hole.field] = self._row[hole.field]
        return found


class ScatterReader:
    """Reads the samples of a batch that are like the last one that was opened. Used by one thread.

    Args:
        source: of the bytes.
        decoder: says which fields are arrays.
    """

    def __init__(self, source: Scatter, decoder: SampleDecoder) -> None:
        self._source = source
        self._decoder = decoder
        self._template: Template | None = None
        self._rows: Rows | None = None
        self._ordinals: dict[int, int] = {}
        self._edges: Bytes = np.empty((0, 0), np.uint8)
        self._whole: Bytes = np.empty(0, np.uint8)
        self._learning = False
        # Samples of this batch that were like the template, and batches that are still to be read without one.
        self._in_place = self._paused = 0

    def __repr__(self) -> str:
        return f"ScatterReader({self._template}, {len(self._ordinals)} samples)"

    def begin(self, places: Sequence[Place], rows: Rows | None, at: Callable[[int], None]) -> None:
        """Reads what can be read into the rows of a batch.

        Args:
            places: of the samples, by index.
            rows: where their arrays will lie; None: nothing is read.
            at: called with the ordinal of the first one of each chunk, before they are read.

        Raises:
            ChunkUnreadableError: a chunk is gone or wrong.
        """
        self._rows, self._learning = rows, rows is not None
        self._update_pause()
        self._ordinals = {}
        template = self._template if not self._paused else None
        if template is None or rows is None:
            return
        if any(rows.shapes.get(hole.field) != hole.shape for hole in template.holes):
            return
        alike = {index: place for index, place in enumerate(places) if place.stop - place.start == template.length}
        if alike:
            self._read(template, alike, rows, at)

    def held(self, index: int, ordinal: int) -> Held | None:
        """The sample of a index, if it was read; valid until the next call."""
        template, rows = self._template, self._rows
        if template is None or rows is None or self._ordinals.get(index) != ordinal:
            return None
        at = 0
        for start, stop in template.edges:
            self._whole[start:stop] = self._edges[index, at : at + stop - start]
            at += stop - start
        # Read-only: decoders use a writable buffer in place, and the next sample comes to the same memory.
        return Held(self._whole.data.toreadonly(), template, rows.row(index), self._count_in_place)

    def learn(self, content: memoryview, fields: Sequence[Field]) -> None:
        """Looks at a sample that was read in the ordinary way, once a batch; the next batch is read like it."""
        if not self._learning or self._rows is None:
            return
        self._learning = False
        template = Template.of(content, fields, self._decoder, self._rows)
        if template is not None and not self._ordinals:
            self._template = template

    def _update_pause(self) -> None:
        """Where lengths are alike and layouts are not, most samples would be read twice."""
        self._paused = _PAUSED_BATCHES if self._in_place * 2 < len(self._ordinals) else max(0, self._paused - 1)
        self._in_place = 0

    def _count_in_place(self) -> None:
        self._in_place += 1

    def _read(self, template: Template, alike: Mapping[int, Place], rows: Rows, at: Callable[[int], None]) -> None:
        self._make_room(max(alike) + 1, template.edge_bytes, template.length)
        targets = {index: (place, self._pieces(template, index, rows.row(index))) for index, place in alike.items()}
        for index in read_by_chunk(self._source, targets, at):
            self._ordinals[index] = alike[index].ordinal

    def _pieces(self, template: Template, index: int, row: Row) -> list[memoryview]:
        """Edge, array, edge, array, ..., edge."""
        edges, at = [], 0
        for start, stop in template.edges:
            edges.append(self._edges[index, at : at + stop - start].data)
            at += stop - start
        arrays = [row[hole.field].reshape(-1).view(np.uint8).data for hole in template.holes]
        pairs = zip(edges, [*arrays, edges[-1][:0]], strict=True)
        return [piece for pair in pairs for piece in pair if len(piece) > 0]

    def _make_room(self, samples: int, edge_bytes: int, length: int) -> None:
        if self._edges.shape[0] < samples or self._edges.shape[1] != edge_bytes:
            self._edges = np.empty((samples, edge_bytes), np.uint8)
        if self._whole.size != length:
            self._whole = np.empty(length, np.uint8)


def read_by_chunk(
    source: Scatter, targets: Mapping[int, tuple[Place, Sequence[memoryview]]], at: Callable[[int], None]
) -> Iterator[int]:
    """Reads samples, those of a chunk at once, and yields the samples of those that were read.

    Args:
        source: of the bytes.
        targets: by index.
        at: called with the ordinal of the first one of each chunk, before they are read.

    Raises:
        ChunkUnreadableError: a chunk is gone or wrong.
    """
    chunks: dict[int, list[int]] = {}
    for index, (place, _) in targets.items():
        chunks.setdefault(place.chunk, []).append(index)
    for chunk, indices in chunks.items():
        at(targets[indices[0]][0].ordinal)
        try:
            source.read_into(chunk, [targets[index] for index in indices])
        except OSError:  # read one by one in the ordinary way, it is known whose it is
            logger.debug("chunk %d is read sample by sample", chunk, exc_info=True)
        else:
            yield from indices


def _hole(content: memoryview, field: Field, decoder: SampleDecoder, rows: Rows) -> Hole | None:
    shape = rows.shapes.get(field.name)
    if shape is None:
        return None
    try:
        plain = decoder.plain_array(field)
    except ValueError:  # the decoder will say so, with the sample's name
        return None
    if plain is None or RowShape(plain.dtype, plain.shape) != shape:
        return None
    hole = Hole(field.name, _offset(content, field), plain.head, shape)
    return hole if hole.stop - hole.start == len(field.content) else None


def _offset(content: memoryview, field: Field) -> int:
    """Where a field begins in its sample, whose bytes it is a part of."""
    return address(field.content) - address(content)
