"""A folder that changes between epochs, read through a real engine: what the next epoch has, and what is fetched."""

from __future__ import annotations

import multiprocessing.resource_tracker
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from streamer import Index, StreamingDataLoader, StreamingDataset
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.errors import ObjectChangedError

BATCH = 8
OBJECT_BYTES = 20_000


@pytest.fixture(scope="module", autouse=True)
def tracker() -> None:
    """Starts the resource tracker, which lives as long as the process."""
    multiprocessing.resource_tracker.ensure_running()


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineClient]:
    """Yields the client that keeps an engine alive."""
    settings = ClientSettings(
        cache_dir=tmp_path / "cache", runtime_dir=tmp_path / "run", cache_bytes=64 << 20, grace_seconds=0.1
    )
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    with closing(EngineClient(settings)) as client:
        client.roots()
        yield client


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a folder of 160 objects in one class, whose first bytes are their number."""
    for number in range(160):
        write(tmp_path / "data", number)
    return tmp_path / "data"


def write(folder: Path, number: int, mark: int = 0) -> None:
    """Writes an object that begins with its number."""
    path = folder / "class0" / f"{number:04}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(number.to_bytes(4, "little") + bytes([mark]) * OBJECT_BYTES)


def marks(loader: StreamingDataLoader) -> dict[int, int]:
    """Returns number and mark of every sample of an epoch."""
    found: dict[int, int] = {}
    for batch in loader:
        bodies = batch["bin"]
        for body, repeated in zip(bodies, loader.repeated, strict=True):
            number = int.from_bytes(body[:4], "little")
            assert repeated or number not in found
            found[number] = body[4]
    return found


def fetched_bytes(engine: EngineClient) -> int:
    """Returns the bytes that the engine has received for chunks so far."""
    received = engine.statistics()["store_bytes"]
    assert isinstance(received, int)
    return received


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_what_changed_between_epochs_is_in_the_next_one(engine: EngineClient, folder: Path, workers: int) -> None:
    """With on_change="refresh" an object that is added, removed or changed counts from the next epoch on.

    The rest is not fetched again.
    """
    dataset = StreamingDataset(
        folder,
        cache_dir=engine.settings.cache_dir,
        cache_bytes=64 << 20,
        decode=None,
        manifest=Index(on_change="refresh"),
    )
    with (
        closing(dataset),
        StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=_lists) as loader,
    ):
        assert marks(loader) == dict.fromkeys(range(160), 0)
        before = fetched_bytes(engine)
        write(folder, 200, mark=1)
        write(folder, 7, mark=2)
        os.unlink(folder / "class0" / "0033.bin")
        assert marks(loader) == dict.fromkeys((set(range(160)) | {200}) - {33}, 0) | {200: 1, 7: 2}
        assert fetched_bytes(engine) - before < 0.5 * before
        assert dataset.samples == 160


def test_a_change_in_mid_epoch_names_both_versions(engine: EngineClient, folder: Path) -> None:
    """An object that changes in mid-epoch raises ObjectChangedError with both versions, which are never mixed.

    Within an epoch nothing is listed again.
    """
    dataset = StreamingDataset(
        folder,
        cache_dir=engine.settings.cache_dir,
        cache_bytes=64 << 20,
        decode=None,
        manifest=Index(on_change="refresh"),
    )
    assert dataset.samples == 160
    changed = folder / "class0" / "0007.bin"
    old = changed.stat().st_mtime_ns
    write(folder, 7, mark=2)
    os.utime(changed, ns=(old + 10**9, old + 10**9))
    with (
        closing(dataset),
        StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0, collate_fn=_lists) as loader,
        pytest.raises(
            ObjectChangedError, match=f"stat:{OBJECT_BYTES + 4}:{old}.*stat:{OBJECT_BYTES + 4}:{old + 10**9}"
        ),
    ):
        marks(loader)


def _lists(samples: list[dict[str, object]]) -> dict[str, list[object]]:
    return {name: [sample[name] for sample in samples] for name in ("bin",)}
