"""Predicts the layout of a batch in its slot: one row per sample for each array field.

Batches of one dataset have similar layouts. The layout of the last batch predicts the offsets of the arrays of the next
one, so that readers, decoders and transforms write directly to the slot, and nothing is copied. The prediction is not
binding: an array in other memory, or of another shape, is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec
import numpy as np

from streamer.batches.batch.buffers import (
    Bytes,
    InPlaceStringsBuffer,
    JoinedBuffer,
    StackBuffer,
    StringsBuffer,
    align_up,
    find_address,
)
from streamer.decode.arrays import Array, Row

# A field's name in a dict, its number in a tuple or list.
Key = str | int

# A copy of fewer bytes costs less than a row: 0.3 us each (2026-11-20).
_LEAST_BYTES = 1024
# A field gets no rows after this many consecutive batches in which they were unused: they waste space in the slot.
_MAX_UNUSED = 4


class RowShape(msgspec.Struct, frozen=True):
    """Dtype and shape of one sample's array."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]

    @classmethod
    def from_array(cls, array: Array) -> RowShape:
        """Dtype and shape of an array."""
        return cls(array.dtype, array.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


class Rows:
    """The rows of one batch in its slot. Belongs to the worker that makes the batch.

    Args:
        memory: the slot.
        shapes: of the fields; fields that do not fit into the slot get no rows.
        samples: number of samples in the batch.

    Attributes:
        shapes: of the fields that have rows.
        end: the first byte behind the rows.
        known: whether the slot is known; until then nothing is written to it.
    """

    known: ClassVar[bool] = True

    def __init__(self, memory: Bytes, shapes: Mapping[Key, RowShape], samples: int) -> None:
        self.shapes: dict[Key, RowShape] = {}
        self.end = 0
        self._memory = memory
        self._reserved = (0, 0)
        self._starts: dict[Key, int] = {}
        self._columns: dict[Key, list[Array]] = {}
        for key, shape in shapes.items():
            start = align_up(self.end)
            if start + samples * shape.nbytes <= len(memory):
                block = np.ndarray((samples, *shape.shape), shape.dtype, buffer=memory, offset=start)
                self.shapes[key] = shape
                self._starts[key] = start
                self._columns[key] = list(block)
                self.end = start + block.nbytes

    def __repr__(self) -> str:
        return f"Rows({self.shapes}, {self.end} bytes)"

    def row(self, index: int) -> Row:
        """The rows of the sample at this index, by field."""
        return {key: column[index] for key, column in self._columns.items()}

    def all(self, samples: int) -> list[Row]:
        """Returns the rows of all samples, by field."""
        return [self.row(index) for index in range(samples)]

    def find(self, arrays: Sequence[Array]) -> tuple[Key, int] | None:
        """The field whose rows are these arrays, in the same order, and its offset in the slot."""
        for key, column in self._columns.items():
            if arrays[0] is column[0]:
                same = len(arrays) == len(column) and all(a is b for a, b in zip(arrays, column, strict=True))
                return (key, self._starts[key]) if same else None
        return None

    def reserve(self, count: int) -> Bytes | None:
        """Reserves memory behind the rows for bytes of samples, or None if there is not enough."""
        start = align_up(self.end)
        if start + count > len(self._memory):
            return None
        self.end = start + count
        memory = self._memory[start : self.end]
        if count:  # in a mix each member reserves a part
            start_address = find_address(memory)
            self._reserved = (self._reserved[0] or start_address, start_address + count)
        return memory

    def place_strings(self, buffer: StringsBuffer) -> InPlaceStringsBuffer | None:
        """Returns a buffer for strings in the reserved memory, or None if one is elsewhere or a copy costs less."""
        start, stop = self._reserved
        if start == stop or buffer.nbytes < _LEAST_BYTES * len(buffer.parts):
            return None
        addresses = np.array([find_address(part) if len(part) else start for part in buffer.parts], np.int64)  # type: ignore[arg-type]
        return InPlaceStringsBuffer(buffer, addresses) if start <= addresses.min() <= addresses.max() < stop else None

    def find_run_offset(self, buffer: JoinedBuffer) -> int | None:
        """Returns the offset of arrays that follow each other in the reserved memory, or None if they do not."""
        start, stop = self._reserved
        parts = [part for part in buffer.parts if part.nbytes]
        if start == stop or not parts or not start <= find_address(parts[0].data) < stop:
            return None
        addresses = np.array([find_address(part.data) for part in parts])
        ends = addresses + np.array([part.nbytes for part in parts])
        return int(addresses[0]) - find_address(self._memory) if (addresses[1:] == ends[:-1]).all() else None


class UnknownRows(Rows):
    """The rows of a batch whose slot is not known, or must not be written to: there are none."""

    known = False

    def __init__(self) -> None:
        super().__init__(np.empty(0, np.uint8), {}, 0)

    def all(self, samples: int) -> list[Row]:
        """See `Rows`."""
        return []


NO_SLOT = UnknownRows()


class PredictedLayout:
    """Predicts the layout of the next batch from the last one."""

    def __init__(self) -> None:
        self._shapes: dict[Key, RowShape] = {}
        self._unused: dict[Key, int] = {}

    def __repr__(self) -> str:
        return f"PredictedLayout({self._shapes})"

    def rows(self, memory: Bytes, samples: int) -> Rows:
        """The predicted rows of a batch in this memory."""
        return Rows(memory, self._shapes, samples)

    def learn(self, structure: object, rows: Rows, claimed: Iterable[Key]) -> None:
        """Records the layout of a batch, the rows offered, and the fields that used them; others get none later."""
        fields: Iterable[tuple[Key, object]] = ()
        if type(structure) is dict:
            fields = structure.items()
        elif isinstance(structure, (list, tuple)):
            fields = enumerate(structure)
        stacks: dict[Key, RowShape] = {}
        for key, buffer in fields:
            if isinstance(buffer, StackBuffer) and isinstance(key, (str, int)):
                shape = RowShape.from_array(buffer.rows[0])
                if shape.nbytes >= _LEAST_BYTES:
                    stacks[key] = shape
        used = set(claimed)
        for key, shape in rows.shapes.items():
            if key in used:
                self._unused[key] = 0
            elif stacks.get(key) == shape:
                self._unused[key] = self._unused.get(key, 0) + 1
        self._shapes = {key: shape for key, shape in stacks.items() if self._unused.get(key, 0) < _MAX_UNUSED}
