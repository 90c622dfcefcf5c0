"""Which source brings a chunk, the peer that keeps it or the store, with fakes of both."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from streamer.cache.chunk_files import ChunkBytes, write_chunk
from streamer.cache.folder import open_folder
from streamer.config import FetchConfig
from streamer.engine.bring import Fetch
from streamer.fetch.fair_gate import WaitQueue
from streamer.fetch.fetcher import Fetched
from streamer.fetch.memory_budget import MemoryBudget
from streamer.formats.chunkfile import file_bytes
from streamer.manifest.model import Codec
from streamer.peers.client import Asked, Refusal
from streamer.peers.homes import Homes, PeerMember
from streamer.peers.source import PeerSource

ME, PEER = PeerMember("me", "here:1"), PeerMember("peer", "there:1", 1 << 60)
LENGTH = 1000
CHUNK = SimpleNamespace(key=bytes(16), samples=1, codec=Codec.IDENTITY)
MANIFEST = SimpleNamespace(
    digest="ab" * 32, recoded=False, chunk=lambda number: CHUNK, sample_offsets=lambda number: np.array([0, LENGTH])
)
DATASET = SimpleNamespace(manifest=MANIFEST, file_bytes=np.array([file_bytes(LENGTH, 1)]))


class Parts:
    """Stands for a store, a publisher of chunks and a client of peers: each notes what it is asked and does no more."""

    def __init__(self, answer: Fetched | Refusal) -> None:
        self.answer = answer
        self.notes: list[str] = []

    async def fetch_chunk(self, member: PeerMember, asked: Asked, late: asyncio.Event) -> Fetched | Refusal:
        self.notes.append(f"asked {member.id}")
        return self.answer

    def is_up(self, member: PeerMember) -> bool:
        return True

    def reject(self, member: PeerMember) -> None:
        self.notes.append(f"rejected {member.id}")

    async def bring(self, fetch: Fetch) -> None:
        self.notes.append("store")

    async def publish_samples(self, fetch: Fetch, content: memoryview, offsets: np.ndarray) -> None:
        self.notes.append(f"published {len(content)}")


async def received(folder: Path, length: int, *, flipped: bool) -> tuple[MemoryBudget, Fetched]:
    """Makes a chunk file as it came from a peer, with a flipped bit if asked for."""
    folder = open_folder(folder)
    write_chunk(ChunkBytes(CHUNK.key, [bytes(length)], np.array([0, length])), folder)
    content = bytearray(folder.chunk_path(CHUNK.key).read_bytes())
    content[-100] ^= flipped
    memory = MemoryBudget(FetchConfig(memory_bytes=64 << 20))
    fetched = Fetched(*await memory.reserve(WaitQueue(lambda: 0.0), len(content)))
    fetched.parts[0][:] = content
    return memory, fetched


@pytest.mark.parametrize("refusal", Refusal)
async def test_the_store_brings_what_a_peer_refuses(refusal: Refusal) -> None:
    """The store brings a chunk that a peer refuses, as it does without peers."""
    parts = Parts(refusal)
    source = PeerSource(parts, parts, parts, Homes(ME, [PEER]))
    await source.bring(Fetch(CHUNK.key, DATASET, 0))
    assert parts.notes == ["asked peer", "store"]
    assert source.count.peer_hedge_losses == 0


@pytest.mark.parametrize(
    ("length", "flipped", "notes"),
    [
        (LENGTH, False, ["published 1000"]),
        (LENGTH, True, ["rejected peer", "store"]),
        (999, False, ["rejected peer", "store"]),
    ],
)
async def test_what_a_peer_sends_is_checked(tmp_path: Path, length: int, flipped: bool, notes: list[str]) -> None:
    """A chunk of another length or with a flipped bit is rejected and fetched from the store; its buffer is freed."""
    memory, file = await received(tmp_path / "cache", length, flipped=flipped)
    parts = Parts(file)
    source = PeerSource(parts, parts, parts, Homes(ME, [PEER]))
    await source.bring(Fetch(CHUNK.key, DATASET, 0))
    assert parts.notes == ["asked peer", *notes]
    assert memory.gate.used == 0
