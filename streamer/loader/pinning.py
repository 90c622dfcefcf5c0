"""Registers the ring with CUDA, so that copies to the device read it directly; without CUDA, or if it fails, not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, Protocol

from streamer.errors import ConfigError
from streamer.loader.fence import EventFence
from streamer.loader.ring import Ring

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

# One call fails from 512 GiB on, and holds the memory map's lock meanwhile: 0.1 s per GB (vLLM #51081).
PIECE_BYTES = 1 << 30
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
        """Takes the last error away, or it is reported by the next call of somebody else."""
        ...

    def fence(self) -> torch.cuda.Event:
        """An event behind everything that the current stream was given until now."""
        ...


class TorchCuda:
    """The runtime that torch brings, on the device that is current where this is made.

    The feeder's thread would otherwise register on device 0, and so make every rank keep a context there (500 MB).
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

        # torch does not bind cudaGetLastError; the check behind a kernel's launch calls it, and raises what it finds.
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


def pieces(shape_slots: int, slot_bytes: int, piece_bytes: int = PIECE_BYTES) -> Iterator[tuple[int, int]]:
    """Cuts a ring into (offset, length), whole slots each: a copy must not span two registrations."""
    per_piece = max(1, piece_bytes // slot_bytes)
    for first in range(0, shape_slots, per_piece):
        count = min(per_piece, shape_slots - first)
        yield first * slot_bytes, count * slot_bytes


class Pinner:
    """The registrations of one loader. `register` is called by the feeder, the rest by the trainer.

    Args:
        runtime: CUDA.
        required: an error where registering fails; otherwise one warning.
        fencing: the trainer sees the ring's batches and may copy them itself; otherwise only the loader's own
            prefetcher does, which keeps each until its copy is over.
    """

    def __init__(self, runtime: CudaRuntime, required: bool, fencing: bool = True) -> None:
        self.pinned = False
        self._fencing = fencing
        self._runtime = runtime
        self._required = required
        self._failed = False
        # Memory must not be unmapped while it is registered: rings are held until `close`.
        self._rings: list[Ring] = []
        self._addresses: list[int] = []
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

    def register(self, ring: Ring) -> None:
        """Registers a new ring.

        Raises:
            ConfigError: it failed, and pinning was required.
        """
        if self._failed:
            return
        code = self._register_pieces(ring)
        if code == 0:
            self.pinned, ring.fencing = True, self._fencing
            return
        self._failed = True
        message = f"cudaHostRegister of {ring.shape.nbytes} bytes failed with code {code}"
        if self._required:
            raise ConfigError(f"pin=True: {message}; lower ring_bytes or use pin='auto'", field="pin", code=code)
        logger.warning("%s: batches are copied to the device from unpinned memory", message)

    def fence(self) -> None:
        """Before the trainer's next batch: slots that died wait for the copies begun until now."""
        for ring in self._rings if self._fencing else ():
            ring.fence(lambda: EventFence(self._runtime.fence()))

    def close(self) -> None:
        """Unregisters everything, after the copies that may still run."""
        with self._lock:
            for ring in self._rings:
                ring.wait_for_fences()
            for address in self._addresses:
                self._runtime.host_unregister(address)
            self._addresses.clear()
            self._rings.clear()
            self.pinned = False

    def _register_pieces(self, ring: Ring) -> int:
        base = ring.address
        done: list[int] = []
        for offset, length in pieces(ring.shape.slots, ring.shape.slot_bytes):
            code = self._runtime.host_register(base + offset, length, _PORTABLE)
            if code != 0:
                self._runtime.clear_error()
                for address in done:
                    self._runtime.host_unregister(address)
                return code
            done.append(base + offset)
        with self._lock:
            self._addresses += done
            self._rings.append(ring)
        return 0
