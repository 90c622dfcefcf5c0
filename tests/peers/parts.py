"""A cache folder with chunks, and real peer servers and clients on a fake engine."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import trustme

from streamer.cache.chunk_files import ChunkBytes, write_chunk
from streamer.cache.folder import CacheFolder, open_folder
from streamer.config import FetchConfig, PeersConfig
from streamer.fetch.memory_budget import MemoryBudget
from streamer.peers import tls
from streamer.peers.client import Asked, PeerClient, Refusal
from streamer.peers.group import Peers, open_peers
from streamer.peers.homes import PeerMember
from streamer.peers.messages import Availability
from streamer.peers.protocol import ChunkRequest

TOKEN = "canary-7f3a9c-token"
DATASET = "ab" * 32
SEND_BYTES = 256 << 20
_numbers = itertools.count()


def key_of(number: int) -> bytes:
    """Returns the key of the chunk with this number."""
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def content_of(number: int, length: int) -> bytes:
    """Returns the content of the chunk with this number."""
    return np.random.default_rng(number).bytes(length)


def put_chunk(folder: CacheFolder, number: int, length: int = 1 << 20) -> bytes:
    """Writes a chunk of two samples and returns its file's bytes."""
    content = content_of(number, length)
    write_chunk(ChunkBytes(key_of(number), [content], np.array([0, length // 3, length])), folder)
    return folder.chunk_path(key_of(number)).read_bytes()


class FakeEngine:
    """Stands for the engine of a peer server: it answers by the chunk's number, and writes the chunk if told to.

    It fetches nothing and has no sessions.
    """

    def __init__(self, folder: CacheFolder) -> None:
        self.folder = folder
        self.answers: dict[bytes, Availability] = {}
        self.arrives: dict[bytes, int] = {}
        self.asked: list[ChunkRequest] = []

    async def serve(self, request: ChunkRequest) -> Availability:
        self.asked.append(request)
        if request.wait and request.key in self.arrives:
            put_chunk(self.folder, self.arrives.pop(request.key))
            self.answers[request.key] = "there"
        return self.answers.get(request.key, "no")


class Asker:
    """Stands for an engine that asks peers: it has a real client and a memory budget, and no server."""

    def __init__(self, client: PeerClient, memory: MemoryBudget) -> None:
        self.client, self.memory = client, memory


@asynccontextmanager
async def asker(token: str = TOKEN, memory_bytes: int = 64 << 20, tls_folder: Path | str = "") -> AsyncIterator[Asker]:
    """Opens a client of peers, and asserts afterwards that it holds no memory."""
    memory = MemoryBudget(FetchConfig(memory_bytes=memory_bytes))
    async with PeerClient(f"asker {next(_numbers)}", token, memory, str(tls_folder)) as client:
        yield Asker(client, memory)
    assert memory.gate.used == 0


class Node:
    """Stands for an engine with peers: cache folder, server process and client are real, the engine is a fake."""

    def __init__(self, folder: CacheFolder, engine: FakeEngine, peers: Peers) -> None:
        self.folder, self.engine, self.peers = folder, engine, peers
        self.client, self.server = peers.client, peers.server
        self.member = PeerMember(folder.root_id, f"127.0.0.1:{peers.server.port}", 1 << 30)


@asynccontextmanager
async def node(
    path: Path, members: str = "127.0.0.1:1", *, listen: str = "127.0.0.1:0", **changes
) -> AsyncIterator[Node]:
    """Opens a node with a server process of its own."""
    folder = open_folder(path / "cache")
    token, token_file = changes.pop("token", TOKEN), None
    if token is not None:
        token_file = path / "token"
        token_file.write_text(token)
        token_file.chmod(changes.pop("token_mode", 0o600))
    sends, send_bytes = changes.pop("sends", 16), changes.pop("send_bytes", SEND_BYTES)
    config = PeersConfig(
        members=members, listen=listen, token_file=token_file, sends=sends, tls_folder=changes.pop("tls_folder", None)
    )
    engine, memory = FakeEngine(folder), MemoryBudget(FetchConfig(memory_bytes=64 << 20))
    opening = open_peers(
        config,
        me=PeerMember(folder.root_id, listen, 1 << 30),
        chunks_folder=folder.path,
        serve=engine.serve,
        memory=memory,
        send_bytes=send_bytes,
    )
    async with opening as peers:
        yield Node(folder, engine, peers)


def certified(folder: Path, authority: trustme.CA) -> Path:
    """Writes the files of `[peers] tls_folder`, with a certificate of that authority."""
    folder.mkdir(parents=True, exist_ok=True)
    certificate = authority.issue_cert("peer")
    certificate.private_key_pem.write_to_path(folder / tls.KEY)
    certificate.cert_chain_pems[0].write_to_path(folder / tls.CERTIFICATE)
    authority.cert_pem.write_to_path(folder / tls.AUTHORITY)
    return folder


def asked(number: int, length: int, *, fetch: bool = True, exact: bool = True, due_seconds: float = 0.0) -> Asked:
    """Makes the request for a chunk of this file length, due in so many seconds."""
    due = asyncio.get_running_loop().time() + due_seconds
    return Asked(key_of(number), DATASET, length, exact, fetch, lambda: due, lambda: "job")


async def fetch(
    of: Node | Asker, member: PeerMember, asking: Asked, late: asyncio.Event | None = None
) -> bytes | object:
    """Returns the bytes of a chunk file, or the refusal."""
    answer = await of.client.fetch_chunk(member, asking, late or asyncio.Event())
    if isinstance(answer, Refusal):
        return answer
    try:
        return bytes(answer.parts[0])
    finally:
        answer.close()
