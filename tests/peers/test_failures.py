"""Peers that die, hang or come back, with real server processes that are killed and stopped."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys

import pytest

from streamer.peers.client import Refusal
from streamer.peers.homes import PeerMember
from tests.peers.parts import TOKEN, Asker, asked, asker, fetch, node, put_chunk
from tests.serving import serving

pytestmark = [pytest.mark.process, pytest.mark.timing]  # about how long readers wait

STORE_SECONDS = 0.03
# A chunk that is needed now is late after 250 ms; the rest is a machine on which other tests run.
MOST_WAIT_SECONDS = 0.25 + STORE_SECONDS + 0.35


class Readers:
    """Stands for the readers of a node: they read chunks one by one from the peer.

    From a store that takes 30 ms they read where the peer is late or refuses; the store is a sleep.
    """

    def __init__(self, of: Asker, member, lengths: list[int]) -> None:
        self.of, self.member, self.lengths = of, member, lengths
        self.waits: list[float] = []
        self.sources: list[str] = []

    async def read(self, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(self._read(number, end))

    async def _read(self, number: int, end: float) -> None:
        loop = asyncio.get_running_loop()
        while (begun := loop.time()) < end:
            self.sources.append(await self._one(number % len(self.lengths)))
            self.waits.append(loop.time() - begun)
            await asyncio.sleep(0.01)

    async def _one(self, number: int) -> str:
        if not self.of.client.is_up(self.member):
            await asyncio.sleep(STORE_SECONDS)
            return "store"
        late = asyncio.Event()
        peer = asyncio.ensure_future(fetch(self.of, self.member, asked(number, self.lengths[number]), late))
        is_late = asyncio.ensure_future(late.wait())
        await asyncio.wait({peer, is_late}, return_when=asyncio.FIRST_COMPLETED)
        is_late.cancel()
        if not peer.done():
            await asyncio.wait({peer}, timeout=STORE_SECONDS)
        if peer.done() and isinstance(peer.result(), bytes):
            return "peer"
        if peer.done():
            await asyncio.sleep(STORE_SECONDS)
        else:
            peer.cancel()
            await asyncio.gather(peer, return_exceptions=True)
        return "store"


@pytest.mark.slow
async def test_a_killed_server_costs_its_readers_nothing_but_the_store(tmp_path):
    """Readers wait no longer than for the store when a peer's server is killed; its engine starts it again."""
    async with node(tmp_path / "a") as a, asker() as b:
        lengths = [len(put_chunk(a.folder, number)) for number in range(4)]
        readers = Readers(b, a.member, lengths)
        await readers.read(1.0)
        os.kill(a.server.pid, signal.SIGKILL)
        await readers.read(6.0)
        assert max(readers.waits) < MOST_WAIT_SECONDS
        assert readers.sources[-1] == "peer"
        assert "store" in readers.sources
        assert a.server.restarts == 1


@pytest.mark.slow
async def test_a_stopped_server_is_down_after_a_second_of_lost_races(tmp_path):
    """A peer's server that is stopped is down after a second of lost races, and is asked again when it goes on."""
    async with node(tmp_path / "a") as a, asker() as b:
        lengths = [len(put_chunk(a.folder, number)) for number in range(4)]
        readers = Readers(b, a.member, lengths)
        await readers.read(1.0)
        requests = b.client.statistics()["peer_requests"]
        os.kill(a.server.pid, signal.SIGSTOP)
        try:
            await readers.read(4.0)
            assert not b.client.is_up(a.member)
            # Those under way when it was stopped, and those until it was known.
            assert b.client.statistics()["peer_requests"] - requests <= 30
        finally:
            os.kill(a.server.pid, signal.SIGCONT)
        await readers.read(5.0)
        assert max(readers.waits) < MOST_WAIT_SECONDS
        assert readers.sources[-1] == "peer"
        assert readers.sources.count("store") > 20


async def test_an_address_without_a_server_is_probed_once_in_each_pause():
    """A peer that breaks connections is down, and is probed after 1 s and then 2 s without a request for a chunk."""
    requests: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def connected(reader, writer):
        request = await reader.readuntil(b"\r\n\r\n")
        requests.put_nowait((asyncio.get_running_loop().time(), request.split()[1]))
        assert TOKEN.encode() in request

    async with asyncio.timeout(30), serving(connected) as port, asker() as b:
        member = PeerMember("x", f"127.0.0.1:{port}")
        found = await asyncio.gather(*(fetch(b, member, asked(number, 1000)) for number in range(8)))
        assert set(found) == {Refusal.DOWN}
        while not requests.empty():
            assert requests.get_nowait()[1].startswith(b"/v1/chunks/")
        (first, *paths), (second, *more) = await requests.get(), await requests.get()
        assert await fetch(b, member, asked(1, 1000)) is Refusal.DOWN
        assert requests.empty()
    assert [*paths, *more] == [b"/v1/peer", b"/v1/peer"]
    assert second - first >= 1.9


@pytest.mark.slow
async def test_the_server_ends_with_its_engine(tmp_path):
    """The server process of peers ends when its engine is killed, even before it has received its token."""
    program = (
        "import asyncio, os, sys; from pathlib import Path; from tests.peers.parts import node\n"
        "async def main():\n"
        "    async with node(Path(sys.argv[1])) as a:\n"
        "        while a.server.pid is None: await asyncio.sleep(0.01)\n"
        "        print(a.server.pid, flush=True); await asyncio.sleep(float(sys.argv[2])); os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())"
    )
    for number, seconds in enumerate((0.0, 2.0)):
        folder = tmp_path / str(number)
        folder.mkdir()
        engine = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, str(folder), str(seconds), stdout=asyncio.subprocess.PIPE
        )
        server = os.pidfd_open(int(await engine.stdout.readline()))
        assert await engine.wait() == -signal.SIGKILL
        ended, _, _ = await asyncio.to_thread(select.select, [server], [], [], 20)
        os.close(server)
        assert ended
