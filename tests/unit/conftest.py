"""An event loop with a given clock, for tests of what keeps time."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.steered_loop import SteeredLoop


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> SteeredLoop:
    """Makes a loop whose clock a test sets, and makes asyncio return it as the running one."""
    steered = SteeredLoop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: steered)
    return steered
