"""Measures how long the phases of an engine's start take, for a line in its log.

`__main__.py` begins the measurement, or `lifecycle.py` and `inline.py` for engines that start in another way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from streamer.base import linux

_STAT = Path("/proc/self/stat")
# Number of the field with the start in clock ticks since the boot (proc(5)); the name before it may have spaces.
_START_FIELD = 22


class StartupTiming:
    """Measures the phases of one start, which follow each other. Used by one thread. Its str is the line for the log.

    Args:
        begun_at: beginning of the first phase, as `clock` tells it.
        clock: returns the time in seconds.

    Attributes:
        seconds: duration of each finished phase, by name.
    """

    def __init__(self, begun_at: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun = self._last = begun_at
        self.seconds: dict[str, float] = {}

    @classmethod
    def begin_with_process(cls) -> StartupTiming:
        """Begins the first phase at the start of this process, or now if there is no /proc."""
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
        """Ends the running phase, under this name, and begins the next one."""
        now = self._clock()
        self.seconds[name] = now - self._last
        self._last = now
