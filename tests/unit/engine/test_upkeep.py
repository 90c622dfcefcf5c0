"""A consumer that hangs is noticed; an engine that was stopped itself takes nobody for hanging."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import cast

import pytest

from streamer.engine.engine import Engine
from streamer.engine.upkeep import SILENCE_CHECK_SECONDS, Upkeep
from tests.unit.steered_loop import SteeredLoop

SILENT_SECONDS = 60.0


class NoTasks:
    """Whose tasks never run."""

    def create_task(self, work: Coroutine[object, object, None], name: str) -> SimpleNamespace:
        work.close()
        return SimpleNamespace(cancel=lambda: None)


class House:
    """What the upkeep sees of an engine with one session, for which others wait."""

    def __init__(self, loop: SteeredLoop) -> None:
        self.silenced: list[str] = []
        self.now = loop.time
        self.session = SimpleNamespace(
            name="s", admitted=True, heard_at=loop.time(), track=SimpleNamespace(has_questions=lambda: True)
        )
        self.sessions = {"s": self.session}
        self.config = SimpleNamespace(silent_seconds=SILENT_SECONDS, settle_seconds=2.0)
        self.policy = SimpleNamespace(silence=self.silenced.append, settle=lambda: None)
        self.pump = SimpleNamespace(freed=lambda freed: None)
        self.cache = self.rejects = SimpleNamespace(damaged=None)
        self.limit_changed = self.policy_holds = self.kick = lambda: None


@pytest.fixture
def house(loop: SteeredLoop) -> House:
    """An engine that is kept up."""
    made = House(loop)
    Upkeep(cast(Engine, made), cast(asyncio.TaskGroup, NoTasks()))
    return made


def test_a_consumer_that_hangs_is_noticed(loop: SteeredLoop, house: House) -> None:
    """Not before its time, and at the next look after it."""
    loop.sleep(SILENT_SECONDS - SILENCE_CHECK_SECONDS)
    assert house.silenced == []
    loop.sleep(3 * SILENCE_CHECK_SECONDS)
    assert set(house.silenced) == {"s"}


def test_an_engine_that_was_stopped_blames_nobody(loop: SteeredLoop, house: House) -> None:
    """An hour of SIGSTOP is no silence of those whose words lie in the socket; they have their time from then on."""
    loop.sleep(10.0)
    loop.be_away(3600.0)
    loop.sleep(SILENT_SECONDS - 10.0 - SILENCE_CHECK_SECONDS)
    assert house.silenced == []
    loop.sleep(3 * SILENCE_CHECK_SECONDS)
    assert set(house.silenced) == {"s"}
