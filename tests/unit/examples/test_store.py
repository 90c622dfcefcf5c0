"""The store of the demos: one real server, in a process of its own, for all tests."""

from __future__ import annotations

import http.client
import io
import tarfile
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from examples.bucket.images import CLASSES, DrawnImage
from examples.bucket.store import AUTHORIZATION, IMAGES_PER_TAR, Link, Store, request, upload
from streamer.errors import StoreError

pytestmark = pytest.mark.process

IMAGES = [DrawnImage(f"{i:06d}", i % len(CLASSES), bytes([i % 251]) * 1000) for i in range(IMAGES_PER_TAR + 5)]


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """Runs the store of the demos with some tars, for all tests."""
    with Store(Link(first_byte_seconds=0.0, bytes_per_second=2_000_000)) as started:
        assert upload(started.endpoint, IMAGES) > 130_000
        yield started


def _get(store: Store, path: str, **headers: str) -> bytes:
    headers["Authorization"] = AUTHORIZATION
    connection = http.client.HTTPConnection(urlsplit(store.endpoint).netloc, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().read()
    finally:
        connection.close()


def test_every_image_is_in_a_tar_with_its_class(store: Store) -> None:
    """Every image is in a tar with its class, and the second tar begins where the first one is full."""
    with tarfile.open(fileobj=io.BytesIO(_get(store, "/demo/tars/00001.tar"))) as tar:
        assert tar.getnames()[:2] == ["000125.cls", "000125.jpg"]
        member = tar.extractfile("000125.jpg")
        assert member is not None
        assert member.read() == IMAGES[125].jpeg


def test_the_store_counts_reads_and_their_bytes(store: Store) -> None:
    """The store counts a range with its own length as a read, and a listing as another request."""
    before = store.counts()
    assert len(_get(store, "/demo/tars/00000.tar", Range="bytes=100-299")) == 200
    _get(store, "/demo?list-type=2&prefix=tars/")
    counted = store.counts().since(before)
    assert (counted.reads, counted.read_bytes, counted.others) == (1, 200, 1)


def test_the_link_carries_what_it_says(store: Store) -> None:
    """The simulated link takes the time of its rate: 150 KB over 2 MB/s take at least 70 ms."""
    start = time.monotonic()
    content = _get(store, "/demo/tars/00000.tar", Range="bytes=0-149999")
    assert time.monotonic() - start >= len(content) / 2_000_000 * 0.95


def test_a_refused_upload_is_an_error(store: Store) -> None:
    """An upload to a bucket that does not exist raises StoreError."""
    with pytest.raises(StoreError, match="nowhere"):
        request(store.endpoint, "PUT", "/nowhere/key", b"x")
