"""share_caches="auto" with three real engines, one per cache folder, whose ranks are threads of one process."""

from __future__ import annotations

import itertools
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from streamer import Order, StreamingDataset
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.errors import ConfigError, StreamerError
from streamer.loader.agreement import Gather
from streamer.loader.rank import sharing
from streamer.loader.rank.rank_stream import RankStream
from streamer.order.spec import LanesBy
from streamer.wire.messages import GetManifest

pytestmark = pytest.mark.process

FILES, FILE_BYTES, BATCH = 192, 9_000, 24


class Node:
    """Stands for a node: a rank with a cache folder, and so a real engine process, of its own.

    All nodes share this machine, and their ranks this process.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.cache = root, root / name
        self.datasets: list[StreamingDataset] = []
        self.manifest_bytes = 0
        places = {"cache_dir": self.cache, "runtime_dir": root / "run"}
        self.client = EngineClient(ClientSettings(**places, cache_bytes=64 << 20, grace_seconds=0.1, job="test"))

    def prepare(self, rank: int, world: int, lanes_by: LanesBy | None = None, **options: object) -> RankStream:
        dataset = StreamingDataset(
            str(self.root / "data"),
            manifest=str(self.root / "manifest"),
            cache_dir=self.cache,
            cache_bytes=64 << 20,
            decode=None,
            rank=rank,
            world_size=world,
            order=Order(lanes_by=lanes_by),
            share_caches="auto",
            **options,
        )
        self.datasets.append(dataset)
        before = self.count("store_bytes")
        prepared = dataset._get_opening().prepare(BATCH // world)
        self.manifest_bytes += self.count("store_bytes") - before
        assert isinstance(prepared, RankStream)
        return prepared

    def count(self, name: str) -> int:
        return int(str(self.client.statistics()[name]))

    def close(self) -> psutil.Process:
        """Closes the datasets and the client; returns the engine's process, which ends soon after."""
        engine = psutil.Process(self.client.welcome.pid)
        while self.datasets:
            self.datasets.pop().close()
        self.client.close()
        return engine


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Node]]:
    """Yields three nodes, and a dataset with a manifest of small chunks."""
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    (tmp_path / "data").mkdir()
    for number in range(FILES):
        (tmp_path / "data" / f"{number:04}.bin").write_bytes(number.to_bytes(2, "little") * (FILE_BYTES // 2))
    made = [Node(tmp_path, f"cache{number}") for number in range(3)]
    request = GetManifest(0, [str(tmp_path / "data")], "folder", chunk_bytes=FILE_BYTES)
    (tmp_path / "manifest").symlink_to(made[0].client.manifest(request))
    yield made
    for engine in [node.close() for node in made if node.datasets]:
        engine.wait(30)


def gathered(count: int) -> list[Gather]:
    """Returns a gather for each of several threads, in place of torch.distributed's."""
    texts: list[str | None] = [None] * count
    barrier = threading.Barrier(count, timeout=60)

    def of(rank: int) -> Gather:
        def gather(text: str) -> list[str | None]:
            texts[rank] = text
            barrier.wait()
            found = list(texts)
            barrier.wait()
            return found

        return gather

    return [of(rank) for rank in range(count)]


def together(tasks: list[Callable[[], object]]) -> list[object]:
    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result() for future in [pool.submit(task) for task in tasks]]


def share(ranks: list[RankStream]) -> None:
    """Shares the caches of all ranks as a job that starts does, with a token of its own."""
    sharing._token.cache_clear()
    tasks = zip(ranks, gathered(len(ranks)), strict=True)
    together([lambda prepared=prepared, gather=gather: prepared.share_caches(gather) for prepared, gather in tasks])


def read(prepared: RankStream, epoch: int) -> list[int]:
    """Reads one epoch of a rank, and returns the number in each sample."""
    session, source, found = prepared.session(epoch, 0), prepared.recipe().open(), []
    for batch in range(prepared.plan(epoch).batches):
        session.want(batch + 4)
        session.wait(batch, 60)
        for ordinal in source.batch(epoch, batch)[0].tolist():
            content = source.load(epoch, ordinal)["bin"]
            assert content == content[:2] * (FILE_BYTES // 2)
            found.append(int.from_bytes(content[:2], "little"))
        session.finish(batch + 1)
    session.close()
    return found


def epoch(ranks: list[RankStream], number: int) -> None:
    """Reads an epoch on all ranks, and checks that each sample came once."""
    found = together([lambda prepared=prepared: read(prepared, number) for prepared in ranks])
    assert sorted(itertools.chain(*found)) == list(range(FILES))


def store_files(nodes: list[Node]) -> float:
    """Counts files that came from the store, without those of which a peer was late: this machine may be busy."""
    late = sum(node.count("peer_hedge_losses") for node in nodes if "peers" in node.client.statistics())
    return sum(node.count("store_bytes") - node.manifest_bytes for node in nodes) / FILE_BYTES - late


def test_another_seed_and_another_node_read_what_the_caches_hold(nodes: list[Node]) -> None:
    """With lanes_by="key" the store sends each byte once, although a second job swaps ranks and changes the seed."""
    of_two_nodes(nodes[:2])


def of_two_nodes(nodes: list[Node]) -> None:
    """Reads two epochs on two nodes: the second with swapped ranks and another seed."""
    two = [node.prepare(rank, 2, lanes_by="key") for rank, node in enumerate(nodes)]
    share(two)
    assert [run for prepared in two for run in prepared.recipe().runs], "each reads what its node holds"
    epoch(two, 0)
    assert store_files(nodes) == FILES
    before = [prepared.recipe().runs for prepared in two]
    swapped = [node.prepare(rank, 2, lanes_by="key", seed=5) for rank, node in enumerate(reversed(nodes))]
    share(swapped)
    assert [prepared.recipe().runs for prepared in swapped] == before[::-1]
    epoch(swapped, 0)
    assert store_files(nodes) == FILES
    assert sum(node.count("peer_chunks") for node in nodes) <= 2, "chunks on the edges of lanes"


@pytest.mark.slow
def test_a_third_node_reads_what_the_caches_hold(nodes: list[Node]) -> None:
    """A third node that joins two with full caches reads from them, and from its own cache from the next epoch on."""
    of_two_nodes(nodes[:2])
    three = [node.prepare(rank, 3, lanes_by="key") for rank, node in enumerate(nodes)]
    share(three)
    epoch(three, 1)
    assert store_files(nodes) <= FILES + 8, "what the third node reads comes from the others"
    third = len(list((nodes[2].cache / "chunks").rglob("*.chunk")))
    assert 0.25 * FILES < third <= nodes[2].count("peer_chunks")
    kept = nodes[2].count("peer_chunks")
    epoch(three, 2)
    assert store_files(nodes) <= FILES + 8
    assert nodes[2].count("peer_chunks") <= kept + 2


@pytest.mark.slow
def test_a_redrawn_cut_has_homes_by_keys(nodes: list[Node]) -> None:
    """With lanes_by="epoch" nodes read other chunks in every epoch, and the store sends at most 1.2 times the data.

    Without peers it sends 2.1 times in three epochs; the 0.2 are chunks that a busy home does not bring in time.
    """
    ranks = [node.prepare(rank, 3, lanes_by="epoch") for rank, node in enumerate(nodes)]
    share(ranks)
    for number in range(3):
        epoch(ranks, number)
    assert store_files(nodes) <= 1.2 * FILES
    assert [prepared.recipe().runs for prepared in ranks] == [()] * 3
    assert min(node.count("peer_chunks") for node in nodes) > FILES / 3
    assert sum(float(str(node.client.statistics()["home_share"])) for node in nodes) == pytest.approx(1.0, abs=0.01)


@pytest.mark.slow
def test_the_token_is_nowhere(
    nodes: list[Node], tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The token of shared caches is in no log, output, statistics, command line, environment or file of the engines."""
    caplog.set_level(logging.DEBUG)
    token = "c4n4ry" * 8
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing.secrets, "token_hex", lambda length: token)
        ranks = [node.prepare(rank, 2) for rank, node in enumerate(nodes[:2])]
        share(ranks)
    sharing._token.cache_clear()
    epoch(ranks, 0)
    seen = "".join(
        [caplog.text, *capfd.readouterr(), *(repr(node.client.statistics()) for node in nodes[:2]), *map(repr, ranks)]
    )
    raw = seen.encode()
    for node in nodes[:2]:
        engine = psutil.Process(node.client.welcome.pid)
        for process in (engine, *engine.children(recursive=True)):
            raw += Path(f"/proc/{process.pid}/cmdline").read_bytes() + Path(f"/proc/{process.pid}/environ").read_bytes()
    assert b"streamer.peers" in raw
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix not in {".chunk", ".bin"}]
    assert any(path.suffix == ".log" for path in files)
    assert token.encode() not in raw + b"".join(path.read_bytes() for path in files)


@pytest.mark.slow
def test_copied_disks_share_nothing(nodes: list[Node], caplog: pytest.LogCaptureFixture) -> None:
    """Engines whose disks were copied share no caches, because a chunk would have two homes; one warning says so."""
    # The socket of its running engine is no file that `shutil` can copy.
    shutil.copytree(nodes[0].client.roots()[0], nodes[1].cache, ignore=shutil.ignore_patterns("*.sock"))
    share([node.prepare(rank, 2) for rank, node in enumerate(nodes[:2])])
    assert len([record for record in caplog.records if "disks were copied" in record.getMessage()]) == 1
    assert "peer_members" not in nodes[0].client.statistics()


@pytest.mark.slow
def test_what_one_rank_cannot_do_is_the_error_of_all(nodes: list[Node]) -> None:
    """A rank that cannot share its cache (no MASTER_ADDR) makes every rank raise the same ConfigError."""
    ranks = [node.prepare(rank, 2) for rank, node in enumerate(nodes[:2])]
    ranks[1].rank_config = replace(ranks[1].rank_config, master="")
    errors = []
    for prepared, gather in zip(ranks, gathered(2), strict=True):
        errors.append(lambda prepared=prepared, gather=gather: _error_of(prepared, gather))
    assert [type(error) for error in together(errors)] == [ConfigError] * 2
    assert all("MASTER_ADDR" in str(error) for error in together(errors))


def _error_of(prepared: RankStream, gather: Gather) -> StreamerError | None:
    try:
        prepared.share_caches(gather)
    except StreamerError as error:
        return error
    return None
