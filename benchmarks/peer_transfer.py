"""What it costs to send chunks to peers and to receive them: CPU seconds per GB, over the loopback.

    python benchmarks/peer_transfer.py [--gigabytes 2] [--tls]

A peer server process and a client in this process, eight requests at a time, chunk files in memory. Prints a table and
keeps it in benchmarks/results/peer_transfer-<date>.txt, or peer_transfer_tls-<date>.txt.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import trustme
import uvloop
from report import kept

from streamer.cache.chunk_files import ChunkBytes, write_chunk
from streamer.cache.folder import CacheFolder, open_folder
from streamer.config import FetchConfig, PeersConfig
from streamer.fetch.memory_budget import MemoryBudget
from streamer.peers import tls
from streamer.peers.client import Asked, Refusal
from streamer.peers.group import Peers, open_peers
from streamer.peers.homes import PeerMember
from streamer.peers.messages import Availability
from streamer.peers.protocol import ChunkRequest

SIZES = (8 << 20, 1 << 20, 256 << 10)
ASKERS = 8
REST_SECONDS = 5.0
DATASET = "ab" * 32


async def serve_nothing_else(request: ChunkRequest) -> Availability:
    """The engine's side of the server: it has no chunk but those in the folder."""
    raise AssertionError("the file is there")


def write(folder: CacheFolder, size: int, count: int) -> dict[bytes, int]:
    """Chunk files of that many bytes: the length of each by its key."""
    content, keys = os.urandom(size), [os.urandom(16) for _ in range(count)]
    return {key: write_chunk(ChunkBytes(key, [content], np.array([0, size])), folder) for key in keys}


async def pull(peers: Peers, files: dict[bytes, int], total: int) -> int:
    """Receives so many bytes; returns how many it were."""
    member, got = PeerMember("server", f"127.0.0.1:{peers.server.port}"), 0
    turns = itertools.cycle(files.items())

    async def ask() -> None:
        nonlocal got
        while got < total:
            key, length = next(turns)
            due = asyncio.get_running_loop().time() + 10.0
            asked = Asked(key, DATASET, length, True, True, lambda due=due: due, lambda: "benchmark")
            answer = await peers.client.fetch_chunk(member, asked, asyncio.Event())
            if isinstance(answer, Refusal):  # on a busy machine: the peer is asked again after its pause
                await asyncio.sleep(0.1)
                continue
            got += len(answer.parts[0])
            answer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(ASKERS):
            group.create_task(ask())
    return got


def certified(folder: Path) -> Path:
    """The files of `[peers] tls_folder`."""
    authority = trustme.CA()
    certificate = authority.issue_cert("peer")
    certificate.private_key_pem.write_to_path(folder / tls.KEY)
    certificate.cert_chain_pems[0].write_to_path(folder / tls.CERTIFICATE)
    authority.cert_pem.write_to_path(folder / tls.AUTHORITY)
    return folder


async def measure(size: int, total: int, *, encrypted: bool) -> str:
    """One line of the table."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name, tempfile.NamedTemporaryFile("w") as token:
        print("benchmark", file=token, flush=True)
        folder = open_folder(Path(name, "cache"))
        files = write(folder, size, max(4, (64 << 20) // size))
        opening = open_peers(
            PeersConfig(
                members="127.0.0.1:1",
                listen="127.0.0.1:0",
                token_file=Path(token.name),
                tls_folder=certified(Path(name)) if encrypted else None,
            ),
            me=PeerMember("client"),
            chunks_folder=folder.path,
            serve=serve_nothing_else,
            memory=MemoryBudget(FetchConfig(memory_bytes=256 << 20)),
            send_bytes=512 << 20,
        )
        async with opening as peers:
            await pull(peers, files, size)
            server = psutil.Process(peers.server.pid)
            sending, receiving, begun = sum(server.cpu_times()[:2]), time.process_time(), time.monotonic()
            got = await pull(peers, files, total)
            receiving, seconds = time.process_time() - receiving, time.monotonic() - begun
            sending = sum(server.cpu_times()[:2]) - sending
            resting = sum(server.cpu_times()[:2])
            await asyncio.sleep(REST_SECONDS)
            resting = (sum(server.cpu_times()[:2]) - resting) / REST_SECONDS
            return (
                f"{size >> 10:8d} {sending / got * 1e9:13.3f} {receiving / got * 1e9:16.3f} {got / seconds / 1e9:9.2f}"
                f" {resting:14.2%} {server.memory_info().rss / 1e6:14.0f}"
            )


def table(gigabytes: float, *, encrypted: bool) -> Iterator[str]:
    """All lines."""
    yield "   KiB     send: s/GB    receive: s/GB      GB/s    at rest, core    memory, MB"
    for size in SIZES:
        yield uvloop.run(measure(size, int(gigabytes * 1e9), encrypted=encrypted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--tls", action="store_true")
    arguments = parser.parse_args()
    with kept("peer_transfer_tls" if arguments.tls else "peer_transfer"):
        for line in table(arguments.gigabytes, encrypted=arguments.tls):
            print(line, flush=True)


if __name__ == "__main__":
    main()
