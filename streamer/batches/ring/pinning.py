"""Registers the slots of the ring with CUDA, so that copies to the device read them directly; makes fences for copies.

`loader/epoch.py` makes the pinner of a loader, and `ring.py` beside it calls it. The loader's own copies to the device
use `Fence`, too (`loader/device`).
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from streamer.batches.batch.buffers import Bytes, find_address
from streamer.batches.torch_arguments import Pin
from streamer.errors import ConfigError

if TYPE_CHECKING:
    import torch


class Fence:
    """A point in the work of a device: work before it may still read memory that the host wants to reuse.

    Args:
        event: event that was recorded on a stream of the device, or None if there is nothing to wait for.
    """

    def __init__(self, event: torch.cuda.Event | None = None) -> None:
        self.event = event

    def is_done(self) -> bool:
        """Whether the device has done all work before the fence. Does not wait."""
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Waits until the device has done all work before the fence."""
        if self.event is not None:
            self.event.synchronize()


logger = logging.getLogger(__name__)

# The flag cudaHostRegisterPortable: the memory counts as pinned for all devices.
_PORTABLE = 1


class TorchCuda:
    """The CUDA runtime of torch, on the device that is current when this object is made.

    Without naming the device, the feeder's thread would register on device 0, and every rank would keep a context there
    (500 MB).
    """

    def __init__(self) -> None:
        import torch

        self._device = torch.cuda.current_device()

    def host_register(self, address: int, nbytes: int, flags: int) -> int:
        """Registers memory by address and size in bytes; returns CUDA's error code, 0 for success."""
        import torch

        with torch.cuda.device(self._device):
            return int(torch.cuda.cudart().cudaHostRegister(address, nbytes, flags))  # type: ignore[no-untyped-call]

    def host_unregister(self, address: int) -> int:
        """Ends the registration of the memory at an address; returns CUDA's error code, 0 for success."""
        import torch

        with torch.cuda.device(self._device):
            return int(torch.cuda.cudart().cudaHostUnregister(address))  # type: ignore[no-untyped-call]

    def clear_error(self) -> None:
        """Clears the last error, which would otherwise be reported by the next unrelated call."""
        import torch

        # torch does not bind cudaGetLastError. Its check after the launch of a kernel calls it, and raises the error.
        try:
            torch.ones(1, device=f"cuda:{self._device}").add_(1)
        except RuntimeError as error:
            logger.debug("cleared: %s", error)

    def fence(self) -> torch.cuda.Event:
        """Records an event on the current stream, behind all work submitted to it so far, and returns it."""
        import torch

        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream())
        return event


class Pinner:
    """The registrations of one loader: the feeder's thread adds and removes slots, the trainer's thread does the rest.

    Args:
        runtime: CUDA.
        required: whether a failed registration is an error. If not, it is logged once, and nothing more is registered.
        fencing: whether released slots must wait for a fence, because the trainer may copy batches itself. False if
            only the loader's own prefetcher copies them, which keeps each batch until its copy is complete.

    Attributes:
        pinned: whether at least one slot has been registered.
    """

    def __init__(self, runtime: TorchCuda, required: bool, fencing: bool = True) -> None:
        self.pinned = False
        self._fencing = fencing
        self._runtime = runtime
        self._required = required
        self._failed = False
        # Memory must not be unmapped while it is registered.
        self._registered: dict[int, Bytes] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_mode(cls, mode: Pin, fencing: bool = True) -> Pinner | None:
        """Returns the pinner for `pin_memory=`, or None if memory is not pinned: for "off", and without CUDA.

        Raises:
            ConfigError: `mode` is "required", and torch finds no CUDA device.
        """
        if mode == "off":
            return None
        import torch

        if torch.cuda.is_available():
            return cls(TorchCuda(), required=mode == "required", fencing=fencing)
        if mode == "required":
            raise ConfigError("pin_memory='required', but torch finds no CUDA device", field="pin_memory")
        return None

    def register(self, slot: int, memory: Bytes) -> bool:
        """Registers the new memory of a slot; returns whether released slots must wait for a fence.

        Raises:
            ConfigError: the registration failed, and it is required.
        """
        if not self._failed:
            code = self._runtime.host_register(find_address(memory), memory.nbytes, _PORTABLE)
            if code == 0:
                with self._lock:
                    self._registered[slot] = memory
                self.pinned = True
            else:
                self._runtime.clear_error()
                self._failed = True
                message = f"cudaHostRegister of {memory.nbytes} bytes failed with code {code}"
                if self._required:
                    raise ConfigError(
                        f"pin_memory='required': {message}; lower ring_bytes or use pin_memory='auto'",
                        field="pin_memory",
                        code=code,
                    )
                logger.warning("%s: batches are copied to the device from unpinned memory", message)
        return self.pinned and self._fencing

    def unregister(self, slot: int) -> None:
        """Unregisters the memory of a slot, if it is registered. No copy from it may be running."""
        with self._lock:
            memory = self._registered.pop(slot, None)
        if memory is not None:
            self._runtime.host_unregister(find_address(memory))

    def fence(self) -> Fence:
        """Returns a fence behind the copies that the trainer has begun so far."""
        return Fence(self._runtime.fence())

    def close(self) -> None:
        """Unregisters all slots. No copy from them may be running."""
        with self._lock:
            for memory in self._registered.values():
                self._runtime.host_unregister(find_address(memory))
            self._registered.clear()
            self.pinned = False
