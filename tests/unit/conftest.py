"""A loop in the hands of the test, for what keeps time."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.steered_loop import SteeredLoop


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> SteeredLoop:
    """A loop that waits for nothing."""
    steered = SteeredLoop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: steered)
    return steered
