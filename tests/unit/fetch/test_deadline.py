"""Deadlines that cancel the wait of their own task, and cancellations by other tasks."""

from __future__ import annotations

import asyncio

import pytest

from streamer.fetch.presence_clock import PresenceClock, TaskDeadline

MS = 0.001


async def _waits(deadline: TaskDeadline) -> str:
    """Waits for an hour and returns whether the deadline ended the wait."""
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        if deadline.take_back():
            return "late"
        raise
    finally:
        deadline.cancel()
    return "in time"


def _in(seconds: float) -> TaskDeadline:
    """Makes a deadline so many seconds from now."""
    clock = PresenceClock()
    return TaskDeadline(clock, clock.time() + seconds)


async def test_time_is_up() -> None:
    """A deadline ends the wait of its task, which goes on as if it had never been cancelled."""
    assert await _waits(_in(MS)) == "late"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_moved_to_an_earlier_time() -> None:
    """A deadline that is moved to an earlier time ends the wait then."""
    deadline = _in(3600)
    deadline.move(asyncio.get_running_loop().time() + MS)
    assert await _waits(deadline) == "late"


async def test_closed_before_its_time() -> None:
    """A deadline that is cancelled before its time does not expire."""
    deadline = _in(MS)
    deadline.cancel()
    await asyncio.sleep(3 * MS)
    assert not deadline.expired


@pytest.mark.parametrize("also_late", [False, True])
async def test_cancellation_by_somebody_else_stays_one(also_late: bool) -> None:
    """A cancellation by another task stays a cancellation, even if the deadline expires at the same moment."""
    made: list[TaskDeadline] = []

    async def work() -> str:
        made.append(_in(3600))
        return await _waits(made[0])

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    if also_late:
        made[0]._expire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_move_after_the_end_does_nothing() -> None:
    """Moving a deadline that has expired does nothing, because its timer would cancel a later wait."""
    deadline = _in(3600)
    task = asyncio.current_task()
    assert task is not None
    deadline._expire()
    deadline.move(asyncio.get_running_loop().time())
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    assert deadline.take_back()
    await asyncio.sleep(2 * MS)


async def test_more_time_is_given_as_long_as_it_is_asked_for() -> None:
    """A deadline asks for more time each time it expires, and ends the wait at the first answer of 0."""
    clock, answers = PresenceClock(), [0.001, 0.001, 0.0]
    deadline = TaskDeadline(clock, clock.time(), lambda: answers.pop(0))
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(3600)
    assert deadline.take_back()
    assert answers == []
