"""The layout of a batch in memory: arrays at aligned offsets, then a short description of the structure.

A batch is any Python structure. When it is pickled, every array, tensor and list of strings is taken out and written to
the slot as a *buffer*; the pickle only has the structure around them, a few hundred bytes, behind the last buffer. When
it is unpickled, each buffer becomes a view on the slot. So nothing large is ever pickled, whatever a `collate_fn`
returns. A worker writes the slot (`batches/workers/worker.py`), and the trainer that started the worker reads it
(`loader/feed/supply.py`): nothing else unpickles it (docs/architecture.md, rule 7).

Free of torch: a worker that uses none never imports it.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import TYPE_CHECKING

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from streamer.batches.batch.buffers import (
    ARRAY,
    PLAIN_KINDS,
    STRINGS,
    ArrayBuffer,
    Buffer,
    Bytes,
    JoinedBuffer,
    Pid,
    StackBuffer,
    StringsBuffer,
    align_up,
    tensor_buffer,
)
from streamer.batches.batch.placement import NO_SLOT, Key, Rows

if TYPE_CHECKING:
    import torch


class _Finder:
    """Finds the buffers of a structure while it is pickled, and assigns their offsets.

    Args:
        rows: rows of the slot, which may contain arrays already. All other buffers are placed behind them.

    Attributes:
        buffers: the buffers to be written, each with its offset, without those that are in place.
        end: offset in the slot behind the last buffer.
        claimed: fields whose rows contain the arrays of the batch.
    """

    def __init__(self, rows: Rows) -> None:
        self.buffers: list[tuple[Buffer, int]] = []
        self.end = rows.end
        self.claimed: set[Key] = set()
        self._rows = rows
        # Buffers and their source objects must be kept until the pickle is complete: ids are the keys.
        self._known: dict[int, tuple[object, Pid]] = {}

    def persistent_id(self, item: object) -> Pid | None:
        """Returns the entry that takes the place of a buffer, array or tensor; None for all that is to be pickled."""
        if known := self._known.get(id(item)):
            return known[1]
        buffer: Buffer | None = None
        torch = sys.modules.get("torch")
        if isinstance(item, Buffer):
            buffer = item
        # Arrays and tensors are those that a user's `collate_fn` put into its result.
        elif isinstance(item, np.ndarray) and type(item) is np.ndarray and item.dtype.kind in PLAIN_KINDS:
            buffer = ArrayBuffer(item, tensor=False)
        elif torch is not None and type(item) is torch.Tensor:
            buffer = tensor_buffer(item)  # type: ignore[arg-type]
        if buffer is None:
            return None
        if isinstance(buffer, StringsBuffer):
            buffer = self._rows.place_strings(buffer) or buffer
        pid = *buffer.entry, self._place(buffer)
        self._known[id(item)] = item, pid
        return pid

    def _place(self, buffer: Buffer) -> int:
        """Returns the offset of a buffer that is in place, or adds the buffer behind the others."""
        if isinstance(buffer, StackBuffer):
            found = self._rows.find(buffer.rows)
            # A stack is in place at its first use only: two tensors never share memory.
            if found is not None and found[0] not in self.claimed:
                self.claimed.add(found[0])
                return found[1]
        elif isinstance(buffer, JoinedBuffer) and (place := self._rows.find_run_offset(buffer)) is not None:
            return place
        offset = align_up(self.end)
        self.end = offset + buffer.nbytes
        self.buffers.append((buffer, offset))
        return offset


class _Pickler(pickle.Pickler):
    """Pickles a structure, without the buffers that the finder takes out."""

    def __init__(self, file: io.BytesIO, finder: _Finder) -> None:
        super().__init__(file, protocol=5)
        self.persistent_id = finder.persistent_id  # type: ignore[method-assign]


class _CloudPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles as `_Pickler` does, and takes objects that only cloudpickle can pickle."""

    def __init__(self, file: io.BytesIO, finder: _Finder) -> None:
        super().__init__(file, protocol=5)
        self.persistent_id = finder.persistent_id


class WritableBatch:
    """A batch ready to be written: buffers with their offsets, and the description.

    Args:
        structure: the batch.
        rows: rows of a slot that may contain arrays of the batch; it can then be written to this slot only.

    Attributes:
        nbytes: bytes that it takes in a slot, with the description.
        description: start and length in bytes of the description in the slot.
        claimed: fields whose arrays are in their rows already.

    Raises:
        Exception: an object of the structure cannot be pickled.
    """

    def __init__(self, structure: object, rows: Rows = NO_SLOT) -> None:
        try:
            description, finder = _dump(_Pickler, structure, rows)
        except (pickle.PicklingError, AttributeError, TypeError):
            # A class of __main__ or of a notebook: cloudpickle gives the trainer its own class back, not a copy.
            description, finder = _dump(_CloudPickler, structure, rows)
        self._structure = structure
        self._buffers = finder.buffers
        self._text = description
        self.claimed = frozenset(finder.claimed)
        self.description = align_up(finder.end), len(description)
        self.nbytes = sum(self.description)

    def compact(self) -> WritableBatch:
        """Returns the same batch for other memory: nothing is in place, and there are no unused rows."""
        return WritableBatch(self._structure)

    def write(self, memory: Bytes) -> None:
        """Writes everything that is not in place yet; `memory` has at least `nbytes` bytes."""
        for buffer, offset in self._buffers:
            buffer.write(memory[offset : offset + buffer.nbytes])
        start, length = self.description
        memory[start : start + length] = np.frombuffer(self._text, np.uint8)


def _dump(kind: type[_Pickler] | type[_CloudPickler], structure: object, rows: Rows) -> tuple[bytes, _Finder]:
    file = io.BytesIO()
    finder = _Finder(rows)
    kind(file, finder).dump(structure)
    return file.getvalue(), finder


class BatchReader:
    """Turns a written slot back into the batch; every array and tensor in it is a view on `memory`.

    Args:
        memory: the slot. Views of the batch keep it.
    """

    def __init__(self, memory: Bytes) -> None:
        self._memory = memory

    def read(self, description: tuple[int, int]) -> object:
        """Returns the batch whose description is at (start, length), as `WritableBatch.description` has it."""
        start, length = description
        return _Unpickler(io.BytesIO(self._memory[start : start + length].data), self._buffer).load()

    def _buffer(self, pid: Pid) -> object:
        """Returns the array, tensor or strings of an entry: (kind, dtype, shape, torch's dtype or "", offset)."""
        kind, first, second, third, offset = pid
        if kind == STRINGS:
            return self._strings(str(first), bool(second), int(third), int(offset))  # type: ignore[call-overload]
        # The base of the new array is `memory` itself, by buffer=: the slot is free only after the last view.
        array = np.ndarray(second, first, buffer=self._memory, offset=offset)  # type: ignore[arg-type]
        if kind == ARRAY:
            return array
        import torch

        tensor = torch.from_numpy(array)
        if not third:
            return tensor
        dtype: torch.dtype = getattr(torch, str(third))
        return tensor.view(dtype).squeeze(-1)

    def _strings(self, kind: str, text: bool, count: int, offset: int) -> object:
        places = np.ndarray((count, 2), np.int64, buffer=self._memory, offset=offset) + offset
        memory = self._memory.data
        cuts = [memory[start:stop] for start, stop in places.tolist()]
        parts: list[object] = [str(part, "utf-8", "surrogatepass") if text else bytes(part) for part in cuts]
        return tuple(parts) if kind == "t" else parts


class _Unpickler(pickle.Unpickler):  # noqa: S301 - written by this trainer's own worker (docs/architecture.md, rule 7)
    """Unpickles a structure, with the values that the function `buffer` returns for the entries of buffers."""

    def __init__(self, file: io.BytesIO, buffer: object) -> None:
        super().__init__(file)
        self.persistent_load = buffer  # type: ignore[assignment]
