"""Packs beside other packages, which are the real ones: read by webdataset, written, indexed and measured on Dask."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import streamer
from streamer.cli.main import main
from streamer.manifest.table import Manifest
from tests.documents import documents, lengths, write_megatron


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Returns 200 files of up to 4 kB in two class folders; one name is longer than a tar header can hold."""
    numbers = np.random.default_rng(1)
    for number in range(200):
        name = f"{number:03d}" if number != 7 else "long-" * 40
        path = tmp_path / "raw" / "ab"[number % 2] / f"{name}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(numbers.bytes(20 * number))
    return tmp_path / "raw"


@pytest.mark.leaves_over("webdataset's reader closes its last file when it is collected")
@pytest.mark.filterwarnings("ignore")
def test_webdataset_reads_what_was_packed(files: Path, tmp_path: Path) -> None:
    """webdataset reads the keys and bytes of every sample that was packed."""
    webdataset = pytest.importorskip("webdataset")
    packed = streamer.pack(files, tmp_path / "tars", shard_bytes="200kB", executor="processes:1")
    urls = sorted(map(str, (tmp_path / "tars").glob("*.tar")))
    read = {
        sample["__key__"]: {name: value for name, value in sample.items() if not name.startswith("__")}
        for sample in webdataset.WebDataset(urls, shardshuffle=False)
    }
    assert len(urls) == packed.shards > 1
    assert read == {
        f"{path.parent.name}/{path.stem}": {"bin": path.read_bytes(), "cls": b"%d" % (path.parent.name == "b")}
        for path in files.rglob("*.bin")
    }


@pytest.fixture
def cluster() -> Iterator[object]:
    """Runs a Dask cluster of two processes on this machine."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as found:
        yield found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.leaves_over("Dask's threads and event loops live as long as the process")
@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_writes_the_same(files: Path, tmp_path: Path, cluster: object) -> None:
    """A Dask cluster packs the bytes that processes pack, although one of its workers is killed in the middle."""
    address = cluster.scheduler_address  # type: ignore[attr-defined]
    streamer.pack(files, tmp_path / "here", shard_bytes="50kB", executor="processes:2")
    ended = threading.Event()

    def end_worker() -> None:
        while not list((tmp_path / "there").glob("*.tar")):
            time.sleep(0.01)
        os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)  # type: ignore[attr-defined]
        ended.set()

    thread = threading.Thread(target=end_worker)
    thread.start()
    packed = streamer.pack(files, tmp_path / "there", shard_bytes="50kB", executor=f"dask:{address}")
    thread.join()
    assert ended.is_set()
    assert packed.samples == 200
    indexed = ["index", f"{tmp_path}/there/", "--out", f"{tmp_path}/manifest", "--executor", f"dask:{address}"]
    assert main(indexed) == 0
    assert Manifest.open(tmp_path / "manifest").digest == packed.digest
    here, there = ({p.name: p.read_bytes() for p in (tmp_path / name).glob("*.tar")} for name in ("here", "there"))
    assert here == there


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.leaves_over("Dask's threads and event loops live as long as the process, and the engine for a while")
@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_counts_the_same(tmp_path: Path, cluster: object) -> None:
    """Lengths measured on Dask, on processes and on one process are one file; `resume_from` counts new samples only."""
    given = documents(lengths(2000, 64))
    old = [write_megatron(tmp_path / "old", given[:1500], 5)]
    grown = [*old, write_megatron(tmp_path / "new", given[1500:], 3)]
    before = {document.tobytes() for document in given[:1500] if len(document) > 3}

    def measured(urls: list[Path], name: str, known: str | None = None, on: str | None = None) -> bytes:
        def count(sample: dict[str, np.ndarray]) -> int:
            assert known is None or sample["tokens"].tobytes() not in before, "counted again"
            return len(sample["tokens"])

        to, manifest = tmp_path / f"{name}.npy", tmp_path / f"{len(urls)}.manifest"
        with closing(streamer.StreamingDataset(urls, cache_dir=tmp_path / "cache", manifest=manifest)) as dataset:
            streamer.measure_lengths(
                dataset, count, path=to, executor=on, resume_from=known and tmp_path / f"{known}.npy"
            )
        return to.read_bytes()

    for urls in (old, grown):
        out = ["--format", "tokens", "--chunk-bytes", "16kB", "--out", f"{tmp_path}/{len(urls)}.manifest"]
        assert main(["index", *map(str, urls), *out, "--executor", "processes:1"]) == 0
        assert Manifest.open(tmp_path / f"{len(urls)}.manifest").chunks > 4
    alone, whole = measured(old, "old"), measured(grown, "grown")
    assert np.load(tmp_path / "grown.npy").tolist() == list(map(len, given))
    for on in ("processes:2", f"dask:{cluster.scheduler_address}"):  # type: ignore[attr-defined]
        assert measured(old, "tasks", on=on) == alone
        assert measured(grown, "tasks", known="old", on=on) == whole
