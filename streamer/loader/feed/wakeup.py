"""How other threads wake the feeder."""

from __future__ import annotations

import os


class Wakeup:
    """Wakes the feeder from any thread, without a lock and without waiting. Its descriptor lives as long as it does."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # The feeder has idle workers and waits for a slot, or for room in the window.
        self.wants_work = False

    def __del__(self) -> None:
        os.close(self._descriptor)

    def fileno(self) -> int:
        """Readable when it was rung."""
        return self._descriptor

    def ring(self) -> None:
        """Wakes the feeder."""
        os.eventfd_write(self._descriptor, 1)

    def wake(self) -> None:
        """Something was freed: wakes the feeder if it waits for that. Called by finalizers."""
        if self.wants_work:
            self.wants_work = False
            self.ring()

    def clear(self) -> None:
        """Heard."""
        os.eventfd_read(self._descriptor)
