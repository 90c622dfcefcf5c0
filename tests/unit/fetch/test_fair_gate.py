"""The gate of reservations: its limit, order, shares, rate and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from streamer.fetch.fair_gate import FairGate, WaitQueue


def line(due: float = 0.0) -> WaitQueue:
    """Makes a queue with a fixed due time."""
    return WaitQueue(lambda: due)


async def settle() -> None:
    """Lets every task run to its next wait."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_grants_up_to_the_limit() -> None:
    """The gate grants reservations up to its limit, and the next one waits until one is released."""
    gate = FairGate(2)
    await gate.acquire(line())
    await gate.acquire(line())
    async with asyncio.TaskGroup() as group:
        third = group.create_task(gate.acquire(line()))
        await settle()
        assert (third.done(), gate.used, gate.waiting, gate.contended) == (False, 2, 1, True)
        gate.release()
    assert (gate.used, gate.waiting, gate.contended, gate.peak) == (2, 0, False, 2)


async def test_amount_above_the_limit_is_granted_alone() -> None:
    """A reservation above the limit is granted when nothing else is reserved, so that a large read can move."""
    gate = FairGate(10)
    await gate.acquire(line(), 3)
    async with asyncio.TaskGroup() as group:
        large = group.create_task(gate.acquire(line(), 50))
        await settle()
        assert not large.done()
        gate.release(3)
    assert gate.used == 50


async def test_nobody_overtakes_the_first() -> None:
    """A small reservation that would fit waits behind a large one that is due earlier."""
    gate = FairGate(10)
    await gate.acquire(line(), 6)
    order: list[str] = []

    async def take(name: str, due: float, amount: int) -> None:
        await gate.acquire(line(due), amount)
        order.append(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(take("small and late", 2.0, 1))
        group.create_task(take("large and early", 1.0, 8))
        await settle()
        # The late one came first and nobody waited: it was granted. From here on nobody passes the large one.
        group.create_task(take("smaller and later", 3.0, 1))
        await settle()
        assert order == ["small and late"]
        gate.release(6)
    assert order == ["small and late", "large and early", "smaller and later"]


async def test_due_time_may_change_while_waiting() -> None:
    """Reservations are granted by the due times at the moment of the grant, and within a queue first in, first out."""
    gate = FairGate(1)
    due = {"a": 1.0, "b": 2.0}
    lines = {name: WaitQueue(lambda name=name: due[name]) for name in due}  # type: ignore[misc]
    order: list[str] = []

    async def take(name: str, number: int) -> None:
        await gate.acquire(lines[name])
        order.append(f"{name}{number}")
        gate.release()

    await gate.acquire(line())
    async with asyncio.TaskGroup() as group:
        for name, number in (("a", 1), ("b", 1), ("b", 2)):
            group.create_task(take(name, number))
        await settle()
        due["b"] = 0.0
        gate.release()
    assert order == ["b1", "b2", "a1"]


async def test_cancelled_waiter_holds_nothing() -> None:
    """A waiter that is cancelled before or with its grant holds nothing, and the next one is granted."""
    gate = FairGate(1)
    await gate.acquire(line())
    async with asyncio.TaskGroup() as group:
        early, granted, last = (group.create_task(gate.acquire(line(i))) for i in range(3))
        await settle()
        early.cancel()
        await settle()
        gate.release()  # grants, and before the task runs again:
        granted.cancel()
    assert last.done()
    assert not last.cancelled()
    gate.release()
    assert (gate.used, gate.waiting) == (0, 0)


async def test_all_waiters_cancelled_at_once() -> None:
    """All waiters of a queue may be cancelled at once; the first to leave removed the others, which then failed."""
    gate = FairGate(1)
    await gate.acquire(line())
    shared = line()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(gate.acquire(shared)) for _ in range(4)]
        await settle()
        for task in tasks:
            task.cancel()
    gate.release()
    assert (gate.used, gate.waiting, all(task.cancelled() for task in tasks)) == (0, 0, True)


async def test_resize_grants_at_once() -> None:
    """A larger limit grants waiting reservations at once; a smaller one takes none back."""
    gate = FairGate(1)
    await gate.acquire(line())
    async with asyncio.TaskGroup() as group:
        group.create_task(gate.acquire(line()))
        await settle()
        gate.resize(2)
    gate.resize(1)
    assert gate.used == 2


async def test_closed_gate_opens_by_itself() -> None:
    """A gate that is closed until a time, as by Retry-After, grants nothing before it and then opens by itself."""
    gate, loop = FairGate(4), asyncio.get_running_loop()
    until = loop.time() + 0.02
    gate.close_until(until)
    await gate.acquire(line())
    assert loop.time() >= until - 0.002  # the clock's resolution
    assert gate.used == 1


async def test_many_lines_are_read_less_often() -> None:
    """Cancelling 50 of 200 waiting queues reads few due times; a larger limit then grants all the rest."""
    gate = FairGate(1)
    reads = 0

    def due() -> float:
        nonlocal reads
        reads += 1
        return 0.0

    await gate.acquire(line())
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(gate.acquire(WaitQueue(due))) for _ in range(200)]
        await settle()
        before = reads
        for task in tasks[:50]:
            task.cancel()
        await settle()
        assert reads - before <= 50 * 200
        gate.resize(1000)
    assert gate.used == 151


@pytest.mark.parametrize("amount", [1, 5])
async def test_force_ignores_the_limit(amount: int) -> None:
    """A forced reservation, as for a duplicate request, ignores the limit of the gate."""
    gate = FairGate(1)
    await gate.acquire(line())
    gate.force(amount)
    assert gate.used == 1 + amount


async def grants(gate: FairGate, wanted: list[tuple[str, float]], count: int) -> list[str]:
    """Returns the owners of the next grants of one each; `wanted` are owners and due times behind a full gate."""
    order: list[str] = []

    async def take(owner: str, due: float) -> None:
        await gate.acquire(WaitQueue(lambda: due, lambda: owner))
        order.append(owner)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(take(owner, due)) for owner, due in wanted]
        await settle()
        for _ in range(count):
            gate.release(owner="greedy")
            await settle()
        for task in tasks:
            task.cancel()
    return order


async def full_of(gate: FairGate, owner: str) -> None:
    """Reserves all of the gate for `owner`."""
    for _ in range(gate.limit):
        assert await gate.acquire(WaitQueue(lambda: 0.0, lambda: owner)) == owner


async def test_who_holds_less_than_its_share_comes_first() -> None:
    """An owner that holds less than its share is granted before one that holds more, even if it is due later."""
    gate = FairGate(4)
    await full_of(gate, "greedy")
    wanted = [("greedy", 0.0)] * 6 + [("modest", 9.0)] * 3
    assert await grants(gate, wanted, 3) == ["modest", "modest", "greedy"]


async def test_what_others_do_not_want_is_not_kept_free() -> None:
    """An owner takes everything that the other owners do not want."""
    gate = FairGate(4)
    await full_of(gate, "greedy")
    assert await grants(gate, [("greedy", 0.0)] * 4 + [("modest", 9.0)], 4) == ["modest", *["greedy"] * 3]
    assert gate.used == 4


async def test_shares_end_at_zero() -> None:
    """An owner that was cancelled in the turn of its grant, or has released, holds no share."""
    gate = FairGate(1)
    await full_of(gate, "a")
    waiting = asyncio.create_task(gate.acquire(WaitQueue(lambda: 0.0, lambda: "b")))
    await settle()
    gate.release(owner="a")
    waiting.cancel()
    await settle()
    assert (gate.used, dict(gate._held)) == (0, {})


class ScriptedLoop:
    """Stands for an event loop whose clock and timers the test moves.

    Args:
        loop: makes the futures.

    Attributes:
        times: what the next looks at the clock return; the last one stays.
        timers: what is to be called.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.create_future = loop.create_future
        self.times = [0.0]
        self.timers: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.times.pop(0) if len(self.times) > 1 else self.times[0]

    def call_at(self, when: float, callback: Callable[[], None]) -> object:
        self.timers.append(callback)
        return callback


async def test_a_timer_that_is_early_is_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer that fires early is set again, even if the moment passes between two reads of the clock.

    Waiters were left for ever (2026-11-23).
    """
    loop = ScriptedLoop(asyncio.get_running_loop())
    gate, queue = FairGate(4), line()
    gate.per_second = 10.0
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "get_running_loop", lambda: loop)
        gate.release(owner=await gate.acquire(queue))
    async with asyncio.TaskGroup() as group:
        second = group.create_task(gate.acquire(queue))
        await settle()
        loop.times = [0.0999, 0.1001]
        while loop.timers:
            loop.timers.pop()()
        await settle()
        assert second.done()
