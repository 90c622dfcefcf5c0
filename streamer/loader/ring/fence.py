"""Points in the work of a device: what came before one may still read memory that the host wants to use again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Fence(Protocol):
    """A point in the work of a device."""

    def done(self) -> bool:
        """Whether the device has come past it."""
        ...

    def wait(self) -> None:
        """Blocks until it has."""
        ...


class EventFence:
    """A CUDA event as a fence.

    Attributes:
        event: recorded on some stream.
    """

    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def done(self) -> bool:
        """Whether its stream has come past it."""
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Blocks until it has."""
        self.event.synchronize()
