"""`streamer index --executor` as processes: the manifest is the one that a single process builds."""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from streamer.config import FetchConfig
from streamer.executors.runner import runner
from streamer.fetch import Fetcher
from streamer.formats.detect import chooser
from streamer.indexing.build import BuildOptions, build
from streamer.indexing.source import DatasetSource, manifest_of_source
from streamer.indexing.tasks import FetchedLists, StoreOpener
from streamer.manifest.table import Manifest
from tests.formats.cases import DATA
from tests.tars import tar_of


def index(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs `streamer index` to its end."""
    command = [sys.executable, "-m", "streamer", "index", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """Returns 30 tars, one of which is damaged."""
    (tmp_path / "tars").mkdir()
    for tar in range(30):
        entries = [(f"{tar}-{i:02d}.bin", bytes([tar]) * (100 * i)) for i in range(20)]
        (tmp_path / f"tars/{tar:02d}.tar").write_bytes(tar_of(entries))
    damaged = bytearray((tmp_path / "tars/07.tar").read_bytes())
    damaged[512:600] = bytes(range(88))
    (tmp_path / "tars/07.tar").write_bytes(damaged)
    return tmp_path / "tars"


@pytest.mark.slow
def test_containers_in_tasks(tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks index tars with the digest of the engine's index; a damaged tar is named, or left out on request."""
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    refused = index(tars, "--executor", "processes:2", "--out", tmp_path / "a")
    assert refused.returncode == 1
    assert "07.tar" in refused.stderr
    skipping = index(tars, "--executor", "processes:2", "--out", tmp_path / "a", "--damaged", "skip")
    assert "left out: " in skipping.stderr + skipping.stdout
    engine = index(tars, "--out", tmp_path / "b", "--damaged", "skip")
    assert engine.returncode == skipping.returncode == 0, skipping.stderr
    tasks, alone = Manifest.open(tmp_path / "a"), Manifest.open(tmp_path / "b")
    assert (tasks.digest, tasks.objects, tasks.samples) == (alone.digest, 29, 580)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["out", "beside"])
def test_only_new_containers_are_read(tars: Path, tmp_path: Path, where: str) -> None:
    """An index beside an earlier manifest reads only containers that are new, and takes the others from it."""
    (tars / "07.tar").unlink()
    (tars / "09.tar").rename(tmp_path / "later.tar")
    to = ["--out", f"{tmp_path}/m"] if where == "out" else ["--beside"]
    folder = tmp_path / "m" if where == "out" else tars / ".streamer"
    assert index(f"{tars}/", "--executor", "processes:1", *to).returncode == 0
    before = Manifest.open(folder)
    # Another content, of which only an index that reads it would know.
    damaged, times = bytearray((tars / "03.tar").read_bytes()), (tars / "03.tar").stat()
    damaged[512:600] = bytes(range(88))
    (tars / "03.tar").write_bytes(damaged)
    os.utime(tars / "03.tar", ns=(times.st_atime_ns, times.st_mtime_ns))
    (tmp_path / "later.tar").rename(tars / "09.tar")
    done = index(f"{tars}/", "--executor", "processes:1", *to)
    assert done.returncode == 0, done.stderr
    assert (before.samples, Manifest.open(folder).samples) == (560, 580)


@pytest.mark.slow
def test_what_has_to_be_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks index compressed lines, decompressed, with the digest of an engine's index."""
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "lines").mkdir()
    for number in range(3):
        (tmp_path / f"lines/{number}.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * (10 + number)))
    done = index(f"{tmp_path}/lines/", "--executor", "processes:2", "--beside")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("33 samples in 3 objects")
    tasks = Manifest.open(tmp_path / "lines/.streamer")
    shutil.rmtree(tmp_path / "lines/.streamer")
    assert f"digest {tasks.digest}" in index(f"{tmp_path}/lines/").stdout


def test_facts_of_a_survey(tmp_path: Path) -> None:
    """Facts that a survey finds, such as the features of a Hugging Face dataset, reach the manifest through tasks."""
    shutil.copytree(DATA / "parquet/huggingface", tmp_path / "hf", ignore=shutil.ignore_patterns("expected.json"))
    assert index(tmp_path / "hf", "--executor", "processes:1", "--out", tmp_path / "m").returncode == 0
    assert Manifest.open(tmp_path / "m").facts.fields


def test_a_manifest_goes_somewhere() -> None:
    """`streamer index --executor` without --out or --beside ends with code 2 and names both options."""
    done = index("/nowhere", "--executor", "processes")
    assert done.returncode == 2
    assert "--executor needs --out or --beside" in done.stderr


@pytest.fixture
def bucket() -> Iterator[tuple[str, dict[str, object]]]:
    """Runs an S3 server that lists 30,000 objects, and has no content for them."""
    script = Path(__file__).parents[2] / "benchmarks/listed_bucket.py"
    server = subprocess.Popen([sys.executable, script, "30000", "0"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    try:
        yield address, {"key": "any", "secret": "any", "client_kwargs": {"endpoint_url": address}}
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


@pytest.mark.slow
@pytest.mark.leaves_over("the threads of obstore live as long as the process")
def test_a_large_prefix_is_listed_in_tasks(bucket: tuple[str, dict[str, object]], tmp_path: Path) -> None:
    """Tasks list a large prefix with some requests more than one process, and build the same manifest."""
    address, options = bucket
    source = DatasetSource(urls=("s3://many/raw/",), options=options)
    with runner("processes:2") as running:
        tasks = asyncio.run(manifest_of_source(source, tmp_path / "tasks", running, BuildOptions()))
    with urlopen(address) as answer:
        assert 30 < int(answer.read()) < 300
    alone = asyncio.run(built_here(source, tmp_path / "alone"))
    assert (tasks.samples, tasks.digest) == (30_000, alone.digest)


async def built_here(source: DatasetSource, folder: Path) -> Manifest:
    """Builds a manifest as the engine does."""
    async with Fetcher(FetchConfig(), StoreOpener(source.options)) as fetcher:
        lists = FetchedLists(fetcher)
        return await build(source.urls, folder, lister=lists, reader=fetcher, choose_format=chooser("auto"))
