"""Registers the slots of the ring with CUDA, so that copies to the device read them directly."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Literal, Protocol

from streamer.errors import ConfigError
from streamer.loader.batch.buffers import Bytes, address
from streamer.loader.ring.fence import EventFence
from streamer.loader.ring.ring import Ring, Slot

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

_PORTABLE = 1


class CudaRuntime(Protocol):
    """The part of cudart that is used."""

    def host_register(self, address: int, nbytes: int, flags: int) -> int:
        """Returns the error code, 0 for success."""
        ...

    def host_unregister(self, address: int) -> int:
        """Returns the error code."""
        ...

    def clear_error(self) -> None:
        """Clears the last error, which would otherwise be reported by the next unrelated call."""
        ...

    def fence(self) -> torch.cuda.Event:
        """An event behind all work submitted to the current stream so far."""
        ...


class TorchCuda:
    """The CUDA runtime of torch, on the device that is current when this object is made.

    Otherwise the feeder's thread would register on device 0, and every rank would keep a context there (500 MB).
    """

    def __init__(self) -> None:
        import torch

        self._device = torch.cuda.current_device()

    def host_register(self, address: int, nbytes: int, flags: int) -> int:
        """See `CudaRuntime`."""
        import torch

        with torch.cuda.device(self._device):
            return int(torch.cuda.cudart().cudaHostRegister(address, nbytes, flags))  # type: ignore[no-untyped-call]

    def host_unregister(self, address: int) -> int:
        """See `CudaRuntime`."""
        import torch

        with torch.cuda.device(self._device):
            return int(torch.cuda.cudart().cudaHostUnregister(address))  # type: ignore[no-untyped-call]

    def clear_error(self) -> None:
        """See `CudaRuntime`."""
        import torch

        # torch does not bind cudaGetLastError; the check behind a kernel's launch calls it, and raises the error.
        try:
            torch.ones(1, device=f"cuda:{self._device}").add_(1)
        except RuntimeError as error:
            logger.debug("cleared: %s", error)

    def fence(self) -> torch.cuda.Event:
        """See `CudaRuntime`."""
        import torch

        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream())
        return event


class Pinner:
    """The registrations of one loader. Slots are registered by the feeder; the rest is called by the trainer.

    Args:
        runtime: CUDA.
        required: whether a failure is an error; otherwise it is logged once.
        fencing: the trainer gets the batches in the ring and may copy them itself; otherwise only the loader's own
            prefetcher copies them, and keeps each until its copy is complete.
    """

    def __init__(self, runtime: CudaRuntime, required: bool, fencing: bool = True) -> None:
        self.pinned = False
        self._fencing = fencing
        self._runtime = runtime
        self._required = required
        self._failed = False
        self._ring: Ring | None = None
        # Memory must not be unmapped while it is registered.
        self._registered: dict[int, Bytes] = {}
        self._lock = threading.Lock()

    @classmethod
    def for_mode(cls, mode: bool | Literal["auto"], fencing: bool = True) -> Pinner | None:
        """The pinner for `pin=`; None: do not pin.

        Raises:
            ConfigError: `pin=True` without CUDA.
        """
        if mode is False:
            return None
        import torch

        if torch.cuda.is_available():
            return cls(TorchCuda(), required=mode is True, fencing=fencing)
        if mode is True:
            raise ConfigError("pin=True, but torch finds no CUDA device", field="pin")
        return None

    def serve(self, ring: Ring) -> None:
        """Sets the ring whose slots are registered; called before its first batch."""
        self._ring = ring

    def register(self, slot: Slot) -> None:
        """Registers a slot's new memory.

        Raises:
            ConfigError: it failed, and pinning was required.
        """
        if self._failed:
            return
        lent = slot.window()
        code = self._runtime.host_register(address(lent), slot.nbytes, _PORTABLE)
        if code == 0:
            with self._lock:
                self._registered[slot.number] = lent
            self.pinned = True
            if self._ring is not None:
                self._ring.fencing = self._fencing
            return
        self._runtime.clear_error()
        self._failed = True
        message = f"cudaHostRegister of {slot.nbytes} bytes failed with code {code}"
        if self._required:
            raise ConfigError(f"pin=True: {message}; lower ring_bytes or use pin='auto'", field="pin", code=code)
        logger.warning("%s: batches are copied to the device from unpinned memory", message)

    def unregister(self, slot: Slot) -> None:
        """Unregisters the memory of a slot from which no copy is running."""
        with self._lock:
            lent = self._registered.pop(slot.number, None)
        if lent is not None:
            self._runtime.host_unregister(address(lent))

    def fence(self) -> None:
        """Called before the trainer's next batch: released slots wait for the copies begun so far."""
        if self._fencing and self.pinned and self._ring is not None:
            self._ring.fence(lambda: EventFence(self._runtime.fence()))

    def close(self) -> None:
        """Unregisters everything, after the copies that may still run."""
        with self._lock:
            if self._ring is not None:
                self._ring.wait_for_fences()
            for lent in self._registered.values():
                self._runtime.host_unregister(address(lent))
            self._registered.clear()
            self.pinned = False
