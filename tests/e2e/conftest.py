"""An engine for the tests of one module, and data sets that are closed after the test."""

from __future__ import annotations

import multiprocessing.resource_tracker
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamer import StreamingDataset


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
def closing() -> Iterator[Callable[[StreamingDataset], StreamingDataset]]:
    """Hands a data set back, and closes it after the test."""
    made: list[StreamingDataset] = []

    def take(dataset: StreamingDataset) -> StreamingDataset:
        made.append(dataset)
        return dataset

    yield take
    while made:
        made.pop().close()
