"""Wakes the feeder's thread from other threads."""

from __future__ import annotations

import os
import weakref


class Wakeup:
    """Wakes the feeder from any thread, without a lock and without blocking. Its descriptor is closed with the object.

    Attributes:
        wants_work: the feeder has an idle worker and waits for a free slot, or for space in the window.
    """

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # No `__del__`: at the interpreter's exit the names of its module may be gone.
        weakref.finalize(self, os.close, self._descriptor).atexit = False
        self.wants_work = False

    def fileno(self) -> int:
        """Readable after a signal."""
        return self._descriptor

    def signal(self) -> None:
        """Wakes the feeder."""
        os.eventfd_write(self._descriptor, 1)

    def signal_if_wanted(self) -> None:
        """Wakes the feeder if it waits for a slot or for space in the window."""
        if self.wants_work:
            self.wants_work = False
            self.signal()

    def clear(self) -> None:
        """Consumes the signal."""
        os.eventfd_read(self._descriptor)
