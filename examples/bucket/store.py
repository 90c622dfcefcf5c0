"""An S3 server in a process of its own: moto behind a link of given speed; and what the demo puts into its bucket.

The server counts what it sends, so that the counts stay correct when an engine is killed.
"""

from __future__ import annotations

import http.client
import io
import itertools
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from examples.bucket.images import DrawnImage
from streamer.errors import StoreError, StreamerError

BUCKET = "demo"
TARS_URL = f"s3://{BUCKET}/tars/"
MANIFEST_URL = f"s3://{BUCKET}/manifest/"
IMAGES_PER_TAR = 125
COUNTS_PATH = "/-/counts"
# Moto takes any key and any signature.
AUTHORIZATION = "AWS4-HMAC-SHA256 Credential=demo/20260101/us-east-1/s3/aws4_request"


def storage_options(endpoint: str) -> dict[str, object]:
    """Returns the storage options, as fsspec has them, with which streamer reads this store."""
    return {"key": "demo", "secret": "demo", "client_kwargs": {"endpoint_url": endpoint}}


class Link(NamedTuple):
    """The delay before each object's first byte, and the rate of all answers together (0: no limit)."""

    first_byte_seconds: float = 0.0
    bytes_per_second: int = 0


class Counts(NamedTuple):
    """Object reads that the store has served since its start, the bytes in their answers, and all other requests."""

    reads: int = 0
    read_bytes: int = 0
    others: int = 0

    def since(self, earlier: Counts) -> Counts:
        return Counts(*(now - before for now, before in zip(self, earlier, strict=True)))


class Store:
    """The server's process; it ends with this object, or with the process that made it."""

    def __init__(self, link: Link) -> None:
        # The server ends with its standard input, so that it never outlives this process.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "examples.bucket.store", json.dumps(link)],
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
        self._process.communicate()

    def counts(self) -> Counts:
        return Counts(*json.loads(request(self.endpoint, "GET", COUNTS_PATH)))


def upload(endpoint: str, images: Iterable[DrawnImage]) -> int:
    """Uploads the images in tars of 125, each with a file of its class; returns the bytes of the tars."""
    request(endpoint, "PUT", f"/{BUCKET}")
    total_bytes = 0
    number = 0
    remaining = iter(images)
    while batch := list(itertools.islice(remaining, IMAGES_PER_TAR)):
        tar = make_tar(batch)
        request(endpoint, "PUT", f"/{BUCKET}/tars/{number:05d}.tar", tar)
        total_bytes += len(tar)
        number += 1
    return total_bytes


def make_tar(images: list[DrawnImage]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for image in images:
            for extension, content in (("cls", str(image.label).encode()), ("jpg", image.jpeg)):
                member = tarfile.TarInfo(f"{image.key}.{extension}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def request(endpoint: str, method: str, path: str, content: bytes = b"") -> bytes:
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=60)
    try:
        connection.request(method, path, body=content, headers={"Authorization": AUTHORIZATION})
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise StoreError(f"{method} {path}: the demo's server answers {answer.status} {body[:200]!r}", url=path)
    return body


class SlowLink:
    """WSGI middleware that delays and counts object reads, and answers `COUNTS_PATH` itself."""

    def __init__(self, application: Callable[..., Iterable[bytes]], link: Link) -> None:
        self._application = application
        self._link = link
        self._lock = threading.Lock()
        self._counts = [0, 0, 0]
        self._free_at_seconds = 0.0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == COUNTS_PATH:
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._counts).encode()]
        is_listing = "list-type" in environ.get("QUERY_STRING", "")
        is_object = "/" in environ["PATH_INFO"].strip("/")
        is_read = environ["REQUEST_METHOD"] == "GET" and is_object and not is_listing
        with self._lock:
            self._counts[0 if is_read else 2] += 1
        body = self._application(environ, start_response)
        return self._send_slowly(body) if is_read else body

    def _send_slowly(self, body: Iterable[bytes]) -> Iterator[bytes]:
        time.sleep(self._link.first_byte_seconds)
        try:
            for piece in body:
                with self._lock:
                    # Counted before it is sent, so that no received byte is missing from the counts.
                    self._counts[1] += len(piece)
                    now = time.monotonic()
                    if self._link.bytes_per_second:
                        begin = max(now, self._free_at_seconds)
                        self._free_at_seconds = begin + len(piece) / self._link.bytes_per_second
                    pause_seconds = max(0.0, self._free_at_seconds - now)
                time.sleep(pause_seconds)
                yield piece
        finally:
            if close := getattr(body, "close", None):
                close()


def serve(link: Link) -> None:
    """Serves until standard input ends."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class QuietHandler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            # Head and body of an answer are two writes; without this the second one waits 40 ms for an ACK.
            self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            super().setup()

        def log(self, *arguments: object) -> None:
            """Logs nothing."""

    store = SlowLink(DomainDispatcherApplication(create_backend_app), link)
    server = make_server("127.0.0.1", 0, store, threaded=True, request_handler=QuietHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()
    # Connections that clients keep open block threads that cannot be ended; there is nothing to save.
    os._exit(0)


if __name__ == "__main__":
    serve(Link(*json.loads(sys.argv[1])))
