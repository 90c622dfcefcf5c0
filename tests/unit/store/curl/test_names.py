"""The addresses to which libcurl connects for a name."""

from __future__ import annotations

import socket

import pytest

from streamer.store.curl.addresses import Names

FOUND = [
    (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 80, 0, 0)),
    *((socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"192.0.2.{number}", 80)) for number in (1, 2)),
]


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the proxies of the environment."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def test_each_connection_begins_with_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection begins with another address of the name, and has the others in case it does not answer."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: FOUND)
    names = Names("http://bucket.test:8000/x")
    await names.ready()
    lines = [names.lines()[0] for _ in range(4)]
    assert lines[0] == "+bucket.test:8000:192.0.2.1,192.0.2.2,[2001:db8::1]"
    assert lines[1] == "+bucket.test:8000:192.0.2.2,[2001:db8::1],192.0.2.1"
    assert lines[3] == lines[0]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x", "http://[::1]:9/x", "http://bucket.test/x"])
async def test_what_is_left_to_libcurl(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses, names behind a proxy and names that do not resolve are left to libcurl."""

    def look(host: str, *_: object, **__: object) -> None:
        """Stands for a resolver that knows no name."""
        assert host == "bucket.test"
        raise socket.gaierror("unknown")

    monkeypatch.setattr(socket, "getaddrinfo", look)
    names = Names(url)
    await names.ready()
    assert names.lines() == []
    monkeypatch.setenv("http_proxy", "http://proxy.test:3128")
    monkeypatch.setattr(socket, "getaddrinfo", None)
    behind = Names(url)
    await behind.ready()
    assert behind.lines() == []
