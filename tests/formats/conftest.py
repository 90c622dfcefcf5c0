"""Fixtures of the tests of all formats: one engine in a process, jobs that read a case through it, no unpickling."""

from __future__ import annotations

import multiprocessing.resource_tracker
import pickle
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from tests.formats.cases import Case
from tests.formats.contract import Job, engine_below, find_cases


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> list[object] | None:
    """Leaves a test of the contract out of a format none of whose cases has what the test is about."""
    if hasattr(obj, "only_for") and isinstance(collector, pytest.Class) and not find_cases(collector.obj, obj):
        return []
    return None


@pytest.fixture(scope="session", autouse=True)
def _resource_tracker() -> None:
    """Starts the process that the first test that needs it would leave over."""
    multiprocessing.resource_tracker.ensure_running()


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientSettings]:
    """Starts one engine for all formats: each of its own takes half a second of CPU (2026-11-26)."""
    root = tmp_path_factory.mktemp("engine")
    settings = ClientSettings(cache_dir=root / "cache", runtime_dir=root / "run", cache_bytes=10**9)
    with EngineClient(settings) as client:
        client.roots()
        yield settings


@pytest.fixture
def job(
    case: Case,
    engine: ClientSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> Iterator[Job]:
    """Writes the files of a case, and reads them through the engine."""
    engine_below(engine.cache_dir.parent, monkeypatch)
    with closing(Job(tmp_path, case, lambda: capsys.readouterr().out)) as made:
        yield made


@pytest.fixture
def unpickling_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuses to unpickle anything while the test runs."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    if "torch" in sys.modules:
        monkeypatch.setattr(sys.modules["torch"], "load", refuse)
