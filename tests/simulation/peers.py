"""Simulates engines that share their caches, without data: real policies and homes, chunks that arrive at once.

What it leaves out: time. A chunk that is fetched is there at once, so peers never wait for each other, and no request
is late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.base.splitmix import fold
from streamer.cache.policy.answers import Admit
from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.sessions import SessionOpening
from streamer.cache.policy.table import charge
from streamer.peers.homes import Homes, PeerMember

CHUNK_BYTES = 1 << 20
DATASET = "simulated"
OPEN, AHEAD = 8, 8


class Counts(msgspec.Struct):
    """Chunks by source, and those that each engine sent, in order of the engines."""

    store: int
    peer: int
    local: int
    served: list[int]


class Node:
    """One engine: its cache, and a job that reads there.

    Args:
        number: makes its id.
        limit_chunks: of its cache.
        keys: of all chunks, uint8 (chunks, 16).
    """

    def __init__(self, number: int, limit_chunks: float, keys: NDArray[np.uint8]) -> None:
        self.member = PeerMember(f"{fold(7, number):032x}")
        self.policy = CachePolicy(int(limit_chunks * charge(CHUNK_BYTES)))
        self.policy.add_dataset(DATASET, np.full(len(keys), CHUNK_BYTES), keys)
        self.homes = Homes(self.member, ())
        self.served = 0
        size = charge(CHUNK_BYTES)
        self.policy.open_session("reader", "job", DATASET, OPEN * size, AHEAD * size)
        self.policy.open_sessions("peers", [SessionOpening("peers", DATASET, size, 0, counted=False)])


class PeerSimulation:
    """Engines, and the chunks that their jobs need.

    Args:
        nodes: how many engines.
        chunks: of the dataset.
        share: of the dataset that each cache takes.
        shared: False: they do not know each other.
    """

    def __init__(self, nodes: int, chunks: int, share: float, *, shared: bool = True) -> None:
        self.keys = np.random.default_rng(1).integers(0, 256, (chunks, 16), dtype=np.uint8)
        self.shared = shared
        self._limit = share * chunks
        self._made = 0
        self.nodes: list[Node] = []
        self.change(range(0), nodes)

    def change(self, stay: Sequence[int], new: int) -> None:
        """Replaces the engines: keeps some in this order, and adds new ones with empty caches."""
        added = [Node(self._made + number, self._limit, self.keys) for number in range(new)]
        self._made += new
        self.nodes = [self.nodes[index] for index in stay] + added
        members = [node.member for node in self.nodes]
        for node in self.nodes if self.shared else ():
            node.homes = Homes(node.member, members)
            node.policy.place(node.homes.places)

    def epoch(self, needs: Sequence[NDArray[np.int64]]) -> Counts:
        """Each engine's job reads its chunks once, all at the same pace."""
        counts = Counts(0, 0, 0, [0] * len(self.nodes))
        for node in self.nodes:
            node.served = 0
        readers = [self._read(node, numbers, counts) for node, numbers in zip(self.nodes, needs, strict=True)]
        while readers:
            readers = [reader for reader in readers if next(reader, None) is not None]
        counts.served = [node.served for node in self.nodes]
        return counts

    def _read(self, node: Node, numbers: NDArray[np.int64], counts: Counts) -> Iterator[bool]:
        """One job's epoch, a chunk at a time: asked for `AHEAD` before its use, open for `OPEN` uses."""
        order = numbers.tolist()
        node.policy.start_epoch("reader", numbers)
        for step in range(len(order) + AHEAD + OPEN):
            if step < len(order):
                node.policy.look_ahead("reader", order[step])
            if 0 <= (use := step - AHEAD) < len(order):
                self._need(node, order[use], counts)
                node.policy.open("reader", order[use])
            if 0 <= (done := step - AHEAD - OPEN) < len(order):
                node.policy.release("reader", order[done])
            yield True

    def _need(self, node: Node, chunk: int, counts: Counts) -> None:
        answer = node.policy.need("reader", chunk, blocking=True)
        if not isinstance(answer, Admit):
            counts.local += 1
            return
        self._bring(node, chunk, answer.key, counts)
        node.policy.publish(answer.key)

    def _bring(self, node: Node, chunk: int, key: bytes, counts: Counts) -> None:
        """Brings a chunk as `engine.peers.routes` does with all members up."""
        home, *rest = (self._node(member) for member in node.homes.order(key))
        if home is node:
            sender = next((other for other in rest if other.policy.is_local(key)), None)
        else:
            sender = home if self._has(home, chunk, key, counts) else None
        if sender is None:
            counts.store += 1
        else:
            counts.peer += 1
            sender.served += 1

    def _has(self, home: Node, chunk: int, key: bytes, counts: Counts) -> bool:
        """Whether the home has the chunk now; it fetches what stays there."""
        if home.policy.is_local(key) or not home.policy.is_selected(key):
            return home.policy.is_local(key)
        home.policy.look_ahead("peers", chunk)
        answer = home.policy.need("peers", chunk)
        if isinstance(answer, Admit):
            self._bring(home, chunk, key, counts)
            home.policy.publish(key)
        home.policy.release("peers", chunk)
        return isinstance(answer, Admit)

    def _node(self, member: PeerMember) -> Node:
        return next(node for node in self.nodes if node.member.id == member.id)
