"""A look at the engine's counters from outside."""

from __future__ import annotations

import os
import signal

import pytest

from streamer.client.engine_client import EngineClient
from streamer.client.glance import glance
from streamer.client.settings import ClientSettings


@pytest.fixture
def settings(tmp_path):
    return ClientSettings(
        cache_dir=tmp_path / "cache", runtime_dir=tmp_path / "run", cache_bytes=8 << 20, grace_seconds=0.1
    )


def test_no_engine_is_none_and_none_is_started(settings):
    """Looking starts nothing."""
    assert glance(settings, 1.0) is None
    assert not settings.cache_dir.exists()


def test_a_running_engine_answers_and_a_stopped_one_does_not_hold_us(settings):
    """Its counters by name; None in time where it does not answer."""
    with EngineClient(settings) as client:
        pid = client._connected().welcome.pid
        found = glance(settings, 10.0)
        assert found["needs"] == 0
        os.kill(pid, signal.SIGSTOP)
        try:
            assert glance(settings, 0.05) is None
        finally:
            os.kill(pid, signal.SIGCONT)
