"""Fixtures of the end-to-end tests: an engine for a module, datasets closed after a test, a busy machine's delays."""

from __future__ import annotations

import multiprocessing.resource_tracker
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamer import StreamingDataset

# What the engine's imports take on two quiet cores (0.25 to 0.30 s, 2026-11-20).
QUIET_START_SECONDS = 0.3
NAP_SECONDS = 0.01


class Withheld(threading.Thread):
    """Measures for how long a busy machine does not run this process, so that timing tests judge the program alone.

    The thread sleeps for short intervals and counts by how much it overslept: the machine stood still, or had no free
    core.

    Attributes:
        seconds: Time withheld in all, so far.
    """

    def __init__(self) -> None:
        super().__init__(name="withheld")
        self.seconds = 0.0
        self._end = threading.Event()

    def run(self) -> None:
        while True:
            begun = time.monotonic()
            if self._end.wait(NAP_SECONDS):
                return
            self.seconds += max(0.0, time.monotonic() - begun - 2 * NAP_SECONDS)

    def stop(self) -> None:
        self._end.set()
        self.join()

    @staticmethod
    def slow_start_seconds() -> float:
        """Returns by how much longer a bare start of the engine's program takes now than on a quiet machine."""
        begun = time.monotonic()
        subprocess.run([sys.executable, "-c", "import uvloop, streamer.service.lifecycle"], check=True)
        return max(0.0, time.monotonic() - begun - QUIET_START_SECONDS)


@pytest.fixture
def withheld() -> Iterator[Withheld]:
    """Counts the time that the machine withholds while the test runs."""
    thread = Withheld()
    thread.start()
    yield thread
    thread.stop()


@pytest.fixture(scope="module")
def standing_engine() -> Iterator[Callable[[Path], None]]:
    """Starts, for the data of a folder, an engine that outlives the tests of this module."""
    held: list[StreamingDataset] = []
    with pytest.MonkeyPatch.context() as patch:

        def start(data: Path) -> None:
            patch.setenv("STREAMER_CACHE_DIR", str(data.parent / "cache"))
            patch.setenv("STREAMER_RUNTIME_DIR", str(data.parent / "run"))
            # Otherwise the first test that needs it leaves a process over.
            multiprocessing.resource_tracker.ensure_running()
            held.append(StreamingDataset(data, cache_bytes="1GB"))
            len(held[-1])

        yield start
        for dataset in held:
            dataset.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Returns the folder for the documents' pictures: that of `make pictures`, else one that goes with the test."""
    folder = Path(os.environ.get("PICTURES") or tmp_path / "pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def service_folder() -> Iterator[Path]:
    """Yields the folder of a service of which there is a picture, in which its paths are read."""
    with tempfile.TemporaryDirectory(prefix="streamer-") as folder:
        yield Path(folder)


@pytest.fixture
def closing() -> Iterator[Callable[[StreamingDataset], StreamingDataset]]:
    """Returns the dataset that it is given, and closes it after the test."""
    made: list[StreamingDataset] = []

    def take(dataset: StreamingDataset) -> StreamingDataset:
        made.append(dataset)
        return dataset

    yield take
    while made:
        made.pop().close()
