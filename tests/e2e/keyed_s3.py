"""A fake S3 on loopback sockets whose buckets each need a key of their own, and may refuse reads for a while."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LISTING = '<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>{}</ListBucketResult>'
ENTRY = (
    "<Contents><Key>{}</Key><Size>{}</Size><ETag>&quot;{}&quot;</ETag>"
    "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
)


class KeyedS3:
    """An S3 server on a loopback port, with its buckets in memory.

    Like S3 it lists by prefix, answers whole and ranged reads with ETag, 403 for a wrong access key, 404 for a missing
    key and
    503 for a bucket that it slows down. Unlike S3 it lists in one page and compares the access key only: it checks no
    signature.

    Args:
        buckets: Content by key, by bucket.
        keys: Access key that each bucket needs.

    Attributes:
        reads: (bucket, key, status) of each read, in order.
        slow_down: Bucket whose reads are answered 503 at present.
        bytes_per_second: Rate that all reads share; 0 for no limit.
        delay_seconds: Time before each read is answered.
        sent_bytes: Bytes of all reads so far.
        sent: Bytes of all reads so far, by bucket.
    """

    def __init__(self, buckets: dict[str, dict[str, bytes]], keys: dict[str, str]) -> None:
        self.buckets = buckets
        self.keys = keys
        self.reads: list[tuple[str, str, int]] = []
        self.slow_down = ""
        self.bytes_per_second = 0.0
        self.delay_seconds = 0.0
        self.sent_bytes = 0
        self.sent: Counter[str] = Counter()
        self._link = threading.Lock()
        self._connections: list[socket.socket] = []
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                store.answer(self)

            do_HEAD = do_GET

            def log_message(self, *arguments: object) -> None: ...

        class Server(ThreadingHTTPServer):
            # Of connections that wait: those of a fetcher come all at once, and others are reset.
            request_queue_size = 512

            def process_request(self, request: Any, client_address: Any) -> None:
                store._connections.append(request)
                super().process_request(request, client_address)

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def options(self, key: str) -> dict[str, object]:
        """Returns storage_options with an access key."""
        return {"key": key, "secret": "secret", "endpoint_url": f"http://127.0.0.1:{self._server.server_port}"}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        # An engine keeps its connections for the 3 s that it lives on, and with them threads of this server.
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        signed = re.search(r"Credential=(\w+)/", request.headers.get("Authorization", ""))
        if signed is None or signed[1] != self.keys.get(bucket):
            self._send(request, 403, b"<Error><Code>AccessDenied</Code></Error>")
        elif not key:
            prefix = parse_qs(url.query).get("prefix", [""])[0]
            found = {name: body for name, body in self.buckets[bucket].items() if name.startswith(prefix)}
            entries = (ENTRY.format(name, len(body), hash(body)) for name, body in sorted(found.items()))
            self._send(request, 200, LISTING.format("".join(entries)).encode())
        else:
            self._read(request, bucket, key)

    def _read(self, request: BaseHTTPRequestHandler, bucket: str, key: str) -> None:
        body = self.buckets[bucket].get(key)
        if body is None:
            self._send(request, 404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        if bucket == self.slow_down:
            self.reads.append((bucket, key, 503))
            self._send(request, 503, b"<Error><Code>SlowDown</Code></Error>")
            return
        headers = {"ETag": f'"{hash(body)}"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        status, part = 200, body
        if span is not None:
            start, stop = int(span[1]), min(int(span[2]) + 1, len(body))
            status, part = 206, body[start:stop]
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
        self.reads.append((bucket, key, status))
        time.sleep(self.delay_seconds)
        with self._link:  # one after the other, as on a link that is full
            self.sent_bytes += len(part)
            self.sent[bucket] += len(part)
            if self.bytes_per_second:
                time.sleep(len(part) / self.bytes_per_second)
        self._send(request, status, part, headers)

    def _send(
        self, request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        request.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)
