"""The protocol of peers, asked by hand of a real server process: every status, and what is no request."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import time

import aiohttp
import pytest
import uvloop

from streamer.peers.protocol import DUE_HEADER, MEMBER_HEADER
from tests.peers.parts import DATASET, TOKEN, key_of, node, put_chunk

pytestmark = pytest.mark.process

KEY = key_of(1).hex()
PATH = f"/v1/chunks/{KEY}?dataset={DATASET}"
SHOWN = {"Authorization": f"Bearer {TOKEN}"}


@contextlib.asynccontextmanager
async def asking(of):
    """Opens an HTTP session with the token at a node."""
    url = f"http://{of.member.address}"
    async with aiohttp.ClientSession(url, headers=SHOWN, timeout=aiohttp.ClientTimeout(10)) as session:
        yield session


async def status(session, path, **more) -> int:
    """Returns the status of a request."""
    async with session.request(more.pop("method", "GET"), path, **more) as answer:
        return answer.status


async def test_each_status(tmp_path):
    """A chunk is answered with 200, 202 or 404; wrong tokens, methods and headers with 401, 405 and 400."""
    async with node(tmp_path / "a") as a, asking(a) as session:
        assert await status(session, PATH) == 404
        a.engine.answers[key_of(1)] = "coming"
        assert await status(session, PATH) == 202
        assert await status(session, f"{PATH}&held=1") == 404, "the engine is not asked"
        assert len(a.engine.asked) == 2
        file = put_chunk(a.folder, 1)
        async with session.get(PATH) as answer:
            assert (answer.status, await answer.read()) == (200, file)
        assert await status(session, PATH, headers={"Authorization": "Bearer other"}) == 401
        assert await status(session, PATH, headers={"Authorization": TOKEN}) == 401
        assert await status(session, PATH, headers={MEMBER_HEADER: "ü"}) == 400
        for method in ("HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            assert await status(session, PATH, method=method) == 405
        assert len(a.engine.asked) == 2


@pytest.mark.leaves_over("libuv opens one pipe for signals per process and keeps it")
def test_a_busy_engine_answers_many_requests_in_one_turn(tmp_path):
    """An engine answers many requests of peers in one turn of its loop.

    A turn takes 20 ms: with one answer in each, the last of 64 requests would wait for 1.3 s.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        asked = runner.run(asked_after_each_turn(tmp_path, 64))
    assert max(after - before for before, after in itertools.pairwise(asked)) >= 8, asked


async def asked_after_each_turn(folder, requests: int) -> list[int]:
    """Returns how many requests the engine had been asked after each turn of 20 ms."""
    async with node(folder / "a") as a:
        with contextlib.ExitStack() as connections:
            for number in range(requests):
                connection = connections.enter_context(socket.create_connection(("127.0.0.1", a.server.port), 10))
                path = f"/v1/chunks/{key_of(number).hex()}?dataset={DATASET}"
                connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
            asked = [0]
            while asked[-1] < requests:
                asyncio.get_running_loop().call_soon(time.sleep, 0.02)
                await asyncio.sleep(0)
                asked.append(len(a.engine.asked))
            return asked


async def test_manifests(tmp_path):
    """The files of a manifest are answered by its digest; a link in their place is answered with 404."""
    async with node(tmp_path / "a") as a, asking(a) as session:
        folder, path = a.folder.path / "manifests" / DATASET, f"/v1/manifests/{DATASET}"
        assert await status(session, f"{path}/root.json") == 404
        folder.mkdir(parents=True)
        folder.joinpath("root.json").write_bytes(b"root")
        folder.joinpath("chunks-00000.arrows").write_bytes(bytes(1 << 20))
        folder.joinpath("samples-00000.arrows").symlink_to(a.folder.path / "root-id")
        async with session.get(f"{path}/root.json") as answer:
            assert (answer.status, await answer.read()) == (200, b"root")
        async with session.get(f"{path}/chunks-00000.arrows") as answer:
            assert (answer.status, await answer.read()) == (200, bytes(1 << 20))
        assert await status(session, f"{path}/samples-00000.arrows") == 404
        assert await status(session, f"{path}/root.json", headers={"Authorization": "Bearer other"}) == 401


async def test_facts(tmp_path):
    """The facts of a peer are what membership needs, and nothing of its cache."""
    async with node(tmp_path / "a") as a, asking(a) as session, session.get("/v1/peer") as answer:
        facts = json.loads(await answer.read())
    assert facts.pop("instance")
    assert facts.pop("version")
    assert facts == {"protocol": 1, "placement": 1, "id": a.member.id, "limit_bytes": 1 << 30}


NO_KEYS = (
    "/",
    "/v1/peers",
    "/v1/chunks/",
    f"/v1/chunks/{KEY}",
    f"/v1/chunks/{KEY}?dataset=",
    f"/v1/chunks/{KEY}?dataset=../../etc",
    f"/v1/chunks/{KEY[:-1]}?dataset={DATASET}",
    f"/v1/chunks/{KEY}0?dataset={DATASET}",
    f"/v1/chunks/{KEY.upper()}?dataset={DATASET}",
    f"/v1/chunks/../../root-id?dataset={DATASET}",
    f"/v1/chunks/%2e%2e%2f%2e%2e%2froot-id?dataset={DATASET}",
    f"/v1/chunks/{KEY}/../../../streamer-cache?dataset={DATASET}",
    f"/v1/chunks/{KEY}.chunk?dataset={DATASET}",
    f"/v1/manifests/{DATASET}",
    f"/v1/manifests/{DATASET}/",
    f"/v1/manifests/{DATASET}/notes",
    "/v1/manifests/../root.json",
    f"/v1/manifests/{DATASET}/..%2froot.json",
    f"/v1/manifests/{DATASET}/../../root-id",
)


async def test_keys_that_are_no_keys(tmp_path):
    """A path that is not exactly a chunk key or a manifest file is answered with 400, and reads no file."""
    async with node(tmp_path / "a") as a, asking(a) as session:
        put_chunk(a.folder, 1)
        assert {path: await status(session, path) for path in NO_KEYS} == dict.fromkeys(NO_KEYS, 400)
        assert a.engine.asked == []


async def test_odd_requests(tmp_path):
    """A request with a body, a bad due time, too long headers or garbage is refused, and the server goes on."""
    async with node(tmp_path / "a") as a, asking(a) as session:
        put_chunk(a.folder, 1)
        assert await status(session, PATH, data=b"x") == 400
        assert await status(session, PATH, headers={DUE_HEADER: "soon"}) == 400
        assert await status(session, PATH, headers={"X": "y" * 5000}) == 400
        for garbage in (b"\0\1\2\3\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01" * 100, b"GET / HTTP/9.9\r\n\r\n"):
            answer = await asyncio.to_thread(_send, a.member.address, garbage)
            assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
        assert await status(session, PATH) == 200


def _send(address: str, raw: bytes) -> bytes:
    """Sends bytes and returns the whole answer."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(raw)
        found = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(4096):
                found += piece
    return found


async def test_a_link_below_the_folder_is_not_followed(tmp_path):
    """A link in the place of a chunk file is not followed and is answered with 404."""
    async with node(tmp_path / "a") as a, asking(a) as session:
        a.folder.chunk_path(key_of(1)).symlink_to("/etc/hostname")
        assert await status(session, PATH) == 404


async def test_a_file_larger_than_what_may_be_sent_is_not(tmp_path):
    """A chunk file larger than the bytes that may be under way at once is answered with 404."""
    async with node(tmp_path / "a", send_bytes=1 << 20) as a, asking(a) as session:
        put_chunk(a.folder, 1, 1 << 20)
        assert await status(session, PATH) == 404


async def test_a_leaving_server_sends_what_it_has_begun(tmp_path):
    """A server that ends with its engine first sends the chunk that it has begun."""
    async with contextlib.AsyncExitStack() as stack:
        a = await stack.enter_async_context(node(tmp_path / "a"))
        file = put_chunk(a.folder, 1, 16 << 20)
        async with asking(a) as session, session.get(PATH) as answer:
            start = await answer.content.readexactly(1024)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(stack.aclose())
                assert start + await answer.read() == file
