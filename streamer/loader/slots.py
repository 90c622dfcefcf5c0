"""How a batch lies in memory: arrays at aligned offsets, then a short description of the whole.

A batch is any Python structure. Pickling it, every array, tensor and list of strings is taken out and written to the
slot as it is (a *leaf*); what the pickle keeps is the structure around them, a few hundred bytes, behind the last
leaf. Reading pickles back in, each leaf becomes a view on the slot. So nothing large is ever pickled, whatever a
`collate_fn` returns. Both ends are the trainer and its own workers (law 7).

Free of torch: a worker that uses none never imports it.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

# A cache line, and what cudaMemcpy and AVX-512 like.
ALIGN = 64

Bytes = npt.NDArray[np.uint8]
# What the description says of a leaf: its kind, then what its reader needs, the offset last.
Pid = tuple[object, ...]

_ARRAY, _TENSOR, _STRINGS = 0, 1, 2
# bool, signed, unsigned, float, complex, datetime, timedelta, bytes and str of fixed width: no Python objects inside.
_PLAIN_KINDS = frozenset("biufcmMSU")


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
        kind = _TENSOR if self._tensor else _ARRAY
        return kind, self._array.dtype.str, self._array.shape, self._torch_dtype, offset

    def write(self, memory: Bytes) -> None:
        """Fills its place."""
        np.copyto(np.ndarray(self._array.shape, self._array.dtype, buffer=memory), self._array)


class StackLeaf:
    """Arrays of one dtype and shape, stacked in their slot without a copy in between."""

    def __init__(self, rows: Sequence[npt.NDArray[np.generic]]) -> None:
        self._rows = rows
        self._shape = (len(rows), *rows[0].shape)
        self._dtype = rows[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return len(self._rows) * self._rows[0].nbytes

    def pid(self, offset: int) -> Pid:
        """What the description says of it."""
        return _TENSOR, self._dtype.str, self._shape, "", offset

    def write(self, memory: Bytes) -> None:
        """Fills its place."""
        np.stack(self._rows, out=np.ndarray(self._shape, self._dtype, buffer=memory))


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
        return _STRINGS, self._kind, self._text, len(self._parts), offset

    def write(self, memory: Bytes) -> None:
        """Fills its place."""
        table = self._ends.nbytes
        memory[:table].view(np.int64)[:] = self._ends
        target, start = memory.data[table:], 0
        for part, end in zip(self._parts, self._ends.tolist(), strict=True):
            target[start:end] = part
            start = end


class _Finder:
    """Finds the leaves of a structure while it is pickled, and gives each its place."""

    def __init__(self) -> None:
        self.leaves: list[tuple[Leaf, int]] = []
        self.end = 0
        # Leaves and what they were made of must live until the pickle is done: ids are the key.
        self._known: dict[int, tuple[object, Pid]] = {}

    def persistent_id(self, item: object) -> Pid | None:
        if known := self._known.get(id(item)):
            return known[1]
        leaf = item if isinstance(item, (ArrayLeaf, StackLeaf, StringsLeaf)) else _leaf_of(item)
        if leaf is None:
            return None
        offset = aligned(self.end)
        self.end = offset + leaf.nbytes
        self.leaves.append((leaf, offset))
        pid = leaf.pid(offset)
        self._known[id(item)] = item, pid
        return pid


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, finder: _Finder) -> None:
        super().__init__(file, protocol=5)
        self.persistent_id = finder.persistent_id  # type: ignore[method-assign]


class _CloudPickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, finder: _Finder) -> None:
        super().__init__(file, protocol=5)
        self.persistent_id = finder.persistent_id


class PackedBatch:
    """A batch ready to be written: leaves with their places, and the description.

    Attributes:
        nbytes: what it takes in a slot.
        description: start and length of the description in it.
    """

    def __init__(self, structure: object) -> None:
        description, finder = _describe(structure)
        self._leaves = finder.leaves
        self._text = description
        self.description = aligned(finder.end), len(description)
        self.nbytes = sum(self.description)

    def write(self, memory: Bytes) -> None:
        """Writes everything; `memory` has at least `nbytes` bytes."""
        for leaf, offset in self._leaves:
            leaf.write(memory[offset : offset + leaf.nbytes])
        start, length = self.description
        memory[start : start + length] = np.frombuffer(self._text, np.uint8)


def _describe(structure: object) -> tuple[bytes, _Finder]:
    try:
        return _dump(_Pickler, structure)
    except (pickle.PicklingError, AttributeError, TypeError):
        # A class of __main__ or of a notebook: cloudpickle finds the trainer's own class again by its tracker id.
        return _dump(_CloudPickler, structure)


def _dump(kind: type[_Pickler] | type[_CloudPickler], structure: object) -> tuple[bytes, _Finder]:
    file, finder = io.BytesIO(), _Finder()
    kind(file, finder).dump(structure)
    return file.getvalue(), finder


def _leaf_of(item: object) -> Leaf | None:
    """Arrays and tensors that a user's `collate_fn` put into its result."""
    if type(item) is np.ndarray:
        return ArrayLeaf(item, tensor=False) if item.dtype.kind in _PLAIN_KINDS else None
    torch = sys.modules.get("torch")
    if torch is not None and type(item) is torch.Tensor:
        return tensor_leaf(item)  # type: ignore[arg-type]
    return None


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


class BatchReader:
    """Turns a written slot back into the batch; every array in it is a view on `memory`.

    Args:
        memory: the slot. It stays alive as long as any view of the batch does.
    """

    def __init__(self, memory: Bytes) -> None:
        self._memory = memory

    def read(self, description: tuple[int, int]) -> object:
        """Returns the batch whose description stands at (start, length)."""
        start, length = description
        return _Unpickler(io.BytesIO(self._memory[start : start + length].data), self._leaf).load()

    def _leaf(self, pid: Pid) -> object:
        kind, first, second, third, offset = pid
        if kind == _STRINGS:
            return self._strings(str(first), bool(second), int(third), int(offset))  # type: ignore[call-overload]
        # With buffer= the new array's base is `memory` itself: the slot is free only after the last view.
        array = np.ndarray(second, first, buffer=self._memory, offset=offset)  # type: ignore[arg-type]
        return array if kind == _ARRAY else _tensor(array, str(third))

    def _strings(self, kind: str, text: bool, count: int, offset: int) -> object:
        ends = np.ndarray(count, np.int64, buffer=self._memory, offset=offset).tolist()
        blob = self._memory[offset + 8 * count : offset + 8 * count + ends[-1]].tobytes()
        cuts = [blob[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        parts: list[object] = [str(part, "utf-8", "surrogatepass") for part in cuts] if text else [*cuts]
        return tuple(parts) if kind == "t" else parts


class _Unpickler(pickle.Unpickler):  # noqa: S301 - written by this trainer's own worker (law 7)
    def __init__(self, file: io.BytesIO, leaf: object) -> None:
        super().__init__(file)
        self.persistent_load = leaf  # type: ignore[assignment]


def _tensor(array: npt.NDArray[np.generic], torch_dtype: str) -> torch.Tensor:
    import torch

    tensor = torch.from_numpy(array)
    if not torch_dtype:
        return tensor
    dtype: torch.dtype = getattr(torch, torch_dtype)
    return tensor.view(dtype).squeeze(-1)
