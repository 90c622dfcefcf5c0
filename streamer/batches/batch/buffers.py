"""The parts of a batch that are written to its slot without pickling: arrays, stacks of arrays, lists of strings.

`collate.py`, `ragged.py` and `slot_layout.py` beside it make and write them. The ring and the readers of samples use
`Bytes` and `find_address`; workers and the loader have slots as `Bytes`. The module imports torch only inside
`tensor_buffer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streamer.decode.dispatch import Raw

if TYPE_CHECKING:
    import torch

# Buffers begin at multiples of this number of bytes: a cache line; also good for cudaMemcpy and AVX-512.
ALIGN = 64

Bytes = npt.NDArray[np.uint8]
# A buffer in the description of a batch: its kind, then what `BatchReader` needs to read it, the offset last.
Pid = tuple[object, ...]

# The three kinds of a buffer: what it is read as.
ARRAY = 0
TENSOR = 1
STRINGS = 2
# Bytes of a string's entry in the table of `StringsBuffer`: start and stop, int64.
_RANGE_BYTES = 16
# The letters (`dtype.kind`) of arrays without Python objects: bool, signed, unsigned, float, complex, datetime,
# timedelta, bytes and str of fixed width.
PLAIN_KINDS = frozenset("biufcmMSU")


def align_up(offset: int) -> int:
    """Returns the first multiple of `ALIGN` that is not below `offset`: a buffer may begin there."""
    return -(-offset // ALIGN) * ALIGN


class Buffer:
    """A part of a batch that is written to its slot.

    Attributes:
        nbytes: bytes that `write` fills in the slot.
        entry: its `Pid` in the description of the batch, without the offset.
    """

    nbytes: int
    entry: tuple[object, ...]

    def write(self, memory: Bytes) -> None:
        """Fills `memory`, a part of the slot that has exactly `nbytes` bytes."""
        raise NotImplementedError


class ArrayBuffer(Buffer):
    """One array, copied to the slot.

    Args:
        array: the array, of a dtype in `PLAIN_KINDS`.
        tensor: whether the trainer gets it as a tensor; False for an array that a `collate_fn` returned as an array.
        torch_dtype: name of a dtype that numpy does not have ("bfloat16"): `array` then has the bytes of each number
            as uint8 in an additional last dimension. "" for dtypes of numpy.
    """

    def __init__(self, array: npt.NDArray[np.generic], tensor: bool = True, torch_dtype: str = "") -> None:
        self._array = array
        self.nbytes = array.nbytes
        self.entry = TENSOR if tensor else ARRAY, array.dtype.str, array.shape, torch_dtype

    def write(self, memory: Bytes) -> None:
        """See `Buffer`."""
        np.copyto(np.ndarray(self._array.shape, self._array.dtype, buffer=memory), self._array)


class StackBuffer(Buffer):
    """Arrays of one dtype and shape, at least one, which become one tensor (rows, ...) in the slot."""

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
        # Rows with an axis are joined: `np.stack` makes a view of each row first, 80 us more for 256 (2026-11-20).
        joined = np.ndarray((rows * length[0], *self._shape[2:]), self._dtype, buffer=memory)
        np.concatenate(self.rows, out=joined)


class JoinedBuffer(Buffer):
    """Arrays of one dtype that differ only in their first axis; they become one tensor, joined along that axis."""

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
    """A list or tuple of only `str`, only `bytes` or only `Raw`, with at least one item.

    It is read as a list or tuple of `str` or `bytes` again.

    The slot gets a table of half-open ranges, counted from the start of the table, and then the bytes.
    """

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
    """Strings whose bytes are in the slot already: only the table of their ranges is written.

    Args:
        buffer: the same strings as a buffer that would copy them.
        addresses: int64 (strings,), address in this process of each string's bytes.
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
    """Returns the address of the first byte in this process, by which bytes are found in their slot."""
    # `.ctypes.data` takes twice as long, 2.7 us (2026-11-20).
    found: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return found


def tensor_buffer(tensor: torch.Tensor) -> Buffer | None:
    """Returns a dense CPU tensor without gradient as a buffer.

    None for all others, which must be pickled: sparse or quantised ones, those on a GPU and those with a gradient.
    """
    import torch

    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.requires_grad or tensor.is_quantized:
        return None
    plain = tensor.resolve_conj().resolve_neg()
    try:
        return ArrayBuffer(plain.numpy())
    except TypeError:
        raw = plain.contiguous().unsqueeze(-1).view(torch.uint8)
        return ArrayBuffer(raw.numpy(), torch_dtype=str(tensor.dtype).removeprefix("torch."))
