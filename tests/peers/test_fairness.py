"""The share of each peer in a server's turns, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter

import aiohttp
import pytest

from streamer.peers.protocol import DUE_HEADER, MEMBER_HEADER
from tests.peers.parts import DATASET, TOKEN, key_of, node, put_chunk

pytestmark = [pytest.mark.process, pytest.mark.slow]

# Longer than the buffers of a connection (4 MiB at the sender): a send lasts as long as its reader takes. Of 256 KiB, a
# slow reader had its requests in its own buffers, none waited at the server, and there was nothing to share.
BYTES = 8 << 20
RECEIVE_BYTES = 256 << 10
# The greedy peer comes first and has all turns.
BEGUN, CHUNKS = 40, 200


async def test_a_greedy_peer_leaves_the_other_its_share(tmp_path):
    """A peer with 32 requests gets at least 40 % of the chunks beside one with 128, and at most 16 are sent at once."""
    async with node(tmp_path / "a", sends=16) as a:
        put_chunk(a.folder, 1, BYTES)
        got: list[str] = []
        path = f"http://{a.member.address}/v1/chunks/{key_of(1).hex()}?dataset={DATASET}&wait=1"

        async def pull(session: aiohttp.ClientSession, peer: str) -> None:
            headers = {"Authorization": f"Bearer {TOKEN}", MEMBER_HEADER: peer, DUE_HEADER: "60000"}
            while len(got) < CHUNKS:
                async with session.get(path, headers=headers) as answer:
                    assert answer.status in (200, 202)
                    async for _ in answer.content.iter_any():
                        pass
                    if answer.status == 200:
                        got.append(peer)

        most_sends = 0
        connector = aiohttp.TCPConnector(limit=0, socket_factory=_small_socket)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
            for peer, count in (("greedy", 128), ("modest", 32)):
                for _ in range(count):
                    group.create_task(pull(session, peer))
            while len(got) < CHUNKS:
                await asyncio.sleep(0.2)
                most_sends = max(most_sends, a.peers.statistics()["sends"])
        turns = Counter(got[BEGUN:CHUNKS])
        print(turns, most_sends)
        assert min(turns["greedy"], turns["modest"]) >= 0.4 * turns.total()
        assert 1 <= most_sends <= 16


def _small_socket(address: tuple[socket.AddressFamily, int, int, str, object]) -> socket.socket:
    """Makes a socket with a small buffer, so that a send lasts as long as its reader takes."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    return made
