"""Predicts the layout of a batch in its slot: one row per sample for each array field.

Batches of one dataset have similar layouts. The layout of the last batch predicts the offsets of the arrays of the next
one, so that readers, decoders and transforms write directly to the slot, and nothing is copied. The prediction is not
binding: an array in other memory, or of another shape, is copied.

The maker of batches (`batches/workers/batch_maker.py`) predicts and learns, the readers of samples (`batches/samples`)
write to the rows, and `slot_layout.py` beside it finds out which arrays are in their rows.
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

# Arrays of fewer bytes get no rows: a copy of them costs less than 0.3 us, the cost of a row (2026-11-20).
_LEAST_BYTES = 1024
# A field gets no rows after this many consecutive batches in which they were unused: they waste space in the slot.
_MAX_UNUSED = 4


class RowShape(msgspec.Struct, frozen=True):
    """Dtype and shape of one sample's array, without the axis of the batch."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]

    @classmethod
    def from_array(cls, array: Array) -> RowShape:
        """Returns dtype and shape of an array."""
        return cls(array.dtype, array.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes of one row."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


class Rows:
    """The rows of one batch in its slot: memory at which the arrays of its samples may be made, field by field.

    Belongs to the worker that makes the batch.

    Args:
        memory: the slot.
        shapes: shape of each field's rows; fields that do not fit into the slot get no rows.
        samples: number of samples in the batch.

    Attributes:
        shapes: shapes of the fields that have rows.
        end: offset in the slot of the first byte behind the rows and behind what `reserve` gave.
        known: whether there is a slot at all. False only for `UnknownRows`.
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
        """Returns the rows of the sample at this index of the batch, by field."""
        return {key: column[index] for key, column in self._columns.items()}

    def all(self, samples: int) -> list[Row]:
        """Returns the rows of each of the first `samples` samples, by field."""
        return [self.row(index) for index in range(samples)]

    def find(self, arrays: Sequence[Array]) -> tuple[Key, int] | None:
        """Returns the field whose rows are exactly these arrays, in the same order, and its offset in the slot.

        None means that they must be copied. The objects are compared, not the numbers in them.
        """
        for key, column in self._columns.items():
            if arrays[0] is column[0]:
                same = len(arrays) == len(column) and all(a is b for a, b in zip(arrays, column, strict=True))
                return (key, self._starts[key]) if same else None
        return None

    def reserve(self, count: int) -> Bytes | None:
        """Reserves `count` bytes behind the rows for undecoded bytes of samples, and returns that memory.

        None means that the slot has no space for them.
        """
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
        """Returns a buffer that uses the strings in the reserved memory without copying them.

        None means that they must be copied: one of them is elsewhere, or they are so short that a copy costs less.
        """
        start, stop = self._reserved
        if start == stop or buffer.nbytes < _LEAST_BYTES * len(buffer.parts):
            return None
        addresses = np.array([find_address(part) if len(part) else start for part in buffer.parts], np.int64)  # type: ignore[arg-type]
        return InPlaceStringsBuffer(buffer, addresses) if start <= addresses.min() <= addresses.max() < stop else None

    def find_run_offset(self, buffer: JoinedBuffer) -> int | None:
        """Returns the offset in the slot of arrays that follow each other in the reserved memory.

        None means that they must be copied: one of them is elsewhere, or there is a gap.
        """
        start, stop = self._reserved
        parts = [part for part in buffer.parts if part.nbytes]
        if start == stop or not parts or not start <= find_address(parts[0].data) < stop:
            return None
        addresses = np.array([find_address(part.data) for part in parts])
        ends = addresses + np.array([part.nbytes for part in parts])
        return int(addresses[0]) - find_address(self._memory) if (addresses[1:] == ends[:-1]).all() else None


class UnknownRows(Rows):
    """Stands for the rows of a batch whose slot is not known, or must not be written to: it has none."""

    known = False

    def __init__(self) -> None:
        super().__init__(np.empty(0, np.uint8), {}, 0)

    def all(self, samples: int) -> list[Row]:
        """Returns an empty list: no sample has rows."""
        return []


NO_SLOT = UnknownRows()


class PredictedLayout:
    """Predicts the layout of the next batch from the last one. Used by the thread that makes the batches."""

    def __init__(self) -> None:
        self._shapes: dict[Key, RowShape] = {}
        self._unused: dict[Key, int] = {}

    def __repr__(self) -> str:
        return f"PredictedLayout({self._shapes})"

    def rows(self, memory: Bytes, samples: int) -> Rows:
        """Returns the predicted rows of a batch of `samples` samples in a slot; there are none before `learn`."""
        return Rows(memory, self._shapes, samples)

    def learn(self, structure: object, rows: Rows, claimed: Iterable[Key]) -> None:
        """Learns from a collated batch which rows to offer to the next one.

        A field whose rows stayed unused in `_MAX_UNUSED` consecutive batches gets none any more.

        Args:
            structure: the batch, with a `StackBuffer` for each stacked field; only its top level is looked at.
            rows: the rows that were offered to it.
            claimed: fields whose arrays were in their rows, so that nothing was copied.
        """
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
