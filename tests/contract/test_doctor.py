"""`streamer doctor URL`: its findings about servers that can and cannot be read."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from streamer.store.root import StoreRoot
from streamer.tools.doctor import Finding
from streamer.tools.doctor.reach import _clock, url_findings

pytestmark = pytest.mark.usefixtures("warm_runtime")


class _Clock(BaseHTTPRequestHandler):
    """Stands for a web server with one object and a clock that may be wrong."""

    ahead = timedelta()

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(b"x")

    def _answer(self, content: bytes) -> None:
        self.send_response_only(206 if content else 200)
        self.send_header("Date", format_datetime(datetime.now(UTC) + self.ahead, usegmt=True))
        self.send_header("Content-Length", str(len(content) or 1))
        self.send_header("ETag", '"x"')
        if content:
            self.send_header("Content-Range", "bytes 0-0/1")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        """Logs nothing, since the tests read no log of requests."""


@contextmanager
def _web_server(ahead: timedelta) -> Iterator[str]:
    """Serves one object with a clock that is ahead, on a thread."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Clock,), {"ahead": ahead}))
    thread = threading.Thread(target=server.serve_forever, name="clock", kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _by_subject(found: list[Finding]) -> dict[str, Finding]:
    """Returns the findings by their subject."""
    return {finding.subject: finding for finding in found}


@pytest.mark.parametrize(("ahead", "state"), [(timedelta(), "ok"), (timedelta(minutes=20), "problem")])
async def test_a_web_server_and_its_clock(ahead: timedelta, state: str) -> None:
    """`streamer doctor` reads a byte of a web server, and names a clock that is wrong by minutes."""
    with _web_server(ahead) as root:
        found = _by_subject(await url_findings(StoreRoot.resolve(f"{root}/x.bin"), f"{root}/x.bin"))
    assert (found["url"].state, found["read"].state) == ("ok", "ok")
    assert found["endpoint"].state == state
    if ahead:
        assert "1200 s behind" in found["endpoint"].fact or "1199 s behind" in found["endpoint"].fact


@pytest.mark.parametrize(
    ("answer", "fact"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "answers, but not as a web server does \\(BadStatusLine"),
        (b"HTTP/1.1 200 OK\r\nDate: yesterday\r\n\r\n", "answers$"),
        (b"HTTP/1.1 200 OK\r\nDate: Mon, 01 Jan 2026 00:00:00 -0000\r\n\r\n", "answers$"),
        (b"", "Remote end closed connection"),
    ],
)
def test_an_endpoint_that_is_no_web_server(answer: bytes, fact: str) -> None:
    """A server that does not speak HTTP is a problem of the endpoint, and a date that is none is not compared."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, name="no web server")
        thread.start()
        try:
            (finding,) = _clock(f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            thread.join()
    assert re.search(fact, finding.fact), finding.fact
    assert finding.state == ("ok" if fact == "answers$" else "problem")


def test_a_host_that_can_be_none_is_a_problem() -> None:
    """A name that cannot be that of a host, with a label of 64 letters, is a problem of the endpoint."""
    (finding,) = _clock(f"http://{'a' * 64}.example/")
    assert finding.state == "problem"


async def test_an_endpoint_that_does_not_answer(unused_tcp_port: int) -> None:
    """`streamer doctor` names the host and port of an endpoint that does not answer, and shows no key."""
    options = {"key": "AKIAEXAMPLE", "secret": "hidden", "endpoint_url": f"http://127.0.0.1:{unused_tcp_port}"}
    found = _by_subject(await url_findings(StoreRoot.resolve("s3://bucket/train/", options), "s3://bucket/train/"))
    assert found["endpoint"].state == "problem"
    assert f"127.0.0.1:{unused_tcp_port}" in found["endpoint"].fact
    assert found["credentials"].state == "ok"
    assert "hidden" not in str(found)
    assert "AKIAEXAMPLE" not in str(found)
