"""A blocked format that is installed for the tests, and objects in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recoding.blocked_format import install


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("packages"))


@pytest.fixture(autouse=True)
def _installed(packages: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(packages)
    yield
    sys.modules.pop("blocked_format", None)
