"""A clock that stops while the process does not run, and its alarms; one test runs a real event loop."""

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
    """A clock with one listener."""
    made = PresenceClock()
    made.begin()
    return made


def test_goes_on_as_the_loop_does(clock: PresenceClock, loop: SteeredLoop) -> None:
    """The presence clock goes at the speed of an event loop that comes round in time."""
    before = clock.time()
    loop.sleep(60.0)
    assert clock.time() - before == pytest.approx(60.0)
    assert clock.absent_seconds == 0.0


@pytest.mark.parametrize("away_seconds", [1.0, 3600.0])
def test_an_absence_is_no_time(clock: PresenceClock, loop: SteeredLoop, away_seconds: float) -> None:
    """The presence clock hardly counts an absence, whether it is read before or after the beat that was missed."""
    before = clock.time()
    loop.now += away_seconds
    assert clock.time() - before <= UNNOTICED_SECONDS
    loop.be_away(0.0)
    assert 0.0 <= clock.time() - before <= UNNOTICED_SECONDS
    between = clock.time()
    loop.sleep(10.0)
    assert clock.time() - between == pytest.approx(10.0)


def test_never_goes_back(clock: PresenceClock, loop: SteeredLoop) -> None:
    """The presence clock never goes back, whatever is late and by how much."""
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
    """The presence clock sets one timer while it has listeners and none without, and goes on without them."""
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
    """An alarm calls once at its moment, a moved one at the moment it was moved to, and a cancelled one never."""
    rung: list[float] = []
    Alarm(clock, clock.time() + 1.0, lambda: rung.append(loop.now))
    moved = Alarm(clock, clock.time() + 1.0, lambda: rung.append(loop.now))
    moved.move(clock.time() + 2.0)
    Alarm(clock, clock.time() + 1.0, lambda: rung.append(loop.now)).cancel()
    loop.sleep(10.0)
    assert rung == pytest.approx([1001.0, 1002.0])


def test_alarm_does_not_count_an_absence(clock: PresenceClock, loop: SteeredLoop) -> None:
    """An alarm does not count an absence: it waits for the rest of its time after it."""
    rung: list[float] = []
    Alarm(clock, clock.time() + 10.0, lambda: rung.append(loop.now))
    loop.sleep(4.0)
    loop.be_away(20.0)
    loop.sleep(20.0)
    assert rung == pytest.approx([1030.0], abs=UNNOTICED_SECONDS)


def test_alarm_looks_again_after_an_absence(clock: PresenceClock, loop: SteeredLoop) -> None:
    """An alarm that became due in an absence waits for one more beat, so that what came meanwhile is read before."""
    rung: list[float] = []
    Alarm(clock, clock.time() + 1.0, lambda: rung.append(loop.now))
    loop.sleep(1.0 - MS)
    loop.be_away(5.0)
    assert rung == []
    loop.sleep(1.0)
    assert rung == pytest.approx([1006.0 - MS + BEAT_SECONDS])


def test_alarm_rings_on_a_loop_that_is_always_late(clock: PresenceClock, loop: SteeredLoop) -> None:
    """An alarm calls on an event loop that comes round only every quarter of a second."""
    rung: list[float] = []
    Alarm(clock, clock.time() + 1.0, lambda: rung.append(loop.now))
    for _ in range(16):
        loop.be_away(0.25)
    assert len(rung) == 1


async def test_a_blocked_loop() -> None:
    """On a real event loop an alarm does not count the time in which the loop was blocked."""
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
