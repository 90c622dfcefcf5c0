"""Fences in the work of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Fence:
    """A point in the work of a device: work before it may still read memory that the host wants to reuse.

    Args:
        event: recorded on a stream of the device; None: there is nothing to wait for.
    """

    def __init__(self, event: torch.cuda.Event | None = None) -> None:
        self.event = event

    def done(self) -> bool:
        """Whether the device has passed it."""
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Blocks until the device has passed it."""
        if self.event is not None:
            self.event.synchronize()
