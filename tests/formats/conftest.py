"""What the tests of every format use."""

from __future__ import annotations

import multiprocessing.resource_tracker
import pickle
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.formats.cases import Case
from tests.formats.contract import Job


@pytest.fixture(scope="session", autouse=True)
def _resource_tracker() -> None:
    """Otherwise the first test that needs it leaves a process over."""
    multiprocessing.resource_tracker.ensure_running()


@pytest.fixture
def job(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Iterator[Job]:
    """An engine, and what is read through it."""
    with closing(Job(tmp_path, case, monkeypatch, lambda: capsys.readouterr().out)) as made:
        yield made


@pytest.fixture
def unpickling_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is unpickled while the test runs."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    if "torch" in sys.modules:
        monkeypatch.setattr(sys.modules["torch"], "load", refuse)
