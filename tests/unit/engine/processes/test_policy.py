"""How many fetch processes there are, and which of them take chunks: decisions over time; no process is started."""

from __future__ import annotations

import msgspec
import pytest

from streamer.engine.processes.policy import (
    BUSY_SECONDS,
    IDLE_SECONDS,
    REPEAT_SECONDS,
    TRIAL_SECONDS,
    Load,
    ProcessCount,
    Refusals,
    count_max_processes,
    limit_loop,
    limit_process,
)
from streamer.fetch.concurrency import FetchLimits

BUSY = Load(loop_share=0.9, process_share=0.0, fetching=True, waiting=True, idle_cores=3.0)
QUIET = Load(loop_share=0.0, process_share=0.0, fetching=False, waiting=False, idle_cores=3.0)


def after(count: ProcessCount, load: Load, running: int, seconds: float, start: float = 0.0) -> int:
    """Returns how many processes are wanted after a load of so many seconds, looked at twice a second."""
    wanted = running
    for half in range(int(2 * seconds) + 1):
        wanted = count.decide(load, running, start + half / 2)
    return wanted


@pytest.mark.parametrize(("cores", "most"), [(1, 0), (2, 0), (3, 0), (4, 1), (8, 2), (16, 4), (64, 8), (256, 8)])
def test_a_process_for_four_cores_and_none_on_small_machines(cores: int, most: int) -> None:
    """A machine has at most one fetch process for four cores, up to eight, since the other cores decode."""
    assert count_max_processes(cores) == most


def test_a_fixed_number_is_there_all_the_time() -> None:
    """A configured number of processes is wanted before the first chunk and after a long pause; 0 turns them off."""
    assert after(ProcessCount(3, 8), QUIET, 0, 0) == 3
    assert after(ProcessCount(3, 8), QUIET, 3, 2 * IDLE_SECONDS) == 3
    assert after(ProcessCount(0, 8), BUSY, 0, 100) == 0


def test_a_busy_loop_gets_a_process_after_some_seconds() -> None:
    """A busy loop gets a process only after some seconds, since the start of an epoch is over sooner."""
    assert after(ProcessCount(None, 4), BUSY, 0, BUSY_SECONDS - 0.5) == 0
    assert after(ProcessCount(None, 4), BUSY, 0, BUSY_SECONDS) == 1


@pytest.mark.parametrize(
    "change", [{"loop_share": 0.4}, {"waiting": False}, {"idle_cores": 0.9}], ids=["idle loop", "no queue", "no core"]
)
def test_no_process_without_its_reasons(change: dict[str, float]) -> None:
    """A process is started only while the loop is busy, ranges wait, and a core is idle."""
    assert after(ProcessCount(None, 4), msgspec.structs.replace(BUSY, **change), 0, 60) == 0


def test_busy_processes_get_another_one_up_to_the_most() -> None:
    """Busy processes get another one up to the maximum, though the loop is idle by then."""
    load = Load(loop_share=0.1, process_share=0.9, fetching=True, waiting=True, idle_cores=3.0)
    assert after(ProcessCount(None, 4), load, 1, BUSY_SECONDS) == 2
    assert after(ProcessCount(None, 4), load, 4, 60) == 4


def test_a_pause_in_the_load_begins_the_seconds_anew() -> None:
    """A quiet moment restarts the seconds that a loop must be busy before it gets a process."""
    count = ProcessCount(None, 4)
    assert after(count, BUSY, 0, 2) == 0
    count.decide(QUIET, 0, 2.5)
    assert after(count, BUSY, 0, 2, start=3) == 0


def test_idle_processes_end_after_a_minute() -> None:
    """Idle processes end after a minute, not before."""
    count = ProcessCount(None, 4)
    count.decide(BUSY, 2, 0.0)
    assert count.decide(QUIET, 2, IDLE_SECONDS - 1) == 2
    assert count.decide(QUIET, 2, IDLE_SECONDS) == 0


def test_refusals_leave_one_process_that_takes_chunks() -> None:
    """Refusals leave one process that takes chunks while it keeps to the limit it finds, and a trial longer."""
    refusals = Refusals()
    assert not refusals.look(1000, 10, False, False, 0.0)  # 1 % is chance
    assert refusals.look(1000, 30, False, False, 0.5)
    for second in range(1, 100):
        assert refusals.look(1000, 0, True, False, float(second))
    assert refusals.look(1000, 0, False, False, 100.0)
    assert not refusals.look(1000, 0, False, False, 99.0 + TRIAL_SECONDS)


def test_refusals_by_chance_are_not_tried_again_at_once() -> None:
    """Refusals that one process alone meets as often are chance: the others go on for a while before a new trial."""
    refusals = Refusals()
    assert refusals.look(1000, 50, False, False, 0.0)
    assert refusals.look(1000, 50, False, False, TRIAL_SECONDS - 0.5)
    assert not refusals.look(1000, 50, False, False, TRIAL_SECONDS)
    assert not refusals.look(1000, 50, False, False, TRIAL_SECONDS + REPEAT_SECONDS - 0.5)
    assert refusals.look(1000, 50, False, False, TRIAL_SECONDS + REPEAT_SECONDS)


def test_the_others_go_on_as_soon_as_chance_is_found() -> None:
    """The other processes take chunks again as soon as the single one has found that refusals are chance."""
    refusals = Refusals()
    assert refusals.look(1000, 50, False, False, 0.0)
    assert refusals.look(1000, 50, True, False, 0.5)
    assert not refusals.look(1000, 50, True, True, 1.0)
    assert not refusals.look(1000, 50, True, True, 1.5)
    assert refusals.look(1000, 300, False, False, 2.0)


def test_a_limit_that_begins_after_chance_was_found_is_tried_at_once() -> None:
    """More refusals than chance showed start a trial at once: of 100 requests chance refuses 5 to 10, a limit 30."""
    refusals = Refusals()
    assert refusals.look(1000, 50, False, False, 0.0)
    assert not refusals.look(1000, 50, False, False, TRIAL_SECONDS)
    assert not refusals.look(100, 10, False, False, TRIAL_SECONDS + 1)
    assert refusals.look(100, 30, False, False, TRIAL_SECONDS + 2)


def test_single_refusals_change_nothing() -> None:
    """A few requests change nothing: three refusals of four requests are too few to show a limit."""
    assert not Refusals().look(4, 3, False, False, 0.0)


@pytest.mark.parametrize("processes", [1, 2, 4, 8, 64])
def test_all_bounds_together_are_those_of_one_fetcher(processes: int) -> None:
    """Windows and memory of the loop and all processes are together at most one fetcher's, and each has some."""
    whole = FetchLimits(256, 1 << 30)
    parts = [limit_loop(whole, processes), *[limit_process(whole, processes, single=False)] * processes]
    assert min(part.window_max for part in parts) >= 1
    assert sum(part.memory_bytes for part in parts) <= whole.memory_bytes
    assert sum(part.window_max for part in parts) <= whole.window_max


def test_without_processes_the_loop_has_everything() -> None:
    """Without processes the loop has the whole window and memory."""
    assert limit_loop(FetchLimits(256, 1 << 30), 0) == FetchLimits(256, 1 << 30)


@pytest.mark.parametrize("processes", [1, 2, 8])
def test_a_process_alone_asks_for_as_much_as_all(processes: int) -> None:
    """A process that takes chunks alone has the window of all, and its own memory: the others still hold theirs."""
    whole = FetchLimits(256, 1 << 30)
    alone = limit_process(whole, processes, single=True)
    assert alone.window_max == limit_process(whole, 1, single=False).window_max
    assert alone.memory_bytes == limit_process(whole, processes, single=False).memory_bytes
