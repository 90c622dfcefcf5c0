"""Peers over TLS with real servers: only a certificate of their authority and the token get chunks."""

from __future__ import annotations

import asyncio
import datetime
import re
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from streamer.errors import ConfigError
from streamer.peers import tls
from streamer.peers.client import Refusal
from streamer.peers.homes import PeerMember
from tests.peers.parts import TOKEN, asked, asker, certified, fetch, node, put_chunk
from tests.serving import serving

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """The authority of all peers of the module."""
    return trustme.CA()


@pytest.fixture
def folder(tmp_path: Path, authority: trustme.CA) -> Path:
    """The TLS files of an engine."""
    return certified(tmp_path / "tls", authority)


async def test_chunks_and_members_over_tls(tmp_path, authority, folder):
    """Chunks and members are exchanged over TLS as over plain HTTP, each engine with a certificate of its own."""
    other = certified(tmp_path / "other", authority)
    async with node(tmp_path / "a", tls_folder=folder) as a:
        file = put_chunk(a.folder, 1, 3 << 20)
        async with node(tmp_path / "b", a.member.address, tls_folder=other) as b:
            assert await fetch(b, a.member, asked(1, len(file))) == file
            assert await fetch(b, a.member, asked(2, len(file))) is Refusal.NOT_HERE
            views = b.peers.follow_members()
            assert await anext(views) == (a.member,)
            await views.aclose()


async def test_another_authority_or_none(tmp_path, caplog, folder):
    """A peer with a certificate of another authority, with none, or over plain HTTP gets no byte of a chunk."""
    stranger = certified(tmp_path / "stranger", trustme.CA())
    # As if it had stolen the name of the authority: it takes what answers, and shows what it has.
    certified(tmp_path / "trusting", trustme.CA())
    (tmp_path / "trusting" / tls.AUTHORITY).write_bytes((folder / tls.AUTHORITY).read_bytes())
    async with node(tmp_path / "a", tls_folder=folder) as a:
        file = put_chunk(a.folder, 1)
        for files in (stranger, tmp_path / "trusting", ""):
            async with asker(tls_folder=files) as b:
                assert await fetch(b, a.member, asked(1, len(file))) is Refusal.DOWN
                assert await b.client.facts(a.member.address) is None
                assert b.client.statistics()["peer_received_bytes"] == 0
        assert await asyncio.to_thread(_without_certificate, a.member, folder) == b""
        async with asker("canary-another", tls_folder=folder) as b:
            assert await fetch(b, a.member, asked(1, len(file))) is Refusal.DOWN
        async with asker(tls_folder=folder) as b:
            assert await fetch(b, a.member, asked(1, len(file))) == file
    texts = [record.getMessage() for record in caplog.records if "certificates" in record.getMessage()]
    assert (
        len(texts) == 1
    )  # of the one that sees a certificate that it does not know; the others see a closed connection
    assert a.member.address in texts[0]


def _without_certificate(member: PeerMember, folder: Path) -> bytes:
    """Returns what a client gets that shows the token and no certificate."""
    context = ssl.create_default_context(cafile=str(folder / tls.AUTHORITY))
    context.check_hostname = False
    host, _, port = member.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as plain, context.wrap_socket(plain) as connection:
        try:
            connection.sendall(f"GET /v1/peer HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
            return connection.recv(4096)
        except (ssl.SSLError, ConnectionError):
            return b""


async def test_an_impostor_gets_no_token(tmp_path, folder):
    """A server with a certificate of another authority receives no request, hence no token."""
    files = certified(tmp_path / "impostor", trustme.CA())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / tls.CERTIFICATE, files / tls.KEY)
    seen = bytearray()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend(await reader.read())

    async with serving(connected, context) as port, asker(tls_folder=folder) as b:
        member = PeerMember("impostor", f"127.0.0.1:{port}", 1 << 30)
        assert await fetch(b, member, asked(1, 1000)) is Refusal.DOWN
        assert not b.client.is_up(member)
    assert seen == b""


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_certificates_as_the_page_makes_them(tmp_path):
    """The commands of docs/scale-out.md make a folder of certificates that is accepted."""
    page = (Path(__file__).parents[2] / "docs" / "scale-out.md").read_text()
    (commands,) = re.findall(r"^```\n(openssl .*?)```", page, re.DOTALL | re.MULTILINE)
    subprocess.run(["bash", "-ec", commands], cwd=tmp_path, check=True, capture_output=True)
    tls.check(str(tmp_path))


@pytest.mark.parametrize("name", [tls.CERTIFICATE, tls.KEY, tls.AUTHORITY])
@pytest.mark.parametrize("content", [None, b"", b"garbage"])
async def test_files_that_are_none(tmp_path, folder, name, content):
    """A TLS file that is missing, empty or no PEM is an error at the start, with the folder and what it needs."""
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    await _refused(tmp_path, folder, "PEM")


async def test_a_certificate_that_peers_would_not_take(tmp_path, authority, folder):
    """A certificate of another authority, or one that has expired, is an error at the start."""
    (folder / tls.AUTHORITY).write_bytes(trustme.CA().cert_pem.bytes())
    await _refused(tmp_path, folder, "verify failed")
    certified(folder, authority)
    expired = authority.issue_cert("peer", not_after=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
    expired.private_key_pem.write_to_path(folder / tls.KEY)
    expired.cert_chain_pems[0].write_to_path(folder / tls.CERTIFICATE)
    await _refused(tmp_path, folder, "expired")


async def test_a_key_with_a_passphrase(tmp_path, folder):
    """A key with a passphrase is an error at the start, and is not asked for at a terminal."""
    key = serialization.load_pem_private_key((folder / tls.KEY).read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"passphrase")
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)
    (folder / tls.KEY).write_bytes(pem)
    await _refused(tmp_path, folder, "the key has a passphrase")


async def _refused(tmp_path: Path, folder: Path, said: str) -> None:
    """Asserts that a node with these TLS files is refused by an error that says this and names the folder."""
    with pytest.raises(ConfigError, match=said) as caught:
        async with node(tmp_path / "a", tls_folder=folder):
            pass
    assert str(folder) in str(caught.value)


def test_renewed_files_are_read(tmp_path, authority, folder):
    """Renewed TLS files are used from the next connection on, but not while only one of them is written."""
    context = tls.server_context(str(folder))
    renewal = tls.Renewal(context, str(folder))
    first = _shown(context, folder)
    renewal.look()
    assert _shown(context, folder) == first
    other = certified(tmp_path / "other", authority)
    (folder / tls.CERTIFICATE).write_bytes((other / tls.CERTIFICATE).read_bytes())
    with pytest.raises(ConfigError, match="tls_folder="):
        renewal.look()
    assert _shown(context, folder) == first
    (folder / tls.KEY).write_bytes((other / tls.KEY).read_bytes())
    renewal.look()
    assert _shown(context, folder) == ssl.PEM_cert_to_DER_cert((other / tls.CERTIFICATE).read_text())


def _shown(context: ssl.SSLContext, folder: Path) -> bytes | None:
    """Returns the certificate that a server with this context shows."""
    client = ssl.create_default_context(cafile=str(folder / tls.AUTHORITY))
    client.check_hostname = False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking, answering = client.wrap_bio(to_client, to_server), context.wrap_bio(to_server, to_client, server_side=True)
    for end in (asking, answering, asking):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return asking.getpeercert(binary_form=True)
