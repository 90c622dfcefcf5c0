"""Copies batches to a device: synchronously, or on a separate CUDA stream.

On that stream a batch whose tensors are contiguous in one slot of the ring is copied in one piece, and split on the
device. Used by `prefetcher.py`, and by `loader/epoch.py`, which makes the `Mover` of a loader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

import msgspec
import torch

from streamer.batches.batch.buffers import Bytes
from streamer.batches.batch.ragged import Ragged
from streamer.batches.ring.pinning import Fence
from streamer.loader.delivery import Delivery

# A range of a slot is copied in one piece if tensors are at least this share of its bytes: copying much that is between
# them (strings) costs more than separate copies.
_LEAST_SHARE = 0.9
# A tensor below this share of its batch gets device memory of its own: keeping the labels of an epoch must not keep its
# images.
_SMALL_SHARE = 1 / 16


class SlotRange(msgspec.Struct, frozen=True):
    """Names a range of bytes in a slot of the ring, and the batch whose tensors are in it.

    Attributes:
        batch: Batch whose tensors are views on the slot.
        memory: Memory of the slot.
        start, stop: Bounds of the range, half-open.
    """

    batch: Delivery
    memory: Bytes
    start: int
    stop: int

    @classmethod
    def find(cls, batch: object) -> SlotRange | None:
        """Returns the range of a batch, or None if it is better copied tensor by tensor.

        That is so if the batch is not in a slot, has fewer than two tensors, a tensor that is empty, elsewhere, not
        contiguous or not aligned, or much between the tensors.
        """
        if not isinstance(batch, Delivery) or batch.memory is None:
            return None
        tensors: list[torch.Tensor] = []

        def note(tensor: torch.Tensor) -> torch.Tensor:
            tensors.append(tensor)
            return tensor

        map_tensors(batch.content, note)
        if len(tensors) < 2:
            return None
        ranges: list[tuple[int, int]] = []
        for tensor in tensors:
            if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.nbytes == 0:
                return None
            first = tensor.data_ptr() - batch.memory.ctypes.data
            if first < 0 or first + tensor.nbytes > batch.memory.size or first % tensor.itemsize:
                return None
            ranges.append((first, first + tensor.nbytes))
        start = min(first for first, _ in ranges)
        stop = max(end for _, end in ranges)
        dense = sum(end - first for first, end in ranges) >= _LEAST_SHARE * (stop - start) > 0
        return cls(batch, batch.memory, start, stop) if dense else None

    @property
    def nbytes(self) -> int:
        """Number of bytes in the range."""
        return self.stop - self.start

    def source(self) -> torch.Tensor:
        """Returns the range as a uint8 tensor, a view on the slot."""
        return torch.from_numpy(self.memory[self.start : self.stop])

    def view_in(self, whole: torch.Tensor) -> Delivery:
        """Returns the batch with its tensors as views in a copy of the range; small tensors get memory of their own.

        Args:
            whole: Copy of the range, uint8 (at least `nbytes`,), on any device.
        """
        begin = self.memory.ctypes.data + self.start

        def view(tensor: torch.Tensor) -> torch.Tensor:
            first = tensor.data_ptr() - begin
            copy = whole[first : first + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            return copy.clone() if tensor.nbytes < _SMALL_SHARE * self.nbytes else copy

        return self.batch.replace_content(map_tensors(self.batch.content, view))


def map_tensors(batch: object, change: Callable[[torch.Tensor], torch.Tensor], *, encoded: bool = False) -> object:
    """Returns a batch of the same structure with every tensor changed, and the other objects as they are.

    A mapping whose class does not take a dict becomes a dict.

    Args:
        batch: Tensors in mappings, lists, tuples, named tuples, `Ragged` or a `Delivery`.
        change: Returns the changed tensor.
        encoded: Whether the tensors of encoded files in a `Ragged` are changed, too; for a copy they stay on the CPU.
    """
    again = partial(map_tensors, change=change, encoded=encoded)
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Delivery):
        return batch.replace_content(again(batch.content))
    if isinstance(batch, Mapping):
        changed = {key: again(value) for key, value in batch.items()}
        make: Callable[..., object] = type(batch)
        if make is dict:
            return changed
        try:
            return make(changed)
        except TypeError:
            return changed
    if isinstance(batch, Ragged) and batch.encoded and not encoded:
        return batch
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        kind: Callable[..., object] = type(batch)
        return kind(*map(again, batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(map(again, batch))
    return batch


BatchTransform = Callable[[object], object]


class Mover:
    """Copies batches to a device synchronously, and transforms them.

    Args:
        device: Target of the copies, or None for no copies.
    """

    def __init__(self, device: torch.device | None) -> None:
        self._device = device

    def move(self, source: object, transform: BatchTransform | None) -> tuple[object, Fence]:
        """Starts to copy a batch and to transform the copy, and returns the result and a fence.

        Args:
            source: The batch; it must be kept until the device has passed the fence.
            transform: Called with the copy, or None.
        """
        device = self._device
        moved = source if device is None else map_tensors(source, lambda tensor: tensor.to(device))
        return (transform(moved) if transform else moved), Fence()

    def order_after(self, batch: object, fence: Fence) -> None:
        """Makes the consumer's later work on a moved batch wait for the fence; here nothing: the copy is complete."""


class CudaMover(Mover):
    """Copies batches to a CUDA device on a separate stream, and transforms them on it; the CPU does not wait.

    A batch whose tensors are contiguous in a slot is one copy.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream = _side_stream(device)

    def move(self, source: object, transform: BatchTransform | None) -> tuple[object, Fence]:
        """See `Mover`."""
        with torch.cuda.stream(self._stream):
            found = SlotRange.find(source)
            if found is None:
                moved = map_tensors(source, lambda tensor: tensor.to(self._device, non_blocking=True))
            else:
                whole = torch.empty(found.nbytes, dtype=torch.uint8, device=self._device)
                whole.copy_(found.source(), non_blocking=True)
                moved = found.view_in(whole)
            if transform is not None:
                moved = transform(moved)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return moved, Fence(event)

    def order_after(self, batch: object, fence: Fence) -> None:
        """See `Mover`."""
        current = torch.cuda.current_stream(self._device)
        if fence.event is not None:
            current.wait_event(fence.event)

        def record(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(current)
            return tensor

        # The memory belongs to the separate stream: it must not be reused before the consumer's work is done.
        map_tensors(batch, record)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Returns the separate stream of a device, one for the process: torch's cached memory is lost with a stream.

    See timm #2781.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def mover_for(device: torch.device | None) -> Mover:
    """Returns the mover for a device, or for None one that only transforms batches."""
    return CudaMover(device) if device is not None and device.type == "cuda" else Mover(device)
