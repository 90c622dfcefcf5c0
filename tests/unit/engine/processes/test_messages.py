"""Tests of the messages between an engine and its fetch processes, encoded and decoded."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from streamer.cache.folder import Permissions
from streamer.config import FetchConfig
from streamer.engine.processes.messages import Setup, decode_to_process, encode


def make_other_config() -> FetchConfig:
    """Returns settings none of which is the default: numbers are derived, a field of another type is named here."""
    defaults = FetchConfig()
    numbers = {
        each.name: value + 1
        for each in fields(FetchConfig)
        if isinstance(value := getattr(defaults, each.name), int | float) and not isinstance(value, bool)
    }
    return replace(defaults, client="obstore", hedge=not defaults.hedge, memory_bytes=1 << 20, **numbers)


def test_a_fetch_process_gets_all_settings_of_the_fetcher() -> None:
    """A setup that is encoded and decoded has each setting of the engine's fetcher, and its environment as bytes."""
    fetch = make_other_config()
    defaults = FetchConfig()
    unchanged = [each.name for each in fields(fetch) if getattr(fetch, each.name) == getattr(defaults, each.name)]
    assert unchanged == []
    setup = Setup({b"A": b"\xff"}, "/cache", "id", Permissions(0o700, 0o600, None), fetch, True)
    found = decode_to_process(encode(setup))
    assert isinstance(found, Setup)
    assert found.fetch == fetch
    assert found.environment == {b"A": b"\xff"}
    assert found.open_folder().path == Path("/cache")
