"""Which modules a real engine process has imported when it listens."""

from __future__ import annotations

import subprocess
import sys

import pytest

LISTED = """
import sys
import uvloop
import streamer.service.embedded
from streamer.service.lifecycle import EngineService
print(*sys.modules)
"""
# Each is wanted by some engines, and imported where it is.
LATER = [
    "fsspec",
    "streamer.store.fsspec_store",
    "streamer.indexing.build",
    "streamer.formats.detect",
    "nanoarrow",
    "diskcache",
    "sqlite3",
    "botocore",
    "aiohttp",
    "tomllib",
    "torch",
    "rich",
    "streamer.loader",
]


@pytest.fixture(scope="module")
def imported():
    """Names of the modules that a process has imported which is ready to run an engine."""
    listed = subprocess.run([sys.executable, "-c", LISTED], check=True, stdout=subprocess.PIPE, text=True)
    return set(listed.stdout.split())


@pytest.mark.process
@pytest.mark.parametrize("name", LATER)
def test_an_engine_that_starts_does_not_import(imported, name):
    """The start of an engine imports no module that only some engines use, because the first batch waits for it."""
    assert "streamer.engine.engine" in imported
    assert name not in imported
