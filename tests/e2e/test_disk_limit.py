"""The limit of the cache on disk: ranks, workers and engine as processes, while a thread watches the folder's blocks.

On a folder every file is asked for its `st_blocks`; on a tmpfs of exactly the limit the kernel itself holds it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from streamer.cache.disk_space import FIXED_BYTES
from streamer.cache.folder import measure_usage
from streamer.cache.policy.table import charge_each
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.engine.session_progress import count_open_bytes
from streamer.formats import chunkfile
from streamer.manifest.table import Manifest
from streamer.order import EpochOrder, OrderSpec, RankPlan
from streamer.wire.messages import GetManifest

CONSUME = Path(__file__).parent / "consume.py"
RANKS, WORKERS, BATCH, EPOCHS = 2, 8, 4, 2
FILES = 900
BLOCK_BYTES = 512


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns 36 MB in files of 10 to 70 KB, about 140 chunks: all files of the cache can be looked at in 1 ms."""
    root, random = tmp_path_factory.mktemp("data"), np.random.default_rng(5)
    for number in range(FILES):
        path = root / f"class{number % 4}" / f"{number:04}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(random.bytes(int(random.integers(10_000, 70_000))))
    return root


@pytest.fixture(scope="module")
def truth(data: Path) -> Counter[str]:
    """Returns the digest of every sample."""
    return Counter(hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest() for path in data.rglob("*.bin"))


@pytest.fixture(scope="module")
def indexed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Manifest, int]:
    """Returns the dataset's manifest, and the bytes that a cache folder with it takes beside chunks."""
    folder = tmp_path_factory.mktemp("index")
    with EngineClient(settings(folder, folder / "cache", 1 << 30)) as client:
        manifest = Manifest.open(client.manifest(GetManifest(0, [str(data)], "auto")))
    return manifest, FIXED_BYTES + measure_usage(folder / "cache" / "manifests")


class Watch(threading.Thread):
    """A thread that measures, again and again, what the files of a folder take."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="watch")
        self.folder, self.peak_bytes, self.looks, self.most_files = folder, 0, 0, 0
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(0.004):  # leaves the cores to the ranks
            taken, files = taken_bytes(os.fspath(self.folder))
            self.peak_bytes = max(self.peak_bytes, taken)
            self.most_files = max(self.most_files, files)
            self.looks += 1

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        self.join()


def taken_bytes(folder: str) -> tuple[int, int]:
    """Returns bytes in blocks, and number of files, that lie there together at one moment.

    A file may leave while others are looked at, and another one take its place. So each is looked at twice: those that
    are the same both times were all there at the moment between the two rounds.
    """
    before = {path: found for path in every_path(folder) if (found := look(path))}
    total = files = 0
    for path, (inode, blocks, is_file) in before.items():
        again = look(path)
        if again is not None and again[0] == inode:
            total += min(blocks, again[1]) * BLOCK_BYTES
            files += is_file
    return total, files


def every_path(folder: str) -> Iterator[str]:
    yield folder
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from every_path(entry.path)
        else:
            yield entry.path


def look(path: str) -> tuple[int, int, bool] | None:
    """Returns inode, blocks and whether it is a file; None if it is gone."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_blocks, stat.S_ISREG(found.st_mode)


def settings(folder: Path, cache: Path, cache_bytes: int) -> ClientSettings:
    return ClientSettings(
        cache_dir=cache, runtime_dir=folder / "run", cache_bytes=cache_bytes, grace_seconds=0.1, connect_seconds=20
    )


@contextlib.contextmanager
def engine(folder: Path, cache: Path, cache_bytes: int) -> Iterator[EngineClient]:
    """Yields a client of an engine that stays until the end of the context, and checks that it is gone after it."""
    with EngineClient(settings(folder, cache, cache_bytes)) as client:
        client.roots()
        handle = os.pidfd_open(client._connect().welcome.pid)
        yield client
    try:
        assert select.select([handle], [], [], 20)[0], "the engine stays"
    finally:
        os.close(handle)


def smallest_limit(manifest: Manifest) -> int:
    """Returns the largest size of both ranks' open chunks, and one more chunk for each."""
    cost = charge_each(np.array([chunkfile.file_bytes(*pair) for pair in zip(*lengths(manifest), strict=True)]))
    spec = OrderSpec.auto(manifest.digest, manifest.chunk_samples, BATCH * RANKS, 17, True)
    most = 0
    for epoch in range(EPOCHS):
        order = EpochOrder(spec, manifest.chunk_samples, epoch)
        for rank in range(RANKS):
            schedule = RankPlan(order, BATCH * RANKS, RANKS, rank).schedule()
            most = max(most, count_open_bytes(schedule.chunk, schedule.first, schedule.last, cost))
    return RANKS * (most + int(cost.max()))


def lengths(manifest: Manifest) -> tuple[list[int], list[int]]:
    return manifest.chunk_local_bytes.tolist(), manifest.chunk_samples.tolist()


def train(folder: Path, cache: Path, data: Path, cache_bytes: int) -> list[str]:
    """Runs two ranks of eight workers each, side by side, and returns what they printed; both must end well."""
    environment = {**os.environ, "STREAMER_RUNTIME_DIR": str(folder / "run"), "STREAMER_JOB": "job"}
    ranks = []
    for rank in range(RANKS):
        dataset = {"cache_dir": str(cache), "cache_bytes": cache_bytes, "rank": rank, "world_size": RANKS}
        task = {"loader": "ours", "url": str(data), "batch_size": BATCH, "workers": WORKERS, "epochs": EPOCHS}
        command = [sys.executable, str(CONSUME), json.dumps({**task, "dataset": dataset})]
        ranks.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**environment, "OMP_NUM_THREADS": "1"})
        )
    outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS
    return outputs


def check_samples(outputs: list[str], truth: Counter[str]) -> None:
    """Checks that every sample came once in every epoch, byte for byte."""
    for epoch in range(EPOCHS):
        found: Counter[str] = Counter()
        for line in map(json.loads, "".join(outputs).splitlines()):
            if line.get("epoch") == epoch:
                samples = zip(line["samples"], line["repeated"], strict=True)
                found.update(mark for (_, mark), again in samples if not again)
        assert found == truth


SHARES = [None, 0.25, 0.5, 0.75, 0.9]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("share", SHARES)
def test_the_folder_never_takes_more_than_its_limit(
    tmp_path: Path, data: Path, truth: Counter[str], indexed: tuple[Manifest, int], share: float | None
) -> None:
    """The blocks of all cache files stay within the limit, from the open chunks and two more up to 90 % of the data.

    Every sample is read as it is stored.
    """
    cache, (manifest, fixed) = tmp_path / "cache", indexed
    limit = fixed + (smallest_limit(manifest) if share is None else int(share * manifest.total_bytes))
    with engine(tmp_path, cache, limit) as client, Watch(cache) as watch:
        outputs = train(tmp_path, cache, data, limit)
        counts = client.statistics()
    check_samples(outputs, truth)
    print(
        f"limit {limit / 1e6:.2f} MB ({limit / manifest.total_bytes:.0%} of the data), peak"
        f" {watch.peak_bytes / 1e6:.2f} MB in {watch.looks} looks at up to {watch.most_files} files,"
        f" hits {counts['hits']} of {counts['needs']}"
    )
    assert watch.most_files <= 1000
    assert watch.looks > 100
    assert 0.5 * limit < watch.peak_bytes <= limit
    assert counts["errors"] == 0


@contextlib.contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[Path]:
    """Mounts a tmpfs of that size, or skips the test where mounting is not allowed."""
    path.mkdir()
    options = f"size={size_bytes}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_tmpfs_of_exactly_the_limit_is_enough(tmp_path: Path, data: Path, truth: Counter[str]) -> None:
    """A cache on a tmpfs of exactly its limit has no refused write, and every sample is read as it is stored."""
    limit = 16 << 20
    with small_disk(tmp_path / "disk", limit) as disk, engine(tmp_path, disk / "cache", limit) as client:
        outputs = train(tmp_path, disk / "cache", data, limit)
        counts = client.statistics()
    check_samples(outputs, truth)
    assert counts["refused_writes"] == counts["errors"] == 0
    assert counts["evicted_chunks"] > 0
