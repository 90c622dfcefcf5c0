"""Logins of web servers, in url or netrc, on a real server: used, not shown, and not sent to another host."""

from __future__ import annotations

import asyncio
import contextlib
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streamer.base.user_urls import logins_of, take_logins
from streamer.errors import AccessDeniedError, ConfigError, StoreError
from streamer.manifest.model import ObjectRecord
from streamer.store import guard, open_store
from streamer.store.addresses.urls import split
from streamer.store.credentials.web_login import sign_in
from streamer.store.options import translate
from tests.contract.store_contract import listed, read
from tests.contract.telling_server import RAMP, Asked, TellingServer, answer, telling
from tests.serving import serving

pytestmark = [pytest.mark.usefixtures("warm_runtime"), pytest.mark.process]

BASIC = f"Basic {b64encode(b'anna:w@rd/1').decode()}"
IN_URL = "anna:w%40rd%2F1@"
REFUSED = b'HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm="data"\r\nContent-Length: 0\r\n\r\n'
both = pytest.mark.parametrize("client", ["curl", "obstore"])


@pytest.fixture
async def server() -> AsyncIterator[TellingServer]:
    """A web server that asks for a login."""
    async with telling() as server:

        async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
            if asked.headers.get("authorization") != BASIC:
                writer.write(REFUSED)
            elif asked.head.startswith(b"HEAD"):
                writer.write(f'HTTP/1.1 200 OK\r\nETag: "x"\r\nContent-Length: {len(RAMP)}\r\n\r\n'.encode())
            else:
                writer.write(asked.good())

        server.script = script
        yield server


def _netrc(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes the netrc of the user."""
    (folder / ".netrc").write_text(text)
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setenv("HOME", str(folder))


@both
@pytest.mark.parametrize("where", ["url", "netrc"])
async def test_a_login_is_taken(
    server: TellingServer, client: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login of the url or of netrc is sent with the head of an object and with its ranges, and is in no repr."""
    line = "machine 127.0.0.1 login anna password w@rd/1\n" if where == "netrc" else ""
    _netrc(line, tmp_path, monkeypatch)
    url = f"http://{IN_URL if where == 'url' else ''}127.0.0.1:{server.port}/a b"
    store = open_store(url, {}, client=client)  # type: ignore[arg-type]
    try:
        (record,) = (await listed(store, url)).values()
        assert record.url == url
        assert await read(store, record, 5, 300) == RAMP[5:300]
        assert "w%40rd" not in repr(store)
    finally:
        await store.aclose()


@both
async def test_a_refusal_says_which_login(
    server: TellingServer, client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal of a login says whether it came from the url or from netrc, and does not show its password."""
    _netrc("machine 127.0.0.1 login anna password hush\n", tmp_path, monkeypatch)
    for user, says in (("", "with the login 'anna' of netrc"), ("bert:hush@", "with the login of the url")):
        url = f"http://{user}127.0.0.1:{server.port}/o"
        store = open_store(url, {}, client=client)  # type: ignore[arg-type]
        try:
            with pytest.raises(AccessDeniedError) as caught:
                await listed(store, url)
        finally:
            await store.aclose()
        assert f"answered 401 to a request {says}" in str(caught.value)
        assert "hush" not in str(caught.value)


@both
async def test_another_host_gets_no_login(server: TellingServer, client: str) -> None:
    """The login of a web server is not sent to another host to which it redirects."""
    async with telling() as other:
        away = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{other.port}/o\r\nContent-Length: 0\r\n\r\n"
        server.says(away.encode())
        url = f"http://{IN_URL}127.0.0.1:{server.port}/o"
        store = open_store(url, {}, client=client)  # type: ignore[arg-type]
        try:
            assert await read(store, ObjectRecord(url, len(RAMP), "etag:x"), 0, 10) == RAMP[:10]
        finally:
            await store.aclose()
        assert server.asked[-1].headers["authorization"] == BASIC
        assert "authorization" not in other.asked[-1].headers
        assert all("@" not in asked.path for asked in other.asked)


@pytest.mark.parametrize("client", ["curl", "fsspec"])
@pytest.mark.parametrize("by", ["headers", "client_kwargs", "cookies"])
@pytest.mark.parametrize("head", ["HEAD", "no HEAD"])
async def test_another_origin_gets_no_header(client: str, by: str, head: str) -> None:
    """A redirect to another origin takes none of the user's headers along, one to the same origin all of them."""
    if by == "cookies" and client == "curl":
        client = "auto"  # only fsspec has the option
    if client != "curl":
        head = "HEAD"
    secret = {"X-Api-Key": "hush", "PRIVATE-TOKEN": "hush", "Authorization": "hush", "Cookie": "a=hush"}
    options: dict[str, object] = {
        "headers": {"headers": secret},
        "client_kwargs": {"client_kwargs": {"headers": secret}},
        "cookies": {"cookies": {"a": "hush"}, "headers": {"X-Api-Key": "hush"}},
    }[by]
    async with telling() as server, telling() as other:

        async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
            if head == "no HEAD" and asked.head.startswith(b"HEAD"):
                writer.write(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n")
                return
            port = other.port if asked.path == "/b" else server.port
            to = {"/o": "/b", "/b": "/c"}[asked.path]
            writer.write(
                f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{port}{to}\r\nContent-Length: 0\r\n\r\n".encode()
            )

        async def answer_all(asked: Asked, writer: asyncio.StreamWriter) -> None:
            if asked.headers.get("range") == "bytes=0-0":
                writer.write(answer(0, 1))
            else:
                writer.write(asked.good())

        server.script = script
        other.script = answer_all
        url = f"http://127.0.0.1:{server.port}/o"
        store = open_store(url, options, client=client)  # type: ignore[arg-type]
        try:
            if client == "curl":
                (record,) = (await listed(store, url)).values()
                assert record == ObjectRecord(url, len(RAMP), "etag:x")
            assert await read(store, ObjectRecord(url, len(RAMP), "etag:x"), 0, 10) == RAMP[:10]
        finally:
            await store.aclose()
    assert {asked.path for asked in server.asked} >= {"/o"}
    assert all("hush" in asked.head.decode() for asked in server.asked)
    assert other.asked
    assert [asked.head.decode() for asked in other.asked if "hush" in asked.head.decode()] == []


class WebFolder:
    """Stands for a web server that takes uploads, as WebDAV does, and redirects: it keeps what it was sent."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.heads: list[str] = []
        self.onward: dict[str, tuple[int, str]] = {}
        self.folders = {"/"}
        self.asks_for_folders = False
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection."""
        while head := (await reader.readuntil(b"\r\n\r\n")).decode("latin-1"):
            self.heads.append(head)
            method, path, _ = head.split(" ", 2)
            length = next((line[16:] for line in head.split("\r\n") if line.lower().startswith("content-length:")), "0")
            body = await reader.readexactly(int(length))
            answered = ""
            status = 201
            if path in self.onward:
                status, to = self.onward[path]
                answered = f"Location: {to}\r\n"
            elif method == "MKCOL":
                status = 405 if path in self.folders else 201
                self.folders.add(path)
            elif method == "PUT" and self.asks_for_folders and path.rpartition("/")[0] + "/" not in self.folders:
                status = 409
            elif method == "PUT":
                self.files[path] = body
            elif path in self.files:
                status = 200
                answered = 'ETag: "x"\r\n'
            else:
                status = 404
            size = len(self.files[path]) if status == 200 else 0
            writer.write(f"HTTP/1.1 {status} X\r\n{answered}Content-Length: {size}\r\n\r\n".encode())


@contextlib.asynccontextmanager
async def web_folder() -> AsyncIterator[WebFolder]:
    """Serves a WebFolder on a port of its own."""
    made = WebFolder()
    async with serving(made.serve) as port:
        made.port = port
        yield made


@pytest.mark.parametrize("size", [3, 9 << 20])
@pytest.mark.parametrize("guarded", [False, True])
async def test_an_upload_takes_no_header_to_another_origin(
    size: int, guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload follows 307 and 308, with the user's headers to its own origin only; 302 is an error."""
    monkeypatch.setattr(guard, "_OWN_NETWORKS", ())
    secret = {"X-Api-Key": "hush", "PRIVATE-TOKEN": "hush", "Authorization": "hush", "Cookie": "a=hush"}
    content = bytes(range(256)) * (size // 256) + b"end"
    (tmp_path / "file").write_bytes(content)
    async with web_folder() as server, web_folder() as other:
        server.onward = {
            "/a/x": (308, "/b/x"),
            "/b/x": (307, f"http://127.0.0.1:{other.port}/c/x"),
            "/old": (302, f"http://127.0.0.1:{other.port}/c/x"),
        }
        root = f"http://127.0.0.1:{server.port}"
        store = open_store(root, {"headers": secret}, refuse_local=guarded)
        try:
            await store.put(f"{root}/a/x", content[:1000])
            assert other.files == {"/c/x": content[:1000]}
            record = await store.put_file(f"{root}/d/x", tmp_path / "file")
            assert record == ObjectRecord(f"{root}/d/x", len(content), "etag:x")
            assert server.files == {"/d/x": content}
            with pytest.raises(StoreError, match=r"answers an upload with 302, a redirect to 127\.0\.0\.1"):
                await store.put(f"{root}/old", b"x")
        finally:
            await store.aclose()
    assert all("hush" in head for head in server.heads)
    assert other.heads
    assert [head for head in other.heads if "hush" in head] == []


async def test_folders_of_an_upload_are_made() -> None:
    """The folders of an upload are made where the server asks for them, as WebDAV does."""
    async with web_folder() as server:
        server.asks_for_folders = True
        root = f"http://127.0.0.1:{server.port}"
        store = open_store(root, {})
        try:
            await store.put(f"{root}/a/b/x", b"one")
            await store.put(f"{root}/a/c/y", b"two")
        finally:
            await store.aclose()
        assert server.files == {"/a/b/x": b"one", "/a/c/y": b"two"}


def test_a_client_that_would_send_headers_on_is_refused() -> None:
    """obstore as the named client refuses headers that it would send to other origins."""
    with pytest.raises(
        ConfigError, match=r"client='obstore' has no counterpart of the storage options headers.X-Api-Key"
    ):
        open_store("http://h/x", {"headers": {"X-Api-Key": "hush"}}, client="obstore")
    assert open_store("http://h/x", {"headers": {"User-Agent": "me"}}, client="obstore") is not None


def test_whose_login_it_is(tmp_path: Path) -> None:
    """The user's Authorization goes before a login, a client gets none of the service's, a bad netrc is ignored."""
    file = tmp_path / "logins"
    file.write_text("machine h login anna password hush\n")
    variables = {"NETRC": str(file)}

    def header(root: str, options: dict[str, object], *, refuse_local: bool = False) -> object:
        (root,), options = take_logins([root], options)
        translation = translate(split(root), options)
        sign_in(root, logins_of(options).get(root, ""), translation, refuse_local=refuse_local, variables=variables)
        given = translation.client.get("default_headers", {})
        assert isinstance(given, dict)
        return given.get("Authorization")

    assert header("https://h", {}) == "Basic " + b64encode(b"anna:hush").decode()
    assert header("https://other", {}) is None
    assert header("https://h", {}, refuse_local=True) is None
    assert header("https://u:p@h", {"headers": {"Authorization": "Bearer t"}}) == "Bearer t"
    file.write_text("machine h loggin anna")
    assert header("https://h", {}) is None


def test_a_wrong_option_shows_no_login() -> None:
    """The error about a wrong option shows the url without its login."""
    with pytest.raises(ConfigError, match="http://h: storage_options has 'heders'"):
        open_store("http://u:hush@h/x", {"heders": {}})


async def test_a_page_to_sign_in_is_not_the_file(server: TellingServer) -> None:
    """A redirect to an HTML page is an AccessDeniedError with advice; an HTML file that was asked for is read."""
    page = b"<html>Please sign in</html>"

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.path != "/login":
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n")
            return
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(page)}\r\n\r\n"
        writer.write(head.encode() + (b"" if asked.head.startswith(b"HEAD") else page))

    server.script = script
    root = f"http://127.0.0.1:{server.port}"
    store = open_store(root, {})
    try:
        with pytest.raises(AccessDeniedError, match=r"redirects to a page .*headers in storage_options"):
            await read(store, ObjectRecord(f"{root}/a.jpg", len(page), f"stat:{len(page)}:0"), 0, len(page))
        whole = ObjectRecord(f"{root}/a.html", len(page), f"stat:{len(page)}:0")
        assert await read(store, whole, 0, len(page)) == page
    finally:
        await store.aclose()
