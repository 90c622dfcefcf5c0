"""What of a batch is written to its slot as it is: arrays, stacks of rows, lists of strings. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

# A cache line, and what cudaMemcpy and AVX-512 like.
ALIGN = 64

Bytes = npt.NDArray[np.uint8]
# What the description says of a leaf: its kind, then what its reader needs, the offset last.
Pid = tuple[object, ...]

ARRAY, TENSOR, STRINGS = 0, 1, 2
# bool, signed, unsigned, float, complex, datetime, timedelta, bytes and str of fixed width: no Python objects inside.
PLAIN_KINDS = frozenset("biufcmMSU")


def aligned(offset: int) -> int:
    """The next offset at which a leaf may begin."""
    return -(-offset // ALIGN) * ALIGN


class Leaf(Protocol):
    """A part of a batch that is written to the slot."""

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        ...

    def pid(self, offset: int) -> Pid:
        """What the description says of it."""
        ...

    def write(self, memory: Bytes) -> None:
        """Fills `memory`, which has `nbytes` bytes."""
        ...


class ArrayLeaf:
    """One array; becomes a tensor, or an array if it came as one from a `collate_fn`.

    Args:
        array: numbers.
        tensor: whether the reader makes a tensor of it.
        torch_dtype: for what numpy has no word ("bfloat16"): the array holds its bytes, in a last dimension more.
    """

    def __init__(self, array: npt.NDArray[np.generic], tensor: bool = True, torch_dtype: str = "") -> None:
        self._array = array
        self._tensor = tensor
        self._torch_dtype = torch_dtype

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return self._array.nbytes

    def pid(self, offset: int) -> Pid:
        """What the description says of it."""
        kind = TENSOR if self._tensor else ARRAY
        return kind, self._array.dtype.str, self._array.shape, self._torch_dtype, offset

    def write(self, memory: Bytes) -> None:
        """Fills its place."""
        np.copyto(np.ndarray(self._array.shape, self._array.dtype, buffer=memory), self._array)


class StackLeaf:
    """Arrays of one dtype and shape, stacked in their slot without a copy in between.

    Attributes:
        rows: the arrays.
    """

    def __init__(self, rows: Sequence[npt.NDArray[np.generic]]) -> None:
        self.rows = rows
        self._shape = (len(rows), *rows[0].shape)
        self._dtype = rows[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return len(self.rows) * self.rows[0].nbytes

    def pid(self, offset: int) -> Pid:
        """What the description says of it."""
        return TENSOR, self._dtype.str, self._shape, "", offset

    def write(self, memory: Bytes) -> None:
        """Fills its place."""
        rows, length = len(self.rows), self._shape[1:2]
        if not length:
            np.stack(self.rows, out=np.ndarray(self._shape, self._dtype, buffer=memory))
            return
        # `stack` makes a view of each row first: 80 us more for 256 (2026-11-20).
        joined = np.ndarray((rows * length[0], *self._shape[2:]), self._dtype, buffer=memory)
        np.concatenate(self.rows, out=joined)


class StringsLeaf:
    """A list or tuple of `str` or of `bytes`: their ends as int64, then the bytes."""

    def __init__(self, strings: Sequence[str] | Sequence[bytes]) -> None:
        self._kind = "t" if isinstance(strings, tuple) else "l"
        self._text = isinstance(strings[0], str)
        # Lone surrogates are legal in a str and must survive.
        self._parts = [s.encode("utf-8", "surrogatepass") if isinstance(s, str) else s for s in strings]
        self._ends = np.cumsum([len(part) for part in self._parts], dtype=np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return self._ends.nbytes + int(self._ends[-1])

    def pid(self, offset: int) -> Pid:
        """What the description says of it."""
        return STRINGS, self._kind, self._text, len(self._parts), offset

    def write(self, memory: Bytes) -> None:
        """Fills its place."""
        table = self._ends.nbytes
        memory[:table].view(np.int64)[:] = self._ends
        target, start = memory.data[table:], 0
        for part, end in zip(self._parts, self._ends.tolist(), strict=True):
            target[start:end] = part
            start = end


def tensor_leaf(tensor: torch.Tensor) -> Leaf | None:
    """A dense CPU tensor without gradient as a leaf; None: leave it to pickle."""
    import torch

    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.requires_grad or tensor.is_quantized:
        return None
    plain = tensor.resolve_conj().resolve_neg()
    try:
        return ArrayLeaf(plain.numpy())
    except TypeError:
        raw = plain.contiguous().unsqueeze(-1).view(torch.uint8)
        return ArrayLeaf(raw.numpy(), torch_dtype=str(tensor.dtype).removeprefix("torch."))
