"""A store for urls of clients connects to no address of this machine, where a real server would answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from pathlib import Path

import pytest

from streamer.errors import AccessDeniedError
from streamer.manifest.model import ObjectRecord
from streamer.store import guard, open_store
from streamer.store.base import Get

CONTENT = b"what another service of this machine says"


class Neighbour(BaseHTTPRequestHandler):
    """Stands for another service of this machine: it answers ranges, and `/away` with a redirect to it."""

    seen: list[str]

    def do_GET(self) -> None:
        self.seen.append(f"{self.command} {self.headers['Host'].partition(':')[0]}")
        if self.path.partition("?")[0] in ("/away", "/bucket/away"):
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.2:{self.server.server_address[1]}/a")
            self.end_headers()
            return
        self.send_response(206 if "Range" in self.headers else 200)
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(CONTENT)))
        self.send_header("ETag", '"1"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(CONTENT)

    do_HEAD = do_PUT = do_GET

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """The port of another service, which listens at all addresses of this machine."""
    Neighbour.seen = []
    server = ThreadingHTTPServer(("", 0), Neighbour)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


async def read(url: str, *, refuse_local: bool, **options: object) -> bytes:
    """Returns the content of an object at a url, without a listing."""
    store = open_store(url, options, refuse_local=refuse_local)
    pieces: list[bytes] = []
    try:
        record = ObjectRecord(url, len(CONTENT), "etag:1")
        await store.get(Get(record, 0, len(CONTENT)), lambda piece: pieces.append(bytes(piece)))
        return b"".join(pieces)
    finally:
        await store.aclose()


@pytest.mark.parametrize("host", ["127.1", "0x7f000001", "2130706433", "0"])
async def test_names_of_this_machine(host: str, port: int) -> None:
    """A name that resolves to this machine is refused before a connection is made."""
    url = f"http://{host}:{port}/a"
    assert await read(url, refuse_local=False) == CONTENT
    Neighbour.seen.clear()
    with pytest.raises(AccessDeniedError, match=r"its address is (127\.0\.0\.1|0\.0\.0\.0)"):
        await read(url, refuse_local=True)
    assert Neighbour.seen == []


async def test_a_redirect_to_this_machine(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A redirect to this machine is refused; 127.0.0.1 stands for another server, 127.0.0.2 for this machine."""
    monkeypatch.setattr(guard, "_OWN_NETWORKS", (ip_network("127.0.0.2/32"),))
    url = f"http://127.0.0.1:{port}/away"
    assert await read(url, refuse_local=False) == CONTENT
    Neighbour.seen.clear()
    with pytest.raises(AccessDeniedError, match=r"its address is 127\.0\.0\.2"):
        await read(url, refuse_local=True)
    assert Neighbour.seen == ["GET 127.0.0.1"]
    assert await read(f"http://127.0.0.1:{port}/a", refuse_local=True) == CONTENT


async def test_a_version_is_not_read_through_a_redirect(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object pinned by its version id is refused to clients: obstore reads it, and follows any redirect."""
    monkeypatch.setattr(guard, "_OWN_NETWORKS", (ip_network("127.0.0.2/32"),))
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{port}"}
    target = ObjectRecord("s3://bucket/away", len(CONTENT), "version:1")
    store = open_store(target.url, options, refuse_local=True)
    try:
        with pytest.raises(AccessDeniedError, match="only obstore reads versions"):
            await store.get(Get(target, 0, len(CONTENT)), lambda piece: None)
    finally:
        await store.aclose()
    assert Neighbour.seen == []


async def test_what_obstore_asks(port: int, tmp_path: Path) -> None:
    """Heads, listings, puts and reads of versions at an endpoint on this machine are refused unconnected."""
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.1:{port}"}
    url = "s3://bucket/a"
    (tmp_path / "file").write_bytes(CONTENT)
    store = open_store(url, options, refuse_local=True)
    versioned = ObjectRecord(url, len(CONTENT), "version:1")
    try:
        for asked in (
            anext(aiter(store.list(url))),
            anext(aiter(store.list("s3://bucket/folder/"))),
            store.put(url, b"x"),
            store.put_file(url, tmp_path / "file"),
            store.get(Get(versioned, 0, len(CONTENT)), lambda piece: None),
        ):
            with pytest.raises(AccessDeniedError, match=r"its address is 127\.0\.0\.1"):
                await asked
    finally:
        await store.aclose()
    assert Neighbour.seen == []
