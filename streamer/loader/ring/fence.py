"""Fences in the work of a device: work before a fence may still read memory that the host wants to reuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Fence(Protocol):
    """A point in the work of a device."""

    def done(self) -> bool:
        """Whether the device has passed it."""
        ...

    def wait(self) -> None:
        """Blocks until the device has passed it."""
        ...


class EventFence:
    """A CUDA event as a fence.

    Attributes:
        event: recorded on some stream.
    """

    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def done(self) -> bool:
        """Whether its stream has passed it."""
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Blocks until the device has passed it."""
        self.event.synchronize()
