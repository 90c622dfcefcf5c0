"""One object that fails for ever, met by two ranks of one job: both end, with its name, in time."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings

CONSUME = Path(__file__).parents[1] / "e2e" / "consume.py"
# About eight objects share a chunk: both ranks need samples of the one with the bad object.
SAMPLES = 240
BAD = "train/031.bin"
OBJECTS = {f"train/{number:03}.bin": bytes([number]) * 30_000 for number in range(SAMPLES)}


class StubbornStore(BaseHTTPRequestHandler):
    """Stands for S3 with a bucket of which one object is always answered with `failure`, or never.

    It lists, and serves ranges with ETags; it checks no signature and has one page of a listing.
    """

    protocol_version = "HTTP/1.1"
    failure = 500

    def do_GET(self) -> None:
        """Answers a listing or a range."""
        key = self.path.partition("?")[0].removeprefix("/bucket").lstrip("/")
        if key not in OBJECTS:
            self._answer(200, _listing().encode(), {})
        elif key == BAD and self.failure:
            self._answer(self.failure, b"<Error><Code>InternalError</Code></Error>", {})
        elif key == BAD:
            threading.Event().wait(60)
        else:
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            body, whole = OBJECTS[key][first : last + 1], len(OBJECTS[key])
            self._answer(206, body, {"Content-Range": f"bytes {first}-{last}/{whole}", "ETag": _etag(key)})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Writes no log of requests."""


def _etag(key: str) -> str:
    return f'"{hashlib.md5(OBJECTS[key], usedforsecurity=False).hexdigest()}"'


def _listing() -> str:
    entries = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{_etag(key)}</ETag>"
        f"<Size>{len(content)}</Size></Contents>"
        for key, content in OBJECTS.items()
    )
    return f"<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"


@contextmanager
def stubborn(failure: int) -> Iterator[str]:
    """The store's endpoint."""
    handler = type("Handler", (StubbornStore,), {"failure": failure})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, name="stubborn")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _start(rank: int, folder: Path, endpoint: str) -> subprocess.Popen[str]:
    options = {"key": "k", "secret": "s", "endpoint_url": endpoint}
    dataset = {"cache_dir": str(folder / "cache"), "cache_bytes": 64 << 20, "storage_options": options}
    task = {
        "url": "s3://bucket/train/",
        "dataset": {**dataset, "rank": rank, "world_size": 2},
        "loader": "ours",
        "batch_size": 2,
        "workers": 0,
        "epochs": 2,
    }
    environment = {**os.environ, "STREAMER_RUNTIME_DIR": str(folder / "run"), "STREAMER_JOB": "job"}
    return subprocess.Popen(
        [sys.executable, str(CONSUME), json.dumps(task)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def _error(rank: subprocess.Popen[str]) -> str:
    """What a rank said when it ended; it is ended if it does not end by itself."""
    try:
        return rank.communicate(timeout=30)[1]
    except subprocess.TimeoutExpired:
        rank.kill()
        return rank.communicate()[1]


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.leaves_over("handlers of the store may still wait for a client that went away")
@pytest.mark.parametrize("failure", [500, 0], ids=["answers-500", "never-answers"])
def test_an_object_that_fails_for_ever_ends_every_rank_with_its_name(tmp_path: Path, failure: int) -> None:
    """An object that always fails ends both ranks with an error that names it, within 15 s of their first batches."""
    settings = ClientSettings(
        cache_dir=tmp_path / "cache", runtime_dir=tmp_path / "run", cache_bytes=64 << 20, grace_seconds=0.1
    )
    with stubborn(failure) as endpoint, closing(EngineClient(settings)) as client:
        client.roots()
        ranks = [_start(rank, tmp_path, endpoint) for rank in (0, 1)]
        assert all(rank.stdout is not None and rank.stdout.readline() for rank in ranks), "both have a first batch"
        begin = time.monotonic()
        said = [_error(rank) for rank in ranks]
        seconds = time.monotonic() - begin
    assert [rank.returncode for rank in ranks] == [1, 1], said
    assert all(f"Error: s3://bucket/{BAD}: " in text for text in said), said
    assert seconds <= 15.0
