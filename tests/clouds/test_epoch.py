"""One epoch of training from each cloud's emulator: 40 samples, each once, with the bytes that were put.

What an emulator on the same machine cannot show: latency, throttling, refreshed credentials, and Google's own
authentication. Fakes and simulated links show those (tests/fault, benchmarks).
"""

from __future__ import annotations

import io
import multiprocessing.resource_tracker
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from streamer import StreamingDataLoader, StreamingDataset
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from tests.clouds.conftest import Cloud

pytestmark = pytest.mark.clouds

SAMPLES = 40
BATCH = 8


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folders of an engine that outlives the tests of this module."""
    root = tmp_path_factory.mktemp("epoch")
    settings = ClientSettings(
        cache_dir=root / "cache", runtime_dir=root / "run", cache_bytes=64 << 20, grace_seconds=0.1
    )
    multiprocessing.resource_tracker.ensure_running()
    with pytest.MonkeyPatch.context() as patch, closing(EngineClient(settings)) as client:
        patch.setenv("STREAMER_CACHE_DIR", str(root / "cache"))
        patch.setenv("STREAMER_RUNTIME_DIR", str(root / "run"))
        client.roots()
        yield root


@pytest.fixture
async def folder(cloud: Cloud, request: pytest.FixtureRequest) -> str:
    """A folder of 40 arrays in the cloud's bucket, its own for each kind of client."""
    name = f"epoch-{request.node.callspec.params['cloud']}"
    store, base = cloud.open_writer(), cloud.root if cloud.writer is None else cloud.writer[0]
    try:
        for number in range(SAMPLES):
            await store.put(f"{base}/{name}/c{number % 2}/{number:03}.npy", _array(number))
    finally:
        await store.aclose()
    return f"{cloud.root}/{name}/"


def _array(number: int) -> bytes:
    content = io.BytesIO()
    np.save(content, np.full(2000, number, np.int32))
    return content.getvalue()


def test_one_epoch(cloud: Cloud, folder: str, home: Path) -> None:
    """An epoch from a cloud's store has every sample once, whole, under its own key.

    A dataset chooses its client itself: obstore wherever the options allow, so the kinds that name s3fs or adlfs
    read by obstore too; the one of gcp-storage-emulator reads by gcsfs.
    """
    seen: list[int] = []
    dataset = StreamingDataset(folder, storage_options=cloud.options, cache_dir=home / "cache", cache_bytes=64 << 20)
    with closing(dataset), StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0) as loader:
        for batch in loader:
            assert batch["npy"].shape == (BATCH, 2000)
            assert (batch["npy"] == batch["npy"][:, :1]).all()
            assert [int(key[3:6]) for key in batch["__key__"]] == batch["npy"][:, 0].tolist()
            seen += batch["npy"][:, 0].tolist()
            del batch
    assert sorted(seen) == list(range(SAMPLES))
