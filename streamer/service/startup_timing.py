"""How long each phase of a start takes, for the log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from streamer import linux

_STAT = Path("/proc/self/stat")
# proc(5): field 22, in clock ticks since the boot; the name before it may hold spaces.
_START_FIELD = 22


class StartupTiming:
    """Consecutive timing of one start, in order. Used by one thread.

    Args:
        begun: when the first phase began, in seconds of `clock`.
        clock: in seconds; as `begun`.

    Attributes:
        seconds: of each finished phase, by name.
    """

    def __init__(self, begun: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun = self._last = begun
        self.seconds: dict[str, float] = {}

    @classmethod
    def of_process(cls) -> StartupTiming:
        """From the start of this process on; from now on where /proc is missing."""
        if not _STAT.exists():
            return cls(time.monotonic(), time.monotonic)
        begun = cls.start_ticks(_STAT.read_text()) / os.sysconf("SC_CLK_TCK")
        return cls(begun, lambda: time.clock_gettime(linux.CLOCK_BOOTTIME))

    @staticmethod
    def start_ticks(stat: str) -> int:
        """The start of a process in a line of /proc/<pid>/stat, in clock ticks since the boot."""
        return int(stat.rpartition(")")[2].split()[_START_FIELD - 3])

    def __repr__(self) -> str:
        return f"StartupTiming({self})"

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.seconds.items())
        return f"{self._last - self._begun:.2f} s ({parts})"

    def end(self, name: str) -> None:
        """The phase that began with the end of the one before is over."""
        now = self._clock()
        self.seconds[name] = now - self._last
        self._last = now
