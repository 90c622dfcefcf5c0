"""Settings of an engine in the environment of the process that starts it; engines are real."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from streamer.client import launcher, store_variables
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.errors import ConfigError, EngineUnavailableError

pytestmark = pytest.mark.process


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClientSettings:
    """Settings of a client whose engine has a folder of its own."""
    launcher._warned.clear()
    monkeypatch.setenv("STREAMER_CACHE_BYTES", "32MiB")
    return ClientSettings(cache_dir=tmp_path / "cache", runtime_dir=tmp_path / "run", grace_seconds=0.1)


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """Returns the warnings that contain this text."""
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


@pytest.mark.parametrize(
    "engine", ["auto", pytest.param("inline", marks=pytest.mark.leaves_over("libuv keeps a pipe for signals"))]
)
def test_an_engine_that_a_job_starts_has_the_settings_of_its_environment(
    settings: ClientSettings, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """An engine that a job starts, in another process or in this one, has the settings of the job's environment."""
    monkeypatch.setenv("STREAMER_FETCH_PROCESSES", "1")
    with EngineClient(replace(settings, engine=engine)) as client:
        statistics = client.statistics()
        assert client.welcome.cache_bytes == 32 << 20
        assert statistics["most_fetch_processes"] == 1


def test_the_argument_counts_more(settings: ClientSettings) -> None:
    """The argument `cache_bytes` goes before the variable, as an option of `streamer serve` does."""
    with EngineClient(replace(settings, cache_bytes=16 << 20)) as client:
        assert client.welcome.cache_bytes == 16 << 20


def test_a_running_engine_without_them_is_named_once(
    settings: ClientSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A running engine that was started with other settings keeps them, and a warning names the variables once."""
    with EngineClient(settings) as first:
        first.statistics()
        store_variables._met.clear()
        monkeypatch.setenv("STREAMER_CACHE_BYTES", "64MiB")
        monkeypatch.setenv("STREAMER_FETCH_PROCESSES", "2")
        for _ in range(2):
            with EngineClient(settings) as later:
                assert later.welcome.cache_bytes == 32 << 20
    (line,) = lines(caplog, "other values")
    assert "other values of STREAMER_CACHE_BYTES, STREAMER_FETCH_PROCESSES, and keeps them" in line


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("STREAMER_PEERS", "dns:engines:7070", "STREAMER_PEERS is a setting of `streamer serve`"),
        ("STREAMER_HTTP", "0.0.0.0:80", "set STREAMER_ENGINE to unix:"),
        ("STREAMER_FETCH_PROCESSES", "many", "fetch_processes='many' is not a whole number"),
        ("STREAMER_MEMORY_BYTES", "1 parsec", "memory_bytes='1 parsec' is not a size"),
    ],
)
def test_a_setting_that_cannot_take_effect_is_an_error(
    settings: ClientSettings, monkeypatch: pytest.MonkeyPatch, name: str, text: str, named: str
) -> None:
    """A setting of an engine that is wrong, or that a job's engine cannot use, is an error at its start."""
    monkeypatch.setenv(name, text)
    with EngineClient(settings) as client, pytest.raises(ConfigError, match=named):
        client.statistics()


def test_settings_that_a_service_does_not_take_are_named_once(
    tmp_path: Path, settings: ClientSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Variables of an engine that have no effect on a service, and misspelt ones, are named once in a warning."""
    monkeypatch.setenv("STREAMER_PEERS", "off")
    monkeypatch.setenv("STREAMER_CACHE_BYTE", "1GB")
    absent = replace(settings, engine=f"unix:{tmp_path}/s", connect_seconds=0.01)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with EngineClient(absent) as client, pytest.raises(EngineUnavailableError, match="no engine answers at"):
                client.statistics()
    (without_effect,) = lines(caplog, "has no effect here")
    assert without_effect.startswith("STREAMER_CACHE_BYTES has no effect here: the engine at")
    (misspelt,) = lines(caplog, "is not a setting")
    assert misspelt.startswith("STREAMER_CACHE_BYTE is not a setting; there are")
