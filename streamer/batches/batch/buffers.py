"""The parts of a batch that are written to its slot without pickling: arrays, stacks, strings. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streamer.decode.dispatch import Raw

if TYPE_CHECKING:
    import torch

# A cache line; also good for cudaMemcpy and AVX-512.
ALIGN = 64

Bytes = npt.NDArray[np.uint8]
# A buffer in the description of a batch: its kind, then the parameters of its reader, the offset last.
Pid = tuple[object, ...]

ARRAY = 0
TENSOR = 1
STRINGS = 2
# Bytes of a string's entry in the table: start and stop, int64.
_RANGE_BYTES = 16
# bool, signed, unsigned, float, complex, datetime, timedelta, bytes and str of fixed width: no Python objects inside.
PLAIN_KINDS = frozenset("biufcmMSU")


def align_up(offset: int) -> int:
    """The next offset at which a buffer may begin."""
    return -(-offset // ALIGN) * ALIGN


class Buffer:
    """A part of a batch that is written to its slot.

    Attributes:
        nbytes: size in the slot, in bytes.
        entry: its entry in the description, without the offset.
    """

    nbytes: int
    entry: tuple[object, ...]

    def write(self, memory: Bytes) -> None:
        """Fills `memory`, which has `nbytes` bytes."""
        raise NotImplementedError


class ArrayBuffer(Buffer):
    """One array; it is read as a tensor, or as an array if a `collate_fn` returned it as one.

    Args:
        array: numbers.
        tensor: whether it is read as a tensor.
        torch_dtype: a dtype that numpy does not have ("bfloat16"): the array has its bytes in an additional last
            dimension.
    """

    def __init__(self, array: npt.NDArray[np.generic], tensor: bool = True, torch_dtype: str = "") -> None:
        self._array = array
        self.nbytes = array.nbytes
        self.entry = TENSOR if tensor else ARRAY, array.dtype.str, array.shape, torch_dtype

    def write(self, memory: Bytes) -> None:
        """See `Buffer`."""
        np.copyto(np.ndarray(self._array.shape, self._array.dtype, buffer=memory), self._array)


class StackBuffer(Buffer):
    """Arrays of one dtype and shape, stacked directly in their slot."""

    def __init__(self, rows: Sequence[npt.NDArray[np.generic]]) -> None:
        self.rows = rows
        self._shape = (len(rows), *rows[0].shape)
        self._dtype = rows[0].dtype
        self.nbytes = len(rows) * rows[0].nbytes
        self.entry = TENSOR, self._dtype.str, self._shape, ""

    def write(self, memory: Bytes) -> None:
        """See `Buffer`."""
        rows = len(self.rows)
        length = self._shape[1:2]
        if not length:
            np.stack(self.rows, out=np.ndarray(self._shape, self._dtype, buffer=memory))
            return
        # `stack` makes a view of each row first: 80 us more for 256 (2026-11-20).
        joined = np.ndarray((rows * length[0], *self._shape[2:]), self._dtype, buffer=memory)
        np.concatenate(self.rows, out=joined)


class JoinedBuffer(Buffer):
    """Arrays of one dtype, joined along their first axis directly in the slot."""

    def __init__(self, parts: Sequence[npt.NDArray[np.generic]]) -> None:
        self.parts = parts
        self._shape = (sum(map(len, parts)), *parts[0].shape[1:])
        self._dtype = parts[0].dtype
        self.nbytes = sum(part.nbytes for part in parts)
        self.entry = TENSOR, self._dtype.str, self._shape, ""

    def write(self, memory: Bytes) -> None:
        """See `Buffer`."""
        np.concatenate(self.parts, out=np.ndarray(self._shape, self._dtype, buffer=memory))


class StringsBuffer(Buffer):
    """A list or tuple of `str` or of bytes: a table of half-open ranges, relative to its own start; then the bytes."""

    def __init__(self, strings: Sequence[str] | Sequence[bytes] | Sequence[Raw]) -> None:
        self.parts = [_bytes_of(item) for item in strings]
        self.nbytes = _RANGE_BYTES * len(self.parts) + sum(map(len, self.parts))
        self.entry = STRINGS, "t" if isinstance(strings, tuple) else "l", isinstance(strings[0], str), len(self.parts)

    def write(self, memory: Bytes) -> None:
        """See `Buffer`."""
        table = memory[: _RANGE_BYTES * len(self.parts)]
        ends = np.cumsum([table.nbytes, *map(len, self.parts)])
        _write_ranges(table, ends[:-1], ends[1:])
        target = memory.data
        start = table.nbytes
        for part, end in zip(self.parts, ends[1:].tolist(), strict=True):
            target[start:end] = part
            start = end


class InPlaceStringsBuffer(Buffer):
    """Strings whose bytes are in the slot already: only the table is written.

    Args:
        buffer: of the strings.
        addresses: of their parts, int64.
    """

    def __init__(self, buffer: StringsBuffer, addresses: npt.NDArray[np.int64]) -> None:
        self._parts = buffer.parts
        self._addresses = addresses
        self.nbytes = _RANGE_BYTES * len(addresses)
        self.entry = buffer.entry

    def write(self, memory: Bytes) -> None:
        """See `Buffer`."""
        starts = self._addresses - find_address(memory)
        _write_ranges(memory, starts, starts + np.array([len(part) for part in self._parts]))


def _write_ranges(table: Bytes, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> None:
    places = table.view(np.int64).reshape(-1, 2)
    places[:, 0] = starts
    places[:, 1] = stops


def _bytes_of(item: str | bytes | Raw) -> bytes | memoryview:
    if isinstance(item, Raw):
        return item.content
    # Lone surrogates are legal in a str and must survive.
    return item.encode("utf-8", "surrogatepass") if isinstance(item, str) else item


def find_address(memory: Bytes | memoryview) -> int:
    """The address in this process."""
    # `.ctypes.data` takes twice as long, 2.7 us (2026-11-20).
    found: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return found


def tensor_buffer(tensor: torch.Tensor) -> Buffer | None:
    """Returns a dense CPU tensor without gradient as a buffer, or None if it must be pickled."""
    import torch

    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.requires_grad or tensor.is_quantized:
        return None
    plain = tensor.resolve_conj().resolve_neg()
    try:
        return ArrayBuffer(plain.numpy())
    except TypeError:
        raw = plain.contiguous().unsqueeze(-1).view(torch.uint8)
        return ArrayBuffer(raw.numpy(), torch_dtype=str(tensor.dtype).removeprefix("torch."))
