"""Filling the demo's bucket; one real server for all tests."""

from __future__ import annotations

import http.client
import io
import tarfile
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from streamer.errors import StoreError
from streamer.tools.demo.bucket import AUTHORIZATION, IMAGES_PER_TAR, Uploaded, fill, put
from streamer.tools.demo.drawing import CLASSES, Picture
from streamer.tools.demo.server import DemoServer, Link

pytestmark = pytest.mark.process

PICTURES = [Picture(f"{i:06d}", i % len(CLASSES), bytes([i % 251]) * 1000) for i in range(IMAGES_PER_TAR + 5)]


@pytest.fixture(scope="module")
def server() -> Iterator[DemoServer]:
    with DemoServer(Link(first_byte_seconds=0.0, bytes_per_second=2_000_000)) as started:
        yield started


@pytest.fixture(scope="module")
def uploaded(server: DemoServer) -> Uploaded:
    return fill(server.endpoint, PICTURES, lambda done: None)


def _get(server: DemoServer, path: str, **headers: str) -> bytes:
    headers["Authorization"] = AUTHORIZATION
    connection = http.client.HTTPConnection(urlsplit(server.endpoint).netloc, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().read()
    finally:
        connection.close()


def test_every_picture_is_there_twice(server: DemoServer, uploaded: Uploaded) -> None:
    """Once in a tar with its class, once below its class's folder."""
    assert (uploaded.images, uploaded.objects) == (len(PICTURES), len(PICTURES) + 2)
    with tarfile.open(fileobj=io.BytesIO(_get(server, "/demo/tars/00001.tar"))) as tar:
        assert tar.getnames()[:2] == ["000125.cls", "000125.jpg"]
        member = tar.extractfile("000125.jpg")
        assert member is not None
        assert member.read() == PICTURES[125].jpeg
    assert _get(server, f"/demo/folder/{CLASSES[3]}/000003.jpg") == PICTURES[3].jpeg


def test_the_store_counts_reads_and_their_bytes(server: DemoServer, uploaded: Uploaded) -> None:
    """A range counts with its own length; lists are no reads."""
    before = server.counts()
    assert len(_get(server, "/demo/tars/00000.tar", Range="bytes=100-299")) == 200
    _get(server, "/demo?list-type=2&prefix=tars/")
    counted = server.counts() - before
    assert (counted.reads, counted.read_bytes, counted.others) == (1, 200, 1)


def test_the_link_carries_what_it_says(server: DemoServer, uploaded: Uploaded) -> None:
    """150 KB over 2 MB/s take at least 70 ms."""
    start = time.monotonic()
    content = _get(server, "/demo/tars/00000.tar", Range="bytes=0-149999")
    assert time.monotonic() - start >= len(content) / 2_000_000 * 0.95


def test_a_refused_upload_is_an_error(server: DemoServer) -> None:
    """A bucket that does not exist."""
    with pytest.raises(StoreError, match="nowhere"):
        put(server.endpoint, "/nowhere/key", b"x")
