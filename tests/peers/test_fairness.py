"""Two peers, one of them greedy, over real sockets."""

from __future__ import annotations

import asyncio
from collections import Counter

import aiohttp
import pytest

from streamer.peers.protocol import DUE_HEADER, MEMBER_HEADER
from tests.peers.parts import DATASET, TOKEN, key_of, node, put_chunk

pytestmark = [pytest.mark.process, pytest.mark.slow]

BYTES = 256 << 10


async def test_a_greedy_peer_leaves_the_other_its_share(tmp_path):
    """64 requests at once against 16: each gets 40 % of the bytes or more, and few are sent at once."""
    async with node(tmp_path / "a", sends=16) as a:
        put_chunk(a.folder, 1, BYTES)
        got: Counter[str] = Counter()
        path = f"http://{a.member.address}/v1/chunks/{key_of(1).hex()}?dataset={DATASET}&wait=1"
        end = asyncio.get_running_loop().time() + 5.0

        async def pull(session: aiohttp.ClientSession, peer: str) -> None:
            headers = {"Authorization": f"Bearer {TOKEN}", MEMBER_HEADER: peer, DUE_HEADER: "60000"}
            while asyncio.get_running_loop().time() < end:
                async with session.get(path, headers=headers) as answer:
                    assert answer.status in (200, 202)
                    async for piece in answer.content.iter_any():
                        got[peer] += len(piece)

        most_sends = 0
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
            for peer, count in (("greedy", 64), ("modest", 16)):
                for _ in range(count):
                    group.create_task(pull(session, peer))
            await asyncio.sleep(1.0)
            got.clear()  # now both want them
            while asyncio.get_running_loop().time() < end:
                await asyncio.sleep(0.2)
                most_sends = max(most_sends, a.peers.statistics()["sends"])
        shares = {peer: count / got.total() for peer, count in got.items()}
        print(shares, f"{got.total() / 4e9:.2f} GB/s", most_sends)
        assert min(shares.values()) >= 0.4
        assert 1 <= most_sends <= 16
