"""share_caches="auto" on nodes in network namespaces: what the store sends when a job starts, goes on, and changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fault.auto_job import BATCH, Job
from tests.fault.namespaces import Namespaces, as_root

pytestmark = [
    as_root,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("s3sim") is None, reason="counts what s3sim sends; it is not installed"),
]

Start = Callable[..., Job]
# Of 24 lanes each of 4 nodes reads 6, each of 3 nodes 8, each of 6 nodes 4.
LANES = 24
OBJECTS = 4000


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Makes a job; its nodes are in namespaces."""
    with_job: list[Job] = []
    namespaces = Namespaces(6)

    def started(objects: int, share: float, **options: bool) -> Job:
        with_job.append(Job(tmp_path, objects, share, namespaces, **options))
        return with_job[0]

    yield started
    for job in with_job:
        job.close()
    namespaces.close()


@pytest.mark.parametrize(
    ("dataset", "travels"),
    [
        ({"lanes_by": "seed", "lanes": LANES}, 0.01),
        ({"lanes_by": "key", "lanes": LANES}, 0.01),
        ({"lanes_by": "epoch", "lanes": LANES}, 0.75 + 0.02),
        # Two lanes have two readers each, and half of each is the other one's: (4 - gcd(4, 6)) / 6 is the bound.
        ({"lanes_by": "key", "lanes": 6}, 2 / 6 + 0.02),
        ({"shuffle": False}, 0.75 + 0.02),
    ],
    ids=["by seed", "by key", "by epoch", "lanes that cross", "no shuffle"],
)
def test_each_byte_comes_from_the_store_once(start: Start, dataset: dict[str, Any], travels: float) -> None:
    """A cold epoch of four nodes reads each byte from the store once, and a warm one reads nothing from it.
    Next to nothing travels between nodes that read the same lanes in every epoch.
    As slowly as a training does: where all processors are busy, peers are late, and the store is asked as well.
    """
    job = start(OBJECTS, 0.32, ordered="shuffle" in dataset)
    job.start([0, 1, 2, 3], pause=0.0 if travels < 0.1 else 0.5, **dataset)
    assert job.epoch() <= 1.02
    assert job.kept_share() > 1.02
    for _ in range(2):
        before = job.total("peer_bytes")
        assert job.epoch() <= 0.02
        assert (job.total("peer_bytes") - before) / job.store.data_bytes <= travels


def test_small_caches_together_keep_what_they_can(start: Start) -> None:
    """A warm epoch reads from the store only what caches of 0.6 x the data together cannot keep.
    The first epoch is not measured: part of the second one is fetched ahead in it.
    """
    job = start(OBJECTS, 0.16)
    job.start([0, 1, 2, 3], lanes_by="key", lanes=LANES)
    job.epoch()
    for _ in range(2):
        assert job.epoch() <= max(0.0, 1.0 - job.kept_share()) + 0.02
        assert job.total("peer_bytes") <= 0.01 * 3 * job.store.data_bytes


def test_another_seed_and_other_ranks_find_the_caches(start: Start) -> None:
    """The first epoch of a next run with another seed or other ranks reads at most 2 % of the data from the store."""
    job = start(OBJECTS, 0.32)
    job.start([0, 1, 2, 3], lanes_by="key", lanes=LANES)
    job.epoch()
    for nodes, seed in (([0, 1, 2, 3], 5), ([2, 0, 3, 1], 6)):
        job.stop()
        job.start(nodes, lanes_by="key", lanes=LANES, seed=seed)
        assert job.epoch() <= 0.02
        assert job.total("peer_bytes") <= 0.01 * job.store.data_bytes


def test_a_lost_node_costs_its_share(start: Start) -> None:
    """A job that loses a node by kill -9 in mid-epoch goes on with three nodes from its state, each sample once.
    The store sends the lost node's share again, and what the remaining caches cannot keep.
    """
    job = start(OBJECTS, 0.35)
    job.start([0, 1, 2, 3], lanes_by="key", lanes=LANES)
    job.epoch()
    _, answers = job.read(3)
    seen = [number for answer in answers for number in answer["samples"]]
    assert len(seen) == 3 * BATCH
    job.stop(killed=[3])
    job.start([0, 1, 2], answers[0]["state"], lanes_by="key", lanes=LANES)
    sent, answers = job.read()
    assert sorted(seen + [number for answer in answers for number in answer["samples"]]) == list(range(OBJECTS))
    sent += job.epoch()
    assert sent <= 0.25 + max(0.0, 1.0 - job.kept_share()) + 0.05


def test_an_empty_node_in_the_place_of_another_costs_its_share(start: Start) -> None:
    """A node with an empty disk in the place of another costs one share of the data, since the others keep theirs."""
    job = start(OBJECTS, 0.32)
    job.start([0, 1, 2, 3], lanes_by="key", lanes=LANES)
    job.epoch()
    job.stop()
    shutil.rmtree(job.root / "cache3")
    job.start([3, 0, 1, 2], lanes_by="key", lanes=LANES, seed=3)
    assert job.epoch() <= 0.25 + 0.02
    assert job.epoch() <= 0.02


@pytest.mark.parametrize("more", [5, 6])
def test_what_new_nodes_read_comes_from_the_others(start: Start, more: int) -> None:
    """Nodes that join a job read their share from the caches of the others, not from the store."""
    job = start(OBJECTS, 0.3)
    job.start([0, 1, 2, 3], lanes_by="key", lanes=LANES)
    job.epoch()
    job.stop()
    job.start(range(more), lanes_by="key", lanes=LANES)
    assert job.epoch() <= 0.02
    assert job.total("peer_bytes") / job.store.data_bytes >= (more - 4) / more - 0.02
