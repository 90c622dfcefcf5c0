"""Lets the engines of a job's nodes act as one cache, for share_caches="auto".

`rank_stream.py` calls it whenever the ranks of a loader compare what they train on. Ranks find each other by
torch.distributed:

1. Each rank says which engine it uses. Ranks of one engine are one node, and the first of them speaks for it.
2. Each engine listens for the others, and each node says what it holds of every lane.
3. All ranks compute the same split of the lanes from that, and each engine is told where chunks are kept.

Engines learn nothing later. If one fails, the others ask the store instead.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import socket
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.client.chunk_reader import find_chunks
from streamer.client.engine_client import EngineClient
from streamer.config import RankConfig, counted
from streamer.errors import ConfigError
from streamer.loader.agreement import Gather, exchange
from streamer.manifest.table import Manifest
from streamer.order.rank_split import LaneRun, lane_runs, split_lanes
from streamer.wire.messages import CacheShared, ShareCache, Sharer

logger = logging.getLogger(__name__)

Integers = npt.NDArray[np.int64]

# This file differs from machine to machine, not from container to container. Only Linux has it.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# A node that holds a smaller share of a lane is taken to hold nothing of it.
_LEAST_SHARE = 0.01
# Number of nodes that are named for a lane because they hold chunks of it and do not read it.
_MAX_FORMER = 2
# A frame of 8 MiB has room for the lanes of so many chunks, at 2 bytes each. Chunks of a larger dataset have homes by
# their keys.
_MAX_CHUNKS = 3 << 20
_MAX_LANES = 1 << 15


class Shared(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Describes the dataset that is read.

    Attributes:
        manifest: Manifest of the dataset.
        name: Digest of the selected samples.
        global_batch: Samples of a batch over all ranks.
        lanes: (chunks,) lane of each chunk, -1 for none, or None if ranks cannot read by lanes: they are drawn anew in
            each epoch, or `has_lanes` is false.
        lane_count: Number of lanes.
    """

    manifest: Manifest
    name: str
    global_batch: int
    lanes: Integers | None
    lane_count: int


class _Place(msgspec.Struct, frozen=True, array_like=True):
    """Tells the other ranks which engine a rank uses, in the first exchange.

    Attributes:
        folder: Id of the cache folder of its engine.
        engine: Process and machine of the engine, since copied disks have the same id.
        host: Address of this machine on the way to rank 0, or "" if MASTER_ADDR is not set.
        token: Token of rank 0, which differs for each start of the job.
    """

    folder: str
    engine: str
    host: str
    token: str = ""

    def __repr__(self) -> str:
        return f"_Place({self.folder}, {self.engine}, {self.host})"


class _EngineNode(msgspec.Struct, frozen=True, array_like=True):
    """Tells the other ranks what an engine holds, in the second exchange; its first rank sends it.

    Attributes:
        host: Address of this machine for the others.
        address: Address of the engine's peer server.
        limit_bytes: Limit of its cache.
        held: (lane, bytes) of the lanes that it holds.
    """

    host: str
    address: str
    limit_bytes: int
    held: list[tuple[int, int]]


def share_caches(
    gather: Gather, connection: EngineClient, rank_config: RankConfig, shared: Shared
) -> tuple[LaneRun, ...]:
    """Makes the engines of all ranks share their caches. Collective.

    Does nothing if all ranks have the same engine, or if cache folders are copies of each other (a warning).

    Args:
        gather: Collects one text of every rank.
        connection: Connection to the engine of this rank.
        rank_config: Rank and world size.
        shared: The dataset.

    Returns:
        This rank's samples of each lane of a batch; empty if each rank keeps its equal part of a batch.

    Raises:
        StateError: some ranks did not take part.
        StreamerError: an engine cannot share its cache. It is raised on every rank.
    """
    rank = rank_config.rank
    places = msgspec.convert(exchange(gather, lambda: _describe_rank(connection, rank_config)), list[_Place])
    nodes = _group_ranks(places)
    if len(nodes) == 1 or _are_copies(places, rank):
        return ()
    number = next(number for number, ranks in enumerate(nodes) if rank in ranks)
    speaks = nodes[number][0] == rank
    token = places[0].token
    answers = exchange(
        gather, lambda: _open_engine(connection, shared, token, _find_host(places, rank)) if speaks else None
    )
    found = [msgspec.convert(answers[ranks[0]], _EngineNode) for ranks in nodes]
    local_batch = shared.global_batch // rank_config.world_size
    deal = _Deal(shared, found, [len(ranks) * local_batch for ranks in nodes])
    sharers = [
        Sharer(places[ranks[0]].folder, node.address, node.limit_bytes)
        for ranks, node in zip(nodes, found, strict=True)
    ]
    request = deal.request(token, found[number].host, sharers)
    exchange(gather, lambda: _send(connection, request) if speaks else None)
    if rank == 0:
        logger.info("%s share their caches%s", counted(len(nodes), "engines"), deal.describe())
    at = nodes[number].index(rank) * local_batch
    return deal.runs(number, slice(at, at + local_batch))


class _Deal:
    """Assigns samples of each lane to the nodes, by what they hold. Every rank computes the same.

    Args:
        shared: The dataset.
        nodes: Message of each engine.
        room: Samples of each node in a batch.
    """

    def __init__(self, shared: Shared, nodes: list[_EngineNode], room: list[int]) -> None:
        self._shared = shared
        self._table: Integers | None = None
        if shared.lanes is None:
            return
        self._held = np.zeros((shared.lane_count, len(nodes)), np.int64)
        for node, entry in enumerate(nodes):
            for lane, length in entry.held:
                self._held[lane, node] = length
        self._table = split_lanes(shared.lane_count, shared.global_batch // shared.lane_count, room, self._held)

    def describe(self) -> str:
        """Returns the end of a line of the log: which part of the data is read where it lies, and what travels."""
        if self._table is None:
            return "; chunks are kept by their keys"
        share = self._table / self._table.sum(axis=1, keepdims=True)
        here = np.minimum(share, self._held / _lane_bytes(self._shared)[:, None]).sum() / len(share)
        between = ((self._table > 0).sum(axis=1) - 1).sum() / len(share)
        return f"; {here:.0%} of the data is read where it lies, and up to {between:.2f} x dataset travels per epoch"

    def runs(self, node: int, share: slice) -> tuple[LaneRun, ...]:
        """Returns the samples of a rank in each lane of a batch; empty without lanes.

        Args:
            node: Number of its node.
            share: The rank's part of the samples of its node in a batch.
        """
        return () if self._table is None else lane_runs(self._table, node, share)

    def request(self, token: str, host: str, sharers: list[Sharer]) -> ShareCache:
        """Returns the request that tells an engine where chunks are kept.

        Args:
            token: Token that the engines show each other.
            host: Address of the engine's machine for the others.
            sharers: All engines, by the number of their node.
        """
        in_order = sorted(sharers, key=lambda sharer: sharer.id)
        request = ShareCache(0, self._shared.manifest.digest, token, host=host, sharers=in_order)
        if self._table is None:
            return request
        assert self._shared.lanes is not None
        index = [in_order.index(sharer) for sharer in sharers]
        others = np.where(self._table > 0, 0, self._held)
        return msgspec.structs.replace(
            request,
            name=self._shared.name,
            lanes=self._shared.lanes.astype("<i2").tobytes(),
            readers=[_sort_nodes(row, index) for row in self._table],
            former=[_sort_nodes(row, index)[:_MAX_FORMER] for row in others],
        )


def _sort_nodes(row: Integers, index: list[int]) -> list[tuple[int, int]]:
    """Returns (index of a node, share) for each share above 0, the largest first.

    Args:
        row: Share of each node.
        index: Index of each node in the request.
    """
    found = [(index[node], share) for node, share in enumerate(row.tolist()) if share]
    return sorted(found, key=lambda one: (-one[1], one[0]))


def _describe_rank(connection: EngineClient, rank_config: RankConfig) -> object:
    """Returns the `_Place` of this rank as JSON values."""
    welcome = connection.welcome
    engine = f"{welcome.pid}@{_name_machine()}"
    host = address_towards(rank_config.master) if rank_config.master else ""
    return msgspec.to_builtins(_Place(welcome.root_id, engine, host, _token() if rank_config.rank == 0 else ""))


def _name_machine() -> str:
    """Returns a text that all containers of this machine share, and no other machine has."""
    try:
        return _BOOT_ID.read_text()[:8]
    except OSError:  # a system without /proc, or a sandbox, where the name of the host is the best there is
        return os.uname().nodename


@cache
def _token() -> str:
    """Returns a random text, the same for all loaders of this process: so it differs for each start of the job."""
    return secrets.token_hex(32)


def _group_ranks(places: list[_Place]) -> list[list[int]]:
    """Returns the ranks of each engine."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank, place in enumerate(places):
        ranks.setdefault((place.folder, place.engine), []).append(rank)
    return list(ranks.values())


def _are_copies(places: list[_Place], rank: int) -> bool:
    """Returns whether several engines have cache folders of one id, so that nothing is shared; rank 0 warns then."""
    engines = {place.folder: place.engine for place in places}
    copied = sorted({place.folder for place in places if engines[place.folder] != place.engine})
    if copied and rank == 0:
        logger.warning(
            'share_caches="auto" is off: several machines have a cache folder of id %s, because their disks were '
            "copied; remove the file root-id from all but one of these folders, and start again",
            copied[0],
        )
    return bool(copied)


def _open_engine(connection: EngineClient, shared: Shared, token: str, host: str) -> object:
    """Lets the engine listen for the others; returns its `_EngineNode` as JSON values."""
    address = _send(connection, ShareCache(0, shared.manifest.digest, token, host))
    held: list[tuple[int, int]] = []
    if shared.lanes is not None:
        there = find_chunks(connection.roots()[0], shared.manifest.chunk_keys) & (shared.lanes >= 0)
        sizes = shared.manifest.chunk_local_bytes[there]
        by_lane = np.bincount(shared.lanes[there], weights=sizes, minlength=shared.lane_count)
        found = np.flatnonzero(by_lane > _LEAST_SHARE * _lane_bytes(shared))
        held = [(lane, int(by_lane[lane])) for lane in found.tolist()]
    return msgspec.to_builtins(_EngineNode(host, address, connection.welcome.cache_bytes, held))


def _send(connection: EngineClient, request: ShareCache) -> str:
    """Sends a request; returns the address at which the engine answers the others. Raises the engine's error."""
    options = connection.settings.encode_options()
    answer = connection.ask(
        lambda number: msgspec.structs.replace(request, request=number, options=options), CacheShared
    )
    return answer.address


def _lane_bytes(shared: Shared) -> npt.NDArray[np.float64]:
    """Returns the bytes of each lane: (L,)."""
    assert shared.lanes is not None
    chosen = shared.lanes >= 0
    sizes = shared.manifest.chunk_local_bytes[chosen]
    return np.maximum(1, np.bincount(shared.lanes[chosen], weights=sizes, minlength=shared.lane_count))


def address_towards(host: str) -> str:
    """Returns the address of this machine on the way to another one; nothing is sent but a look-up of the name.

    Raises:
        ConfigError: the host is unknown, or cannot be reached.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f'share_caches="auto" finds no way to MASTER_ADDR={host!r}: {error}', field="share_caches"
        ) from error


def _find_host(places: list[_Place], rank: int) -> str:
    """Returns the address of this rank's machine for the others.

    On the node of rank 0 MASTER_ADDR may lead to 127.0.0.1; then it is the address on the way to another rank.

    Raises:
        ConfigError: MASTER_ADDR is not set, or another rank cannot be reached.
    """
    if not (mine := places[rank].host):
        raise ConfigError(
            'share_caches="auto" needs MASTER_ADDR, the host of rank 0 as torchrun sets it, to find the network '
            "between the nodes",
            field="share_caches",
        )
    others = [place.host for place in places if place.host and not _is_loopback(place.host)]
    return address_towards(others[0]) if _is_loopback(mine) and others else mine


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def has_lanes(chunks: int, global_batch: int, lanes: int) -> bool:
    """Returns whether batches can be split by lanes, so that each rank reads what its node holds.

    Args:
        chunks: Number of chunks of the dataset.
        global_batch: Samples of a batch over all ranks.
        lanes: Number of lanes.
    """
    return global_batch % lanes == 0 and lanes < _MAX_LANES and chunks <= _MAX_CHUNKS
