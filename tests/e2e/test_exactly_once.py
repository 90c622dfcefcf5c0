"""Every sample exactly once: ranks, workers and engines as processes, killed and resumed; bytes compared by hash."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from streamer.cache.maintenance import check
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.manifest.table import Manifest
from streamer.order.quality import lane_spread
from streamer.order.spec import OrderSpec

CONSUME = Path(__file__).parent / "consume.py"
SAMPLES = 230


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Returns the same 230 samples as a class folder and as tars, 10 to 60 KB each."""
    root, random = tmp_path_factory.mktemp("data"), np.random.default_rng(7)
    (root / "tars").mkdir()
    with contextlib.ExitStack() as stack:
        tars = [stack.enter_context(tarfile.open(root / "tars" / f"{i}.tar", "w")) for i in range(4)]
        for number in range(SAMPLES):
            content = random.bytes(int(random.integers(10_000, 60_000)))
            path = root / "folder" / f"class{number % 3}" / f"{number:04}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            for name, body in ((f"{number:04}.bin", content), (f"{number:04}.cls", str(number % 3).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(body)
                tars[number % 4].addfile(member, io.BytesIO(body))
    return root


@pytest.fixture(scope="module")
def truth(data) -> Counter:
    """Returns the digest of every sample's payload."""
    return Counter(digest(path.read_bytes()) for path in (data / "folder").rglob("*.bin"))


def digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


class Machine:
    """Stands for a node: one cache folder, one real engine process, kept alive by a client of its own.

    All nodes of a test share this machine; ranks are processes that run consume.py.
    """

    def __init__(self, folder: Path, cache_bytes: int = 64 << 20) -> None:
        self.folder, self.cache_bytes = folder, cache_bytes
        self.client = EngineClient(
            ClientSettings(
                cache_dir=folder / "cache", runtime_dir=folder / "run", cache_bytes=cache_bytes, grace_seconds=0.1
            )
        )

    def statistics(self) -> dict[str, object]:
        return self.client.statistics()

    def start(self, rank: int, world: int, *, node: int = 0, **task: object) -> subprocess.Popen:
        """Starts one rank of a job on this node."""
        self.client.roots()
        dataset = {
            "cache_dir": str(self.folder / "cache"),
            "cache_bytes": self.cache_bytes,
            "rank": rank,
            "world_size": world,
            **task.pop("dataset", {}),
        }
        environment = {
            **os.environ,
            "STREAMER_RUNTIME_DIR": str(self.folder / "run"),
            "STREAMER_JOB": "job",
            "STREAMER_NODE": str(node),
            "OMP_NUM_THREADS": "1",
        }
        settings = {"loader": "ours", "batch_size": 16, "workers": 0, "epochs": 1, "dataset": dataset, **task}
        return subprocess.Popen(
            [sys.executable, str(CONSUME), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )


@pytest.fixture
def machine(tmp_path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    with contextlib.closing(made.client):
        yield made


def lines_of(ranks: list[subprocess.Popen]) -> list[list[dict]]:
    """Returns what each rank printed; all must have ended well."""
    outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks)
    return [[json.loads(line) for line in output.splitlines()] for output in outputs]


def batches_of(lines: list[dict]) -> list[dict]:
    return [line for line in lines if "batch" in line]


def delivered(ranks: list[list[dict]], epoch: int = 0) -> Counter:
    """Returns digests of all samples that are no repeats."""
    found: Counter = Counter()
    for lines in ranks:
        for line in batches_of(lines):
            if line["epoch"] == epoch:
                found.update(fresh(line))
    return found


def global_batches(ranks: list[list[dict]], epoch: int = 0) -> list[list[str]]:
    """Returns the sorted samples of each global batch that are no repeats."""
    columns = [[fresh(b) for b in batches_of(lines) if b["epoch"] == epoch] for lines in ranks]
    return [sorted(mark for part in parts for mark in part) for parts in zip(*columns, strict=True)]


def fresh(line: dict) -> list[str]:
    """Returns digests of the samples of a batch that are no repeats."""
    repeated = line["repeated"] or [False] * len(line["samples"])
    return [mark for (_, mark), again in zip(line["samples"], repeated, strict=True) if not again]


SHAPES = list(itertools.product(["folder", "tars"], [1, 2, 3], [0, 1, 2, 3]))


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "world", "workers"), SHAPES)
def test_our_loader_delivers_every_sample_once(machine, data, truth, layout, world, workers):
    """StreamingDataLoader delivers every sample once per epoch over all ranks, in equal steps, with repeats marked."""
    url = str(data / layout)
    ranks = lines_of(
        [machine.start(rank, world, url=url, workers=workers, epochs=2, batch_size=8) for rank in range(world)]
    )
    assert delivered(ranks, 0) == truth
    assert delivered(ranks, 1) == truth
    assert len({len(batches_of(lines)) for lines in ranks}) == 1
    assert global_batches(ranks, 0) != global_batches(ranks, 1)


TOLD = [(*shape, told) for shape in SHAPES for told in (True, False)]


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "world", "workers", "told"), TOLD)
def test_a_stock_dataloader_gets_every_sample_once(machine, data, truth, layout, world, workers, told):
    """torch's own DataLoader gets every sample once over all ranks if the dataset knows the batch size.

    Without it, at most one sample per rank is repeated to fill the epoch.
    """
    dataset = {"batch_size": 8} if told else {}
    ranks = lines_of(
        [
            machine.start(
                rank, world, url=str(data / layout), loader="stock", workers=workers, batch_size=8, dataset=dataset
            )
            for rank in range(world)
        ]
    )
    found = delivered(ranks)
    assert set(found) == set(truth)
    # Told the batch size, the dataset has the mask; else at most a sample per rank fills the epoch.
    assert found.total() - truth.total() < (1 if told else world)
    assert len({sum(len(b["samples"]) for b in batches_of(lines)) for lines in ranks}) == 1


@pytest.mark.slow
def test_global_batches_do_not_depend_on_ranks_or_workers(machine, data):
    """One rank and three ranks with a global batch of 24 make the same global batches."""
    url = str(data / "tars")
    found = [
        global_batches(
            lines_of(
                [machine.start(r, world, url=url, batch_size=24 // world, workers=world - 1) for r in range(world)]
            )
        )
        for world in (1, 3)
    ]
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_resumed_run_yields_exactly_the_rest(machine, data, truth):
    """A run that stops after 5 batches on one rank and resumes on two yields the batches of an unbroken run."""
    url = str(data / "folder")
    whole = lines_of([machine.start(0, 1, url=url, batch_size=16)])
    head = lines_of([machine.start(0, 1, url=url, batch_size=16, stop_after=5)])
    tail = lines_of([machine.start(r, 2, url=url, batch_size=8, resume=head[0][-1]["state"]) for r in range(2)])
    assert delivered(head) + delivered(tail) == truth
    assert global_batches(head) + global_batches(tail) == global_batches(whole)


def test_a_killed_engine_costs_no_sample(machine, data, truth):
    """Two ranks whose engine is killed twice in mid-epoch get the same samples in equal steps, without an error."""
    shape = {"url": str(data / "tars"), "epochs": 2, "batch_size": 8}
    rank, other = machine.start(0, 2, workers=2, pause_at=[3, 9], **shape), machine.start(1, 2, **shape)
    lines = []
    for line in rank.stdout:
        lines.append(json.loads(line))
        if "paused" in lines[-1]:
            os.kill(machine.client._connect().welcome.pid, signal.SIGKILL)
            machine.statistics()
            rank.stdin.write("\n")
            rank.stdin.flush()
    rank.communicate(timeout=240)
    assert rank.returncode == 0
    ranks = [lines, *lines_of([other])]
    assert delivered(ranks, 0) == truth
    assert delivered(ranks, 1) == truth
    assert len(batches_of(ranks[0])) == len(batches_of(ranks[1]))


@pytest.mark.slow
def test_two_ranks_fetch_the_data_once(machine, data):
    """Two ranks on one node fetch at most 1.02 times the data from the store in their first epoch."""
    ranks = [machine.start(rank, 2, url=str(data / "folder"), batch_size=8) for rank in range(2)]
    lines_of(ranks)
    total = sum(path.stat().st_size for path in (data / "folder").rglob("*.bin"))
    assert machine.statistics()["store_bytes"] <= 1.02 * total


@pytest.mark.slow
def test_two_nodes_share_an_epoch(tmp_path):
    """Two nodes with two lanes fetch each byte once, make the batches of one node, and can resume on one node.

    Each sample comes once.
    """
    # 120 chunks: the one that lies on the cut between the two lanes, which both nodes need, is under 1 %.
    random, url, manifest = np.random.default_rng(8), str(tmp_path / "data"), str(tmp_path / "manifest")
    for number in range(600):
        path = tmp_path / "data" / f"class{number % 3}" / f"{number:04}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(int(random.integers(30_000, 70_000))))
    truth = Counter(digest(path.read_bytes()) for path in (tmp_path / "data").rglob("*.bin"))
    nodes = [Machine(tmp_path / f"node{n}") for n in range(2)]
    with contextlib.ExitStack() as stack:
        for node in nodes:
            stack.callback(node.client.close)
        task = {"url": url, "batch_size": 8, "dataset": {"manifest": manifest, "order": {"lanes": 2}}}

        def job(**more: object) -> list[list[dict]]:
            ranks = [
                nodes[n].start(n, 2, node=n, **{**task, "dataset": dict(task["dataset"]), **more}) for n in range(2)
            ]
            return lines_of(ranks)

        both = job()
        assert delivered(both) == truth
        total = sum(path.stat().st_size for path in (tmp_path / "data").rglob("*.bin"))
        assert sum(node.statistics()["store_bytes"] for node in nodes) <= 1.02 * total
        one = lines_of([nodes[0].start(0, 1, **{**task, "batch_size": 16, "dataset": dict(task["dataset"])})])
        assert global_batches(both) == global_batches(one)
        head = job(stop_after=4)
        state = head[0][-1]["state"]
        tail = lines_of(
            [nodes[1].start(0, 1, **{**task, "batch_size": 16, "resume": state, "dataset": dict(task["dataset"])})]
        )
        assert delivered(head) + delivered(tail) == truth


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_nodes_fetch_what_the_lanes_predict(tmp_path, data, lanes):
    """Two nodes fetch the data once if lanes are a multiple of nodes, else up to the predicted factor."""
    url, manifest = str(data / "folder"), str(tmp_path / "manifest")
    nodes = [Machine(tmp_path / f"node{n}") for n in range(2)]
    with contextlib.ExitStack() as stack:
        for node in nodes:
            stack.callback(node.client.close)
        options = {"manifest": manifest, "order": {"lanes": lanes}}
        lines_of([nodes[n].start(n, 2, node=n, url=url, batch_size=8, dataset=dict(options)) for n in range(2)])
        fetched = sum(node.statistics()["store_bytes"] for node in nodes)
    (found,) = (nodes[0].folder / "cache" / "manifests").glob("*/root.json")
    chosen = Manifest.open(found.parent)
    spec = OrderSpec.auto(chosen.digest, chosen.chunk_samples, 16, 17, "block", lanes=lanes)
    spread = lane_spread(spec, 16, 2)
    assert spread.store_factor == (2.0 if lanes == 1 else 1.0)
    assert spread.suggested_lanes == (2 if lanes == 1 else None)
    # A chunk on a cut belongs to two lanes: at most one per cut is fetched by both nodes.
    cut_bytes = int(np.sort(chosen.chunk_local_bytes)[-lanes:].sum())
    assert fetched <= spread.store_factor * chosen.total_bytes + cut_bytes
    if lanes == 1:
        assert fetched >= 1.9 * chosen.total_bytes


def stop(pid: int) -> None:
    """Stops a process, after its threads have ended what they were about (such as unlinking a file)."""
    os.kill(pid, signal.SIGSTOP)
    while any(" T " not in (task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()):
        time.sleep(0.001)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_kills_cost_nothing(machine, data, truth, withheld):
    """Two hundred random kills of engine, workers and ranks under load spoil no sample and leave nothing behind.

    No wrong byte, no error; no published chunk is lost, each next engine is there within 2 s (and what a bare start
    takes longer at that moment than on a quiet machine); no session, temporary file or folder in memory is left over.
    """
    random, kills, restarts, folder = np.random.default_rng(11), Counter(), [], machine.folder / "cache"
    cache = {"cache_bytes": 5_000_000}
    machine.cache_bytes = 5_000_000
    while kills.total() < 200:
        rank = machine.start(
            0,
            1,
            url=str(data / "folder"),
            workers=2,
            epochs=6,
            dataset={"manifest": None, "order": {"shuffle_window": 4}, **cache},
        )
        found, ended = Counter(), False
        for line in rank.stdout:
            batch = json.loads(line)
            if "batch" not in batch:
                continue
            found.update(mark for _, mark in batch["samples"])
            assert set(found) <= set(truth)
            victim = random.choice(["engine", "worker", "rank", "nobody"], p=[0.12, 0.12, 0.01, 0.75])
            if victim == "engine":
                engine = machine.client._connect().welcome.pid
                stop(engine)  # so that nothing changes between the look and the kill
                published = chunk_names(folder)
                os.kill(engine, signal.SIGKILL)
                begun, lost_before = time.monotonic(), withheld.seconds
                counts = machine.statistics()
                restarts.append(time.monotonic() - begun)
                if restarts[-1] > 1.0:
                    assert restarts[-1] < 2.0 + (withheld.seconds - lost_before) + withheld.slow_start_seconds()
                lost = published - chunk_names(folder)
                assert len(lost) <= machine.statistics()["evicted_chunks"]
                assert counts["kept_chunks"] >= len(published) - machine.statistics()["evicted_chunks"]
            elif victim == "worker" and (workers := children_of(rank.pid)):
                os.kill(int(random.choice(workers)), signal.SIGKILL)
            elif victim == "rank":
                rank.kill()
                ended = True
            kills[victim] += victim != "nobody"
        rank.communicate(timeout=240)
        assert ended or rank.returncode == 0
    assert min(kills["engine"], kills["worker"], kills["rank"]) > 0
    assert not machine.statistics()["sessions"]
    print(f"{dict(kills)}; engines back after {np.median(restarts):.2f} s, at most {max(restarts):.2f} s")
    engine = os.pidfd_open(machine.client._connect().welcome.pid)
    root_id = (folder / "root-id").read_text().strip()
    machine.client.close()
    try:
        assert select.select([engine], [], [], 20)[0]
    finally:
        os.close(engine)
    assert check(folder).damaged == {}
    assert not list((folder / "tmp").iterdir())
    assert not list(Path("/dev/shm").glob(f"streamer-*{root_id}"))


def chunk_names(folder: Path) -> set[str]:
    """Returns the names of published chunks, as the disk has them."""
    return {path.name for path in (folder / "chunks").glob("*/*.chunk")}


def children_of(pid: int) -> list[int]:
    """Returns the worker processes of a rank, which may have ended."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, (task / "children").read_text().split())
    return found
