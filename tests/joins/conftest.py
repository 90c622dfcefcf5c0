"""An engine for the tests of a module, and datasets that are closed after the test."""

from __future__ import annotations

import multiprocessing.resource_tracker
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streamer import MixedDataset, StreamingDataset
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings

Open = Callable[..., StreamingDataset]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineClient]:
    """Yields the client that keeps one engine alive for all tests of a module."""
    folder = tmp_path_factory.mktemp("engine")
    multiprocessing.resource_tracker.ensure_running()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMER_RUNTIME_DIR", str(folder / "run"))
        patch.setenv("STREAMER_CACHE_DIR", str(folder / "cache"))
        with EngineClient(ClientSettings.from_environment()) as client:
            client.roots()
            yield client


@pytest.fixture
def closing(engine: EngineClient) -> Iterator[Callable[[Any], Any]]:
    """Returns the dataset that it is given, and closes it after the test."""
    made: list[StreamingDataset | MixedDataset] = []

    def keep(dataset: Any) -> Any:
        made.append(dataset)
        return dataset

    yield keep
    while made:
        made.pop().close()
