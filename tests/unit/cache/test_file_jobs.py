"""Threads that a cancel waits for, and turns on keys."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streamer.cache.file_jobs import KeyLocks, in_thread, unlink_all


async def test_a_cancel_waits_for_the_thread() -> None:
    """However often it is cancelled: the work is over when the caller goes on."""
    started, go_on, over = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(started.set)
        go_on.wait()
        over.set()

    with ThreadPoolExecutor(1) as pool:
        task = asyncio.create_task(in_thread(pool, work))
        await started.wait()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert over.is_set()


async def test_errors_and_results_come_through() -> None:
    """As if it had been called here."""
    with ThreadPoolExecutor(1) as pool:
        assert await in_thread(pool, divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await in_thread(pool, divmod, 7, 0)


async def test_turns_are_taken_in_order_and_given_back() -> None:
    """A key is held by one at a time; other keys do not wait; repeated keys are one."""
    turns = KeyLocks()
    seen: list[str] = []

    async def hold(name: str, keys: list[bytes]) -> None:
        async with turns.hold(keys):
            seen.append(f"+{name}")
            await asyncio.sleep(0)
            seen.append(f"-{name}")

    await asyncio.gather(hold("a", [b"1", b"1"]), hold("b", [b"1", b"2"]), hold("c", [b"3"]))
    assert seen.index("+b") > seen.index("-a")
    assert seen.index("+c") < seen.index("-a")
    assert "0 keys busy" in repr(turns)


async def test_a_turn_ends_with_an_error() -> None:
    """The next one gets it."""
    turns = KeyLocks()
    with pytest.raises(KeyError):
        async with turns.hold([b"1"]):
            raise KeyError
    async with turns.hold([b"1"]) as done:
        assert not done.is_set()
    assert done.is_set()


def test_files_that_cannot_be_unlinked_are_noted(tmp_path: Path) -> None:
    """The others go; one that is gone already is no failure."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    failed: dict[bytes, OSError] = {}
    unlink_all({b"f": tmp_path / "file", b"d": tmp_path / "folder", b"n": tmp_path / "none"}, failed)
    assert list(failed) == [b"d"]
    assert not (tmp_path / "file").exists()
