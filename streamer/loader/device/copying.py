"""Copies tensors to a device: synchronously, or on a side stream, a whole slot in one copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from streamer.batches.ring.pinning import Fence
from streamer.loader.device.contiguous import Packed, map_tensors

BatchTransform = Callable[[object], object]


class Mover:
    """Copies batches to a device without streams, synchronously; to None: transforms them only."""

    def __init__(self, device: torch.device | None) -> None:
        self._device = device

    def move(self, source: object, transform: BatchTransform | None) -> tuple[object, Fence]:
        """Starts the copies, and the transform after them; the source must be kept until the fence has passed."""
        device = self._device
        moved = source if device is None else map_tensors(source, lambda tensor: tensor.to(device))
        return (transform(moved) if transform else moved), Fence()

    def order_after(self, batch: object, fence: Fence) -> None:
        """Orders the consumer's work on the batch after the fence."""


class CudaMover(Mover):
    """Copies on a side stream, in one copy for a batch whose tensors are contiguous in a slot."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream = _side_stream(device)

    def move(self, source: object, transform: BatchTransform | None) -> tuple[object, Fence]:
        """See `Mover`."""
        with torch.cuda.stream(self._stream):
            moved = self._copied(source)
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
        # The memory belongs to the side stream: it must not be reused before the consumer's work is done.
        map_tensors(batch, lambda tensor: _record(tensor, current))

    def _copied(self, batch: object) -> object:
        packed = Packed.of(batch)
        if packed is None:
            return map_tensors(batch, lambda tensor: tensor.to(self._device, non_blocking=True))
        whole = torch.empty(packed.nbytes, dtype=torch.uint8, device=self._device)
        whole.copy_(packed.source(), non_blocking=True)
        return packed.on(whole)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Returns the stream of this process: memory that torch caches for a stream is lost with it (timm #2781)."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _record(tensor: torch.Tensor, stream: torch.cuda.Stream) -> torch.Tensor:
    tensor.record_stream(stream)
    return tensor


def mover_for(device: torch.device | None) -> Mover:
    """Returns the mover for a device, or None if batches stay on the CPU."""
    return CudaMover(device) if device is not None and device.type == "cuda" else Mover(device)
