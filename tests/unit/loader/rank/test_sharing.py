"""Tests of how the ranks of a job find the engines of its nodes and deal the lanes among them.

There is no process group.
"""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import msgspec
import numpy as np
import pytest

from streamer import Order
from streamer.errors import ConfigError
from streamer.loader.agreement import compress_texts, exchange
from streamer.loader.rank import sharing
from streamer.loader.rank.sharing import (
    _Deal,
    _EngineNode,
    _find_host,
    _group_ranks,
    _Place,
    address_towards,
    has_lanes,
)
from streamer.wire.messages import Sharer


def test_ranks_of_one_engine_are_one_node() -> None:
    """Ranks with one cache folder and one engine process are one node.

    The folder alone is not enough, as copied disks have one id.
    """
    places = [_Place("a", "7@x", ""), _Place("b", "9@y", ""), _Place("a", "7@x", ""), _Place("a", "8@y", "")]
    assert _group_ranks(places) == [[0, 2], [1], [3]]


def test_the_address_is_the_one_that_others_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's address is the one that others reach.

    Rank 0 may know its own name as 127.0.0.1; then the way to another node counts.
    """
    asked: list[str] = []
    monkeypatch.setattr(sharing, "address_towards", lambda host: asked.append(host) or "10.0.0.1")
    places = [_Place("a", "1", "127.0.1.1"), _Place("b", "2", "10.0.0.2"), _Place("c", "3", "10.0.0.3")]
    assert [_find_host(places, rank) for rank in range(3)] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert asked == ["10.0.0.2"]
    alone = [_Place("a", "1", "127.0.0.1"), _Place("b", "2", "127.0.0.1")]
    assert _find_host(alone, 0) == "127.0.0.1"
    with pytest.raises(ConfigError, match="MASTER_ADDR"):
        _find_host([_Place("a", "1", ""), _Place("b", "2", "10.0.0.2")], 0)


def test_the_way_to_a_host() -> None:
    """The own address towards a host is found without a packet.

    A name that does not exist is a `ConfigError` that names it.
    """
    assert address_towards("127.0.0.1") == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"MASTER_ADDR='256\.0\.0\.1'"):
        address_towards("256.0.0.1")


def test_many_ranks_read_little_of_the_store_of_rank_0() -> None:
    """2,048 ranks on 256 engines read less than 64 MB from the store of rank 0 in all three exchanges.

    The caches of the engines hold parts of four lanes each.
    """
    draw = np.random.default_rng(0)
    words = [draw.bytes(20).hex() for _ in range(256)]
    addresses = [f"10.1.{node // 250}.{node % 250}" for node in range(256)]
    ports = draw.integers(30_000, 60_000, 256)
    places = [
        _Place(word[:32], f"{port}@{word[32:]}", address)
        for word, port, address in zip(words, ports, addresses, strict=True)
    ]
    nodes = [
        _EngineNode(address, f"{address}:{port}", 3_500_000_000_000, [(node + lane, int(size)) for lane, size in held])
        for node, (address, port) in enumerate(zip(addresses, ports, strict=True))
        for held in [list(enumerate(draw.integers(10**9, 10**10, 4)))]
    ]
    first = [_text(places[rank // 8]) for rank in range(2048)]
    second, third = (
        [_text(None if rank % 8 else one[rank // 8]) for rank in range(2048)] for one in (nodes, addresses)
    )
    assert 2048 * sum(len(compress_texts(texts)) for texts in (first, second, third)) < 64e6


def _text(value: object) -> str:
    """Returns a value as `exchange` passes it to the other ranks."""
    passed: list[str] = []

    def gather(text: str) -> list[str | None]:
        passed.append(text)
        return [text]

    exchange(gather, lambda: msgspec.to_builtins(value))
    return passed[0]


def test_lanes_are_told_to_engines_by_the_order_of_their_ids(make_dataset, folder) -> None:
    """Engines are told the readers of each lane, with their samples, in the order of the engines' ids.

    They are also told at most two former holders of it.
    """
    prepared = make_dataset(folder, order=Order(lanes=2))._get_opening().prepare(12)
    lanes = prepared._plans.chunk_lanes()
    shared = sharing.Shared(
        manifest=prepared.members.each[0].manifest, name="all", global_batch=12, lanes=lanes, lane_count=2
    )
    held = [[(0, 10)], [(0, 30), (1, 5)], [(0, 20)]]
    nodes = [_EngineNode("10.0.0.1", f"10.0.0.1:{number}", 1, lane) for number, lane in enumerate(held)]
    deal = _Deal(shared, nodes, [4, 4, 4])
    sharers = [Sharer(name, node.address, 1) for name, node in zip("cab", nodes, strict=True)]
    told = deal.request("t", "10.0.0.1", sharers)
    assert [sharer.id for sharer in told.sharers] == ["a", "b", "c"]
    assert np.frombuffer(told.lanes, "<i2").tolist() == lanes.tolist()
    # Node 1 ("a") takes lane 0 first, then node 2 ("b") what is left of it; node 0 ("c") only held a little.
    assert told.readers == [[(0, 4), (1, 2)], [(2, 4), (1, 2)]]
    assert told.former == [[(2, 10)], [(0, 5)]]
    assert deal.runs(1, slice(0, 4)) == ((0, 0, 4),)
    assert deal.runs(2, slice(0, 4)) == ((0, 4, 2), (1, 4, 2))


def test_each_chunk_with_samples_has_a_lane(make_dataset, folder) -> None:
    """Each chunk with samples has a lane, and those without any of a selection have none."""
    dataset = make_dataset(folder, order=Order(lanes=2))
    prepared = dataset._get_opening().prepare(12)
    assert set(prepared._plans.chunk_lanes().tolist()) == {0, 1}
    part = dataset.select(labels=[0])._get_opening().prepare(12)
    lanes, samples = part._plans.chunk_lanes(), part.members.each[0].chunk_samples
    assert ((lanes < 0) == (samples == 0)).all()
    assert (lanes < 0).any()


@pytest.mark.parametrize(
    ("chunks", "batch", "lanes", "expected"),
    [(10, 12, 4, True), (10, 12, 5, False), (4 << 20, 12, 4, False), (10, 1 << 16, 1 << 16, False)],
)
def test_where_lanes_can_be_split(chunks: int, batch: int, lanes: int, expected: bool) -> None:
    """Lanes can be split where their number divides the batch and the lane of each chunk fits into a message."""
    assert has_lanes(chunks, batch, lanes) is expected


def test_without_a_process_group_nothing_is_shared(make_dataset, folder, caplog) -> None:
    """Without a process group `share_caches="auto"` is off, with one warning that names the other ways."""
    dataset = make_dataset(folder, share_caches="auto")
    side = dataset._get_opening()
    for _ in range(2):
        side.prepare_and_share(lambda: side.prepare(12), "")
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([text for text in said if 'share_caches="auto" is off' in text and "[peers] members" in text]) == 1


def test_a_machine_without_a_boot_id_has_the_name_of_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel tells no id of the boot, the engine's machine is named by its host.

    A raw FileNotFoundError of one rank left the others waiting for half an hour.
    """
    if sharing._BOOT_ID.exists():
        assert sharing._name_machine() == sharing._BOOT_ID.read_text()[:8]
    monkeypatch.setattr(sharing, "_BOOT_ID", tmp_path / "boot_id")
    assert sharing._name_machine() == socket.gethostname()
