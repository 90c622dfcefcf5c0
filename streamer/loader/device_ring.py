"""Batches of device memory that are used again and again: no allocator on the way, the same memory for the whole run.

A slot is taken for a copy on the side stream, lent as tensors, and dead when the last of them is gone. The training's
own stream may still read it then: only what the side stream does *after* everything that the training's stream was
given so far may write to it. Nobody blocks for that: the side stream waits for an event.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Protocol

import msgspec
import torch

from streamer.loader.fence import EventFence, Fence

# Batches of one data set differ a little in size.
_SLACK = 1.125


class DeviceMemory(Protocol):
    """Memory of a device, and the order of the work on it."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        """uint8 (nbytes,) on the device."""
        ...

    def share(self, buffer: torch.Tensor) -> tuple[torch.Tensor, object]:
        """A tensor on the same memory with a storage of its own, and an object that lives as long as its views."""
        ...

    def mark(self) -> Fence:
        """A point behind everything that the training's stream was given until now."""
        ...

    def follow(self, fence: Fence) -> None:
        """Whatever the side stream is given from now on comes after the fence."""
        ...


class _Slot(msgspec.Struct):
    """One buffer, and what must be over before it is written again."""

    buffer: torch.Tensor | None = None
    fence: Fence | None = None


class DeviceRing:
    """See above. Used by the trainer's thread; tensors may die on any.

    Args:
        slots: how many batches it holds.
        memory: of the device.
    """

    def __init__(self, slots: int, memory: DeviceMemory) -> None:
        self._memory = memory
        self._free = deque(_Slot() for _ in range(slots))
        self._dead: deque[_Slot] = deque()
        self.slots = slots

    def __repr__(self) -> str:
        return f"DeviceRing({self.slots} slots, {len(self._free)} free)"

    @property
    def free(self) -> int:
        """Slots that may be taken."""
        return len(self._free)

    def take(self, nbytes: int) -> torch.Tensor | None:
        """Memory for a batch, for the side stream to write to; None: the training holds all slots.

        Returns:
            uint8 (nbytes,). The slot is free again when it and every view of it are gone, and a fence has passed.
        """
        if not self._free:
            return None
        slot = self._free.popleft()
        if slot.fence is not None:
            self._memory.follow(slot.fence)
            slot.fence = None
        if slot.buffer is None or slot.buffer.numel() < nbytes:
            slot.buffer = None  # the old one first: both at once may not fit
            slot.buffer = self._memory.allocate(int(nbytes * _SLACK))
        lent, owner = self._memory.share(slot.buffer)
        finalizer = weakref.finalize(owner, self._dead.append, slot)
        finalizer.atexit = False
        return lent[:nbytes]

    def fence(self) -> None:
        """Before the training's next step: slots that died until now are free behind what its stream was given."""
        dead = [self._dead.popleft() for _ in range(len(self._dead))]
        if dead:
            fence = self._memory.mark()
            for slot in dead:
                slot.fence = fence
                self._free.append(slot)


class _Export:
    """A buffer for whoever asks by CUDA's array interface: torch keeps it until the storage made of it is gone."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self._buffer = buffer

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        where = self._buffer.data_ptr(), False
        return {"shape": (self._buffer.numel(),), "typestr": "|u1", "data": where, "strides": None, "version": 2}


class CudaMemory:
    """Memory of a CUDA device.

    Args:
        device: with its index.
        stream: the side stream.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._device = device
        self._stream = stream

    def allocate(self, nbytes: int) -> torch.Tensor:
        """See `DeviceMemory`; the memory belongs to the side stream."""
        with torch.cuda.stream(self._stream):
            return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def share(self, buffer: torch.Tensor) -> tuple[torch.Tensor, object]:
        """See `DeviceMemory`."""
        export = _Export(buffer)
        return torch.as_tensor(export, device=self._device), export

    def mark(self) -> Fence:
        """See `DeviceMemory`."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return EventFence(event)

    def follow(self, fence: Fence) -> None:
        """See `DeviceMemory`."""
        assert isinstance(fence, EventFence)
        self._stream.wait_event(fence.event)
