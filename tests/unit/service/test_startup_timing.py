"""The timing of a start: phases, their sum, and the process's start by the kernel."""

from __future__ import annotations

import os
import time

from streamer.service.startup_timing import StartupTiming


def test_phases_follow_each_other() -> None:
    """Each phase of a start ends where the next begins, and their sum is the time since the first began."""
    times = iter([10.25, 10.75, 12.0])
    timing = StartupTiming(10.0, lambda: next(times))
    for name in ("interpreter", "imports", "cache"):
        timing.end(name)
    assert str(timing) == "2.00 s (interpreter 0.25, imports 0.50, cache 1.25)"
    assert repr(timing) == f"StartupTiming({timing})"


def test_a_process_knows_when_it_began() -> None:
    """The start of a process is read from the kernel: it lies between the boot and now, and is the same each time."""
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    timing = StartupTiming.begin_with_process()
    timing.end("all")
    assert 0 < timing.seconds["all"] <= before + 60
    again = StartupTiming.begin_with_process()
    again.end("all")
    assert again.seconds["all"] >= timing.seconds["all"]


def test_the_name_of_a_program_may_hold_anything() -> None:
    """The start of a process is read correctly if the name of its program contains spaces and parentheses."""
    stat = f"{os.getpid()} (a) (b c) R " + " ".join(str(number) for number in range(4, 53))
    assert StartupTiming.start_ticks(stat) == 22
