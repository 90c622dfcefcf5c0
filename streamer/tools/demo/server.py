"""An S3 server in a process of its own: moto behind a link of given speed that counts what it carries.

The counts are made in the store, so that they stay correct when an engine is killed.
"""

from __future__ import annotations

import http.client
import operator
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import msgspec

from streamer.errors import StreamerError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

COUNTS_PATH = "/-/counts"


class Tally(msgspec.Struct, frozen=True):
    """Counts that are added and subtracted field by field."""

    def __add__(self, other: Self) -> Self:
        return type(self)(*map(operator.add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))

    def __sub__(self, earlier: Self) -> Self:
        return type(self)(*map(operator.sub, msgspec.structs.astuple(self), msgspec.structs.astuple(earlier)))


class Counts(Tally, frozen=True):
    """The requests that the store has served since its start.

    Attributes:
        reads: object reads (GET), whole or ranges.
        read_bytes: bytes in their answers.
        others: all other requests (lists, heads, uploads).
    """

    reads: int = 0
    read_bytes: int = 0
    others: int = 0


class Link(msgspec.Struct, frozen=True):
    """The simulated link to the store; applies to object reads.

    Attributes:
        first_byte_seconds: delay before each answer; 30 ms is what S3 takes.
        bytes_per_second: rate of all answers together; 0: unlimited.
    """

    first_byte_seconds: float = 0.0
    bytes_per_second: int = 0


class MeteredStore:
    """WSGI middleware: a link with a counter. Answers `COUNTS_PATH` itself."""

    def __init__(self, application: WSGIApplication, link: Link) -> None:
        self._application = application
        self._link = link
        self._lock = threading.Lock()
        self._counts = Counts()
        self._free_at_seconds = 0.0

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serves one request."""
        if environ["PATH_INFO"] == COUNTS_PATH:
            start_response("200 OK", [("Content-Type", "application/json")])
            return [msgspec.json.encode(self._counts)]
        body = self._application(environ, start_response)
        is_listing = "list-type" in environ.get("QUERY_STRING", "")
        if environ["REQUEST_METHOD"] != "GET" or "/" not in environ["PATH_INFO"].strip("/") or is_listing:
            self._add(Counts(others=1))
            return body
        self._add(Counts(reads=1))
        return self._carried(body)

    def _carried(self, body: Iterable[bytes]) -> Iterator[bytes]:
        """Counts every piece before it is sent, so that no received piece is missing from the counts."""
        time.sleep(self._link.first_byte_seconds)
        try:
            for piece in body:
                time.sleep(self._turn(len(piece)))
                self._add(Counts(read_bytes=len(piece)))
                yield piece
        finally:
            if close := getattr(body, "close", None):
                close()

    def _turn(self, length: int) -> float:
        """Seconds until the link has carried this piece and all before it."""
        if not self._link.bytes_per_second:
            return 0.0
        with self._lock:
            now = time.monotonic()
            self._free_at_seconds = max(now, self._free_at_seconds) + length / self._link.bytes_per_second
            return self._free_at_seconds - now

    def _add(self, counts: Counts) -> None:
        with self._lock:
            self._counts = self._counts + counts


class DemoServer:
    """The server's process; ends with this object, or with the process that made it.

    Raises:
        StreamerError: the server did not start.
    """

    def __init__(self, link: Link) -> None:
        # The server ends with its standard input, so that it never outlives this process.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "streamer.tools.demo.server", msgspec.json.encode(link).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.endpoint = self._process.stdout.readline().strip()
        if not self.endpoint:
            raise StreamerError(f"the demo's S3 server ended with code {self._process.wait()} before it listened")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def counts(self) -> Counts:
        """The counts so far."""
        connection = http.client.HTTPConnection(urlsplit(self.endpoint).netloc, timeout=30)
        try:
            connection.request("GET", COUNTS_PATH)
            return msgspec.json.decode(connection.getresponse().read(), type=Counts)
        finally:
            connection.close()

    def close(self) -> None:
        """Ends the process; idempotent."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()


def _listen(link: Link, announce: Callable[[str], None]) -> None:
    """Serves until standard input ends."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            # Head and body of an answer are two writes; without this the second one waits 40 ms for an ACK.
            self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            super().setup()

        def log(self, *arguments: object) -> None:
            """Logs nothing."""

    store = MeteredStore(DomainDispatcherApplication(create_backend_app), link)
    server = make_server("127.0.0.1", 0, store, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    announce(f"http://127.0.0.1:{server.server_port}")
    sys.stdin.read()
    # Connections that clients keep open block threads that cannot be ended; there is nothing to save.
    os._exit(0)


if __name__ == "__main__":
    _listen(msgspec.json.decode(sys.argv[1], type=Link), lambda endpoint: print(endpoint, flush=True))
