"""Clients without the token of a real server: they get no byte of a chunk and cannot keep peers out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from pathlib import Path

import pytest
import trustme

from streamer.errors import ConfigError
from streamer.peers.client import Refusal
from tests.peers.parts import TOKEN, asked, asker, certified, fetch, node, put_chunk

pytestmark = pytest.mark.process


async def test_peers_with_another_token_get_nothing(tmp_path, caplog):
    """A peer with another token gets 401 and no byte, logs it once, and does not ask again for a minute."""
    async with node(tmp_path / "a") as a, asker("canary-another") as b:
        file = put_chunk(a.folder, 1)
        assert await fetch(b, a.member, asked(1, len(file))) is Refusal.DOWN
        assert not b.client.is_up(a.member)
        assert await b.client.facts(a.member.address) is None
        assert b.client.statistics()["peer_received_bytes"] == 0
        assert [r.getMessage() for r in caplog.records if "token" in r.getMessage()] == [
            f"peer {a.member.address} does not take the token of this engine; all of them need the same one"
        ]


@pytest.mark.parametrize("token", ["", None])
async def test_no_peers_without_a_token(tmp_path, token):
    """Peers without a token are a ConfigError, because the port would give chunks to all."""
    with pytest.raises(ConfigError, match="token"):
        async with node(tmp_path / "a", token=token):
            pass


async def test_no_peers_with_a_token_that_all_users_can_read(tmp_path):
    """A token file that all users can read is a ConfigError; a group may read it, as of a Secret of Kubernetes."""
    with pytest.raises(ConfigError, match=r"mode 0644.*chmod o-r"):
        async with node(tmp_path / "a", token_mode=0o644):
            pass
    async with node(tmp_path / "b", token_mode=0o440):
        pass


@pytest.mark.parametrize("encrypted", [False, True])
async def test_the_token_is_nowhere(tmp_path, caplog, capfd, encrypted):
    """The token is in no arguments, environment, log, error, statistics or file of the cache, with TLS and without."""
    caplog.set_level(logging.DEBUG)
    files = certified(tmp_path / "tls", trustme.CA()) if encrypted else ""
    async with node(tmp_path / "a", tls_folder=files or None) as a, asker(tls_folder=files) as b:
        file = put_chunk(a.folder, 1)
        assert await fetch(b, a.member, asked(1, len(file))) == file
        for garbage in (
            b"GET /x\r\n",
            b"\xff\xfe\r\n\r\n",
            b"GET / HTTP/1.1\r\nAuthorization: " + b"z" * 5000 + b"\r\n",
        ):
            await asyncio.to_thread(_say, a.member.address, garbage + f"Authorization: Bearer {TOKEN}\r\n\r\n".encode())
        process = Path(f"/proc/{a.server.pid}")
        seen = process.joinpath("cmdline").read_bytes() + process.joinpath("environ").read_bytes()
        assert b"streamer.peers" in seen
        seen += repr([a.peers, a.server, b.client, a.peers.statistics(), b.client.table()]).encode()
        seen += b"".join(path.read_bytes() for path in a.folder.path.rglob("*") if path.is_file())
    seen += caplog.text.encode() + "".join(capfd.readouterr()).encode()
    assert TOKEN.encode() not in seen


def _say(address: str, raw: bytes) -> None:
    """Sends bytes and reads the answer to its end."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection, contextlib.suppress(OSError):
        connection.sendall(raw)
        while connection.recv(4096):
            pass


@pytest.mark.slow
@pytest.mark.parametrize(("count", "encrypted"), [(1_000, False), (8_000, False), (8_000, True)])
async def test_slow_connections(tmp_path, count, encrypted):
    """Thousands of connections that send a byte and no more are closed after seconds; peers are answered meanwhile."""
    files = certified(tmp_path / "tls", trustme.CA()) if encrypted else ""
    async with node(tmp_path / "a", tls_folder=files or None) as a, asker(tls_folder=files) as b:
        file = put_chunk(a.folder, 1)
        assert await fetch(b, a.member, asked(1, len(file))) == file
        host, _, port = a.member.address.rpartition(":")
        connections, descriptors = [], 0
        try:
            for number in range(count):
                connection = socket.create_connection((host, int(port)), timeout=20)
                connections.append(connection)
                with contextlib.suppress(OSError):
                    connection.send(b"GET /v1/chunks/" if number % 2 else b"G")
                if number % 100 == 0:
                    assert await fetch(b, a.member, asked(1, len(file))) == file
                    descriptors = max(descriptors, len(os.listdir(f"/proc/{a.server.pid}/fd")))
            # Those that shake hands are closed after 4 s.
            assert encrypted or descriptors < 400
            for connection in connections:
                connection.settimeout(30)
                with contextlib.suppress(ConnectionError):
                    assert connection.recv(1) == b""
        finally:
            for connection in connections:
                connection.close()
        assert await fetch(b, a.member, asked(1, len(file))) == file
