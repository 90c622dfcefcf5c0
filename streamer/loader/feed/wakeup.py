"""Wakes the feeder's thread from other threads."""

from __future__ import annotations

from streamer.base import linux


class Wakeup(linux.Wakeup):
    """Wakes the feeder.

    Attributes:
        wants_work: the feeder has an idle worker and waits for a free slot, or for space in the window.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wants_work = False

    def signal_if_wanted(self) -> None:
        """Wakes the feeder if it waits for a slot or for space in the window."""
        if self.wants_work:
            self.wants_work = False
            self.signal()
