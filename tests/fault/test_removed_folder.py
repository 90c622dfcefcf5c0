"""A cleaner removes the cache folder under a job, and workers that start later still find all that they need."""

from __future__ import annotations

import contextlib
import multiprocessing.resource_tracker
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamer import Annotations, Growing, MixedDataset, Packing, StreamingDataLoader, StreamingDataset
from streamer.client.held_files import HeldFiles
from streamer.formats import Video
from tests.documents import documents, write_megatron
from tests.inspection import inspect
from tests.joins.sides import parquet, vectors_of, write_left
from tests.videos import made

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(300)]

BATCH = 8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_left(folder / "left")
    parquet(folder / "right", range(240))
    for number in range(240):
        path = folder / "files" / f"{number % 3}" / f"{number:04}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.arange(number % 7 + 1, dtype=np.int64))
    write_megatron(folder / "tokens", documents(np.arange(600) % 90 + 1))
    (folder / "films").mkdir()
    for number in range(6):
        (folder / "films" / f"{number}.mp4").write_bytes(made("b_frames.mp4" if number % 2 else "open_gop.mp4"))
    rows = "".join(f"{number % 3}/{number:04}.npy,{number}\n" for number in range(240))
    (folder / "notes.csv").write_text(f"file_name,number\n{rows}")
    return folder


def plain(data: Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(data / "left", seed=3, batch_size=BATCH, **options)


def selected(data: Path, **options: Any) -> StreamingDataset:
    return plain(data, **options).select(fraction=(0.0, 0.8))


def joined(data: Path, **options: Any) -> StreamingDataset:
    right = StreamingDataset(data / "right", **{name: options[name] for name in ("cache_dir", "engine")})
    return plain(data, **options).join(right, **vectors_of("parquet"))


def annotated(data: Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(
        data / "files", seed=3, batch_size=BATCH, annotations=Annotations(data / "notes.csv"), decode=None, **options
    )


def packed(data: Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(
        data / "tokens", format="tokens", seed=3, batch_size=2, packing=Packing(length=64), **options
    )


def mixed(data: Path, **options: Any) -> MixedDataset:
    weights = {"a": 0.5, "b": 0.5}
    whole = StreamingDataset(data / "left", **options)
    members = {"a": whole.select(fraction=(0.0, 0.5)), "b": whole.select(fraction=(0.5, 1.0))}
    return MixedDataset(members, weights=weights, seed=3, batch_size=BATCH)


def growing(data: Path, **options: Any) -> StreamingDataset:
    """Rounds of fixed bytes: those of "auto" depend on what has arrived."""
    return plain(data, growing=Growing(reuse=2, epoch_samples=80, round_bytes="100KB"), **options)


def clips(data: Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(
        data / "films", format=Video(3, num_indices_between_clip_starts=6), seed=3, batch_size=BATCH, **options
    )


def remove(folder: str) -> None:
    """Removes a folder to which others write: what comes meanwhile stays."""
    shutil.rmtree(folder, ignore_errors=True)


def list_of(samples: Any) -> list[str]:
    """What a batch says of its samples, in no matter which form."""
    return [str(samples)]


@pytest.mark.leaves_over("the engine of a fork server whose workers were killed ends after the test")
@pytest.mark.parametrize("make", [plain, selected, joined, annotated, packed, mixed, growing, clips])
def test_a_removed_folder_costs_no_sample(
    data: Path, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose cache folder is removed and whose workers are killed delivers the batches of an undisturbed job.
    The workers that take their place open every file again.
    """
    multiprocessing.resource_tracker.ensure_running()
    with tempfile.TemporaryDirectory(prefix="streamer-gone-") as folder:
        monkeypatch.setenv("STREAMER_RUNTIME_DIR", f"{folder}/r")
        expected = read(make(data, cache_dir=f"{folder}/first", engine="auto"))
        found = read(make(data, cache_dir=f"{folder}/second", engine="auto"), lambda: remove(f"{folder}/second"))
    assert found == expected


@pytest.mark.leaves_over("the engine of a fork server whose workers were killed ends after the test")
def test_a_removed_folder_costs_two_ranks_no_sample(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks on one engine deliver their batches although the cache folder is removed and their workers killed."""
    multiprocessing.resource_tracker.ensure_running()
    with tempfile.TemporaryDirectory(prefix="streamer-gone-") as folder:
        monkeypatch.setenv("STREAMER_RUNTIME_DIR", f"{folder}/r")

        def read_ranks(cache: str, remove: Callable[[], object]) -> list[list[str]]:
            ranks = [
                plain(data, cache_dir=f"{folder}/{cache}", engine="auto", rank=rank, world_size=2) for rank in range(2)
            ]
            with contextlib.ExitStack() as on_exit:
                loaders = [
                    on_exit.enter_context(StreamingDataLoader(rank, num_workers=1, collate_fn=list_of))
                    for rank in ranks
                ]
                found = []
                for _ in range(2):
                    for number, batches in enumerate(zip(*loaders, strict=True)):
                        found += batches
                        if number == 3:
                            remove()
                            for loader in loaders:
                                for pid in inspect(loader).worker_pids:
                                    os.kill(pid, signal.SIGKILL)
            for rank in ranks:
                rank.close()
            return found

        expected = read_ranks("first", lambda: None)
        assert read_ranks("second", lambda: remove(f"{folder}/second")) == expected
        assert len({text for batch in expected for text in batch}) > 30


def read(dataset: Any, remove: Callable[[], object] = lambda: None) -> list[list[str]]:
    """Reads two epochs; calls `remove` in the middle of the first one and of the second one, and kills the workers."""
    found = []
    with contextlib.closing(dataset), StreamingDataLoader(dataset, num_workers=2, collate_fn=list_of) as loader:
        for _ in range(2):
            for number, batch in enumerate(loader):
                found.append(batch)
                if number == 3:
                    remove()
                    for pid in inspect(loader).worker_pids:
                        os.kill(pid, signal.SIGKILL)
    return found


@pytest.mark.leaves_over("the engine of a fork server whose workers were killed ends after the test")
def test_files_removed_while_a_worker_opens_them(data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files of a manifest that are removed while a worker opens them are written again, and the epoch completes."""
    kills = []
    removed = []
    restore = HeldFiles.restore

    def restore_and_remove(held: HeldFiles) -> None:
        restore(held)
        if kills and not removed:
            removed.extend((tmp_path / "cache/manifests").glob("*/objects-*.arrows"))
            for path in removed:
                path.unlink()

    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "r"))
    monkeypatch.setattr(HeldFiles, "restore", restore_and_remove)
    dataset = plain(data, cache_dir=tmp_path / "cache", engine="inline")
    with contextlib.closing(dataset), StreamingDataLoader(dataset, num_workers=2, collate_fn=list_of) as loader:
        for number, _ in enumerate(loader):
            if number == 3:
                kills.extend(inspect(loader).worker_pids)
                for pid in kills:
                    os.kill(pid, signal.SIGKILL)
    assert removed
