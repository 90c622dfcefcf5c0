"""A real peer server and client: chunks, waits, ends and cancellations."""

from __future__ import annotations

import asyncio
import gc

import pytest

from streamer.peers.client import Refusal
from tests.peers.parts import asked, asker, fetch, key_of, node, put_chunk

pytestmark = pytest.mark.process


async def test_a_chunk_is_sent_whole(tmp_path):
    """A chunk on the disk of one engine is received whole by a peer; one that is not there is refused."""
    async with node(tmp_path / "a") as a, asker() as b:
        file = put_chunk(a.folder, 1)
        assert await fetch(b, a.member, asked(1, len(file))) == file
        assert a.engine.asked == []
        assert await fetch(b, a.member, asked(2, len(file))) is Refusal.NOT_HERE
        assert [request.key for request in a.engine.asked] == [key_of(2)]


async def test_a_chunk_that_is_coming_is_waited_for(tmp_path):
    """A chunk that is coming is answered with 202 and waited for, and is received when the home has it."""
    async with node(tmp_path / "a") as a, asker() as b:
        a.engine.answers[key_of(3)] = "coming"
        a.engine.arrives[key_of(3)] = 3
        found = await fetch(b, a.member, asked(3, 1 << 20, exact=False))
        assert found == a.folder.chunk_path(key_of(3)).read_bytes()
        assert [request.wait for request in a.engine.asked] == [False, True]


async def test_the_end_of_a_server_waits_for_no_idle_connection(tmp_path):
    """A server ends without waiting for idle connections of peers; each end of a service took 5 s (2026-11-23)."""
    async with asker() as b:
        async with node(tmp_path / "a") as a:
            file = put_chunk(a.folder, 1)
            assert await fetch(b, a.member, asked(1, len(file))) == file
            begun = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - begun < 4.0


async def test_a_cancelled_request_leaves_nothing(tmp_path, caplog):
    """A request for a chunk that is cancelled at any moment leaves no error, no memory and nothing in the log."""
    async with node(tmp_path / "a") as a, asker() as b:
        file = put_chunk(a.folder, 1, 4 << 20)
        for delay in range(30):
            asking = asyncio.ensure_future(fetch(b, a.member, asked(1, len(file))))
            await asyncio.sleep(delay * 0.0005)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        assert await fetch(b, a.member, asked(1, len(file))) == file
        gc.collect()
        assert caplog.records == []
