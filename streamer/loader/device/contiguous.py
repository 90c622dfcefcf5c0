"""Batches whose tensors are contiguous in one slot: copied to a device in one piece, and split there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import msgspec
import torch

from streamer.batches.batch.buffers import Bytes
from streamer.batches.batch.ragged import Ragged
from streamer.loader.delivery import Delivery

# Below it, copying the bytes between the tensors (strings) costs more than separate copies.
_LEAST_SHARE = 0.9
# A tensor below this share of its batch gets device memory of its own: keeping the labels of an epoch must not keep its
# images.
_SMALL_SHARE = 1 / 16


class Packed(msgspec.Struct, frozen=True):
    """A range of bytes in a slot, and the batch in it.

    Attributes:
        batch: its tensors are views on the slot.
        memory: the slot.
        start, stop: the range, half-open.
    """

    batch: Delivery
    memory: Bytes
    start: int
    stop: int

    @classmethod
    def of(cls, batch: object) -> Packed | None:
        """Returns the range of a batch, or None if it is not in a slot, is not dense, or has fewer than two tensors."""
        if not isinstance(batch, Delivery) or batch.memory is None:
            return None
        tensors: list[torch.Tensor] = []

        def note(tensor: torch.Tensor) -> torch.Tensor:
            tensors.append(tensor)
            return tensor

        map_tensors(batch.content, note)
        places = [_place(tensor, batch.memory) for tensor in tensors]
        known = [place for place in places if place is not None]
        if len(known) < 2 or len(known) < len(places):
            return None
        start, stop = min(first for first, _ in known), max(end for _, end in known)
        dense = sum(end - first for first, end in known) >= _LEAST_SHARE * (stop - start) > 0
        return cls(batch, batch.memory, start, stop) if dense else None

    @property
    def nbytes(self) -> int:
        """Bytes of the range."""
        return self.stop - self.start

    def source(self) -> torch.Tensor:
        """The range as a tensor of bytes."""
        return torch.from_numpy(self.memory[self.start : self.stop])

    def on(self, whole: torch.Tensor) -> Delivery:
        """The batch with its tensors in the copy.

        Args:
            whole: uint8 (at least `nbytes`,), on any device.
        """
        return self.batch.with_content(map_tensors(self.batch.content, lambda tensor: self._view(tensor, whole)))

    def _view(self, tensor: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        first = tensor.data_ptr() - self.memory.ctypes.data - self.start
        view = whole[first : first + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        return view.clone() if tensor.nbytes < _SMALL_SHARE * self.nbytes else view


def _place(tensor: torch.Tensor, memory: Bytes) -> tuple[int, int] | None:
    """Returns the range of a tensor in the slot, or None if it is elsewhere, not contiguous, or empty."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.nbytes == 0:
        return None
    first = tensor.data_ptr() - memory.ctypes.data
    inside = first >= 0 and first + tensor.nbytes <= memory.size and first % tensor.itemsize == 0
    return (first, first + tensor.nbytes) if inside else None


def map_tensors(batch: object, change: Callable[[torch.Tensor], torch.Tensor], *, encoded: bool = False) -> object:
    """Returns the structure with every tensor changed; those of encoded files, which stay on the CPU, if `encoded`."""
    again = partial(map_tensors, change=change, encoded=encoded)
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Delivery):
        return batch.with_content(again(batch.content))
    if isinstance(batch, Mapping):
        return _like(batch, {key: again(value) for key, value in batch.items()})
    if isinstance(batch, Ragged) and batch.encoded and not encoded:
        return batch
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        kind: Callable[..., object] = type(batch)
        return kind(*map(again, batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(map(again, batch))
    return batch


def _like(batch: Mapping[object, object], changed: dict[object, object]) -> object:
    if type(batch) is dict:
        return changed
    kind: Callable[..., object] = type(batch)
    try:
        return kind(changed)
    except TypeError:
        return changed
