"""While this process does not run no time passes, and an alarm that is late for that looks again before it rings."""

from __future__ import annotations

import asyncio
import time

import pytest

from streamer.fetch.presence_clock import BEAT_SECONDS, LATE_SECONDS, Alarm, PresenceClock
from tests.unit.steered_loop import SteeredLoop

MS = 0.001
UNNOTICED_SECONDS = BEAT_SECONDS + LATE_SECONDS


@pytest.fixture
def clock(loop: SteeredLoop) -> PresenceClock:
    """One that somebody listens by."""
    made = PresenceClock()
    made.begin()
    return made


def test_goes_on_as_the_loop_does(clock: PresenceClock, loop: SteeredLoop) -> None:
    """A loop that comes round in time is never absent."""
    before = clock.time()
    loop.sleep(60.0)
    assert clock.time() - before == pytest.approx(60.0)
    assert clock.absent_seconds == 0.0


@pytest.mark.parametrize("away_seconds", [1.0, 3600.0])
def test_an_absence_is_no_time(clock: PresenceClock, loop: SteeredLoop, away_seconds: float) -> None:
    """Of an absence hardly anything counts, whether it is asked before or after the beat that was missed."""
    before = clock.time()
    loop.now += away_seconds
    assert clock.time() - before <= UNNOTICED_SECONDS
    loop.be_away(0.0)
    assert 0.0 <= clock.time() - before <= UNNOTICED_SECONDS
    between = clock.time()
    loop.sleep(10.0)
    assert clock.time() - between == pytest.approx(10.0)


def test_never_goes_back(clock: PresenceClock, loop: SteeredLoop) -> None:
    """Whatever is late, and by how much."""
    times = [clock.time()]
    for i in range(200):
        loop.now += 0.007 * (i % 13)
        times.append(clock.time())
        if i % 3 == 0:
            loop.be_away(0.0)
            times.append(clock.time())
    assert times == sorted(times)
    assert clock.absent_seconds > 0.0


def test_nobody_is_woken_while_nobody_listens(clock: PresenceClock, loop: SteeredLoop) -> None:
    """The beat ends with the last listener, begins again with the next, and there is one."""
    clock.begin()
    clock.end()
    loop.sleep(1.0)
    assert len(loop.timers) == 1
    clock.end()
    loop.sleep(1.0)
    assert loop.timers == []
    before = clock.time()
    loop.sleep(30.0)
    assert clock.time() - before == pytest.approx(30.0)
    clock.begin()
    clock.begin()
    assert len(loop.timers) == 1


def test_alarm_rings_once_at_its_moment(clock: PresenceClock, loop: SteeredLoop) -> None:
    """Neither before nor a second time; a moved one at the last moment it was given; a cancelled one never."""
    rung: list[float] = []
    Alarm(clock, clock.time() + 1.0, lambda: rung.append(loop.now))
    moved = Alarm(clock, clock.time() + 1.0, lambda: rung.append(loop.now))
    moved.move(clock.time() + 2.0)
    Alarm(clock, clock.time() + 1.0, lambda: rung.append(loop.now)).cancel()
    loop.sleep(10.0)
    assert rung == pytest.approx([1001.0, 1002.0])


def test_alarm_does_not_count_an_absence(clock: PresenceClock, loop: SteeredLoop) -> None:
    """Away for twice its time it waits for the rest of it, in presence."""
    rung: list[float] = []
    Alarm(clock, clock.time() + 10.0, lambda: rung.append(loop.now))
    loop.sleep(4.0)
    loop.be_away(20.0)
    loop.sleep(20.0)
    assert rung == pytest.approx([1030.0], abs=UNNOTICED_SECONDS)


def test_alarm_looks_again_after_an_absence(clock: PresenceClock, loop: SteeredLoop) -> None:
    """Due the moment before the process was stopped: what came meanwhile is heard before it rings."""
    rung: list[float] = []
    Alarm(clock, clock.time() + 1.0, lambda: rung.append(loop.now))
    loop.sleep(1.0 - MS)
    loop.be_away(5.0)
    assert rung == []
    loop.sleep(1.0)
    assert rung == pytest.approx([1006.0 - MS + BEAT_SECONDS])


def test_alarm_rings_on_a_loop_that_is_always_late(clock: PresenceClock, loop: SteeredLoop) -> None:
    """One that comes round each quarter of a second is present for less than half of it, but present."""
    rung: list[float] = []
    Alarm(clock, clock.time() + 1.0, lambda: rung.append(loop.now))
    for _ in range(16):
        loop.be_away(0.25)
    assert len(rung) == 1


async def test_a_blocked_loop() -> None:
    """The same on a real loop, that something blocks for longer than the alarm's time."""
    clock = PresenceClock()
    rung = asyncio.Event()
    clock.begin()
    began = clock.time()
    alarm = Alarm(clock, began + 0.5, rung.set)
    time.sleep(0.7)  # noqa: ASYNC251
    await asyncio.sleep(0)
    assert not rung.is_set()
    await rung.wait()
    assert clock.time() - began >= 0.5 - 2 * MS
    assert clock.absent_seconds >= 0.5
    alarm.cancel()
    clock.end()
