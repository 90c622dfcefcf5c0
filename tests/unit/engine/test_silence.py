"""The watch for silent consumers, on a steered clock: one that hangs is noticed, a stopped engine blames none."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from streamer.engine.engine import Engine
from streamer.engine.maintenance import SILENCE_CHECK_SECONDS, SilenceWatch
from tests.unit.steered_loop import SteeredLoop

SILENT_SECONDS = 60.0


class Session:
    """Stands for a session that waits for bytes and was last heard of when it was made; it reads nothing."""

    name, admitted = "s", True
    parts = SimpleNamespace(names=["s/0", "s/1"])
    progress = SimpleNamespace(has_requests=lambda: True)

    def __init__(self, loop: SteeredLoop) -> None:
        self._loop, self.last_message_at = loop, loop.time()

    @property
    def silent(self) -> bool:
        return self._loop.time() - self.last_message_at > SILENT_SECONDS


class House:
    """Stands for an engine with one session for which others wait: the attributes that the watch sees, and no more."""

    def __init__(self, loop: SteeredLoop) -> None:
        self.silenced: list[str] = []
        self.now = loop.time
        self.sessions = {"s": Session(loop)}
        self.policy = SimpleNamespace(silence=self.silenced.append)
        self.scheduler = SimpleNamespace(apply_evictions=lambda freed: None)
        self.wake = lambda: None


@pytest.fixture
def house(loop: SteeredLoop) -> House:
    """Makes an engine that is watched."""
    made = House(loop)
    SilenceWatch(cast(Engine, made), cast(asyncio.AbstractEventLoop, loop))
    return made


def test_a_consumer_that_hangs_is_noticed(loop: SteeredLoop, house: House) -> None:
    """A consumer that sends nothing for the silent time is silenced at the next look, and not before."""
    loop.sleep(SILENT_SECONDS - SILENCE_CHECK_SECONDS)
    assert house.silenced == []
    loop.sleep(3 * SILENCE_CHECK_SECONDS)
    assert set(house.silenced) == {"s/0", "s/1"}


def test_an_engine_that_was_stopped_blames_nobody(loop: SteeredLoop, house: House) -> None:
    """An engine that was stopped (SIGSTOP) silences no consumer for that time; each has the whole time afterwards."""
    loop.sleep(10.0)
    loop.be_away(3600.0)
    loop.sleep(SILENT_SECONDS - 10.0 - SILENCE_CHECK_SECONDS)
    assert house.silenced == []
    loop.sleep(3 * SILENCE_CHECK_SECONDS)
    assert set(house.silenced) == {"s/0", "s/1"}
