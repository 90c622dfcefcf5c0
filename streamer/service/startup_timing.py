"""Durations of the phases of a start, for the log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from streamer.base import linux

_STAT = Path("/proc/self/stat")
# proc(5): field 22, in clock ticks since the boot; the name before it may contain spaces.
_START_FIELD = 22


class StartupTiming:
    """The phases of one start, in order. Used by one thread.

    Args:
        begun_at: beginning of the first phase, in seconds of `clock`.
        clock: a clock in seconds, the one of `begun_at`.

    Attributes:
        seconds: duration of each finished phase, by name.
    """

    def __init__(self, begun_at: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun = self._last = begun_at
        self.seconds: dict[str, float] = {}

    @classmethod
    def begin_with_process(cls) -> StartupTiming:
        """Begins with the start of this process, or now if there is no /proc."""
        if not _STAT.exists():
            return cls(time.monotonic(), time.monotonic)
        begun = cls.start_ticks(_STAT.read_text()) / os.sysconf("SC_CLK_TCK")
        return cls(begun, lambda: time.clock_gettime(linux.CLOCK_BOOTTIME))

    @staticmethod
    def start_ticks(stat: str) -> int:
        """Returns the start of a process in clock ticks since the boot, from a line of /proc/<pid>/stat."""
        return int(stat.rpartition(")")[2].split()[_START_FIELD - 3])

    def __repr__(self) -> str:
        return f"StartupTiming({self})"

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.seconds.items())
        return f"{self._last - self._begun:.2f} s ({parts})"

    def end(self, name: str) -> None:
        """Ends the phase that began with the end of the one before."""
        now = self._clock()
        self.seconds[name] = now - self._last
        self._last = now
