"""A gateway that lists other ETags than its reads answer, on a real server: the error, and `pin="size"`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from streamer.errors import ConfigError, ObjectChangedError, StoreError
from streamer.fetch.retry import retryable
from streamer.manifest.model import ObjectRecord
from streamer.store import open_store
from streamer.store.base import ObjectStore
from tests.contract.store_contract import listed, read
from tests.contract.telling_server import RAMP, Asked, TellingServer, answer, telling

pytestmark = [pytest.mark.usefixtures("warm_runtime"), pytest.mark.process]

LISTING = (
    "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>o</Key><Size>{size}</Size><ETag>&quot;{tag}"
    "&quot;</ETag></Contents></ListBucketResult>"
)


class Gateway:
    """Stands for a gateway of S3 whose listings have the ETag "whole", and its heads and reads "part".

    It has one object, may refuse If-Match, and checks no signature.
    """

    def __init__(self, server: TellingServer) -> None:
        self.listed, self.size = "whole", len(RAMP)
        self.refuses: int | None = None
        self.url = f"http://127.0.0.1:{server.port}"
        server.script = self._script

    async def _script(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.head.startswith(b"HEAD"):
            writer.write(f'HTTP/1.1 200 OK\r\nETag: "part"\r\nContent-Length: {len(RAMP)}\r\n\r\n'.encode())
        elif "list-type" in asked.path:
            body = LISTING.format(size=self.size, tag=self.listed).encode()
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        elif self.refuses and "if-match" in asked.headers:
            writer.write(f"HTTP/1.1 {self.refuses} No\r\nContent-Length: 0\r\n\r\n".encode())
        else:
            first, last = asked.headers["range"].removeprefix("bytes=").split("-")
            writer.write(answer(int(first), int(last) + 1, tag='"part"'))

    def open(self, **options: object) -> ObjectStore:
        """Opens a store that reads from the gateway."""
        return open_store("s3://bucket", {"key": "k", "secret": "s", "endpoint_url": self.url, **options})


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    """A gateway in front of a bucket with one object."""
    async with telling() as server:
        yield Gateway(server)


@pytest.mark.parametrize("refuses", [None, 412])
async def test_indexing_again_does_not_help(gateway: Gateway, refuses: int | None) -> None:
    """A gateway that lists other ETags than its reads answer is named as the cause; a real change is still one."""
    gateway.refuses = refuses
    store = gateway.open()
    try:
        (record,) = (await listed(store, "s3://bucket/")).values()
        with pytest.raises(ObjectChangedError, match="lists the version that the manifest has, etag:whole") as caught:
            await read(store, record, 0, 10)
        assert "{'pin': 'size'}" in str(caught.value)
        gateway.listed = "another"
        with pytest.raises(ObjectChangedError, match=r"changed since it was indexed.*index it again"):
            await read(store, record, 0, 10)
    finally:
        await store.aclose()


async def test_a_web_server_whose_heads_and_reads_disagree() -> None:
    """A web server whose heads and reads have different ETags is named as the cause, by libcurl and by obstore."""
    async with telling() as server:

        async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
            if asked.head.startswith(b"HEAD"):
                writer.write(f'HTTP/1.1 200 OK\r\nETag: "a"\r\nContent-Length: {len(RAMP)}\r\n\r\n'.encode())
            else:
                first, last = asked.headers["range"].removeprefix("bytes=").split("-")
                writer.write(answer(int(first), int(last) + 1, tag='"y"'))

        server.script = script
        url = f"http://127.0.0.1:{server.port}/o"
        for client in ("curl", "obstore"):
            store = open_store(url, {}, client=client)  # type: ignore[arg-type]
            try:
                (record,) = (await listed(store, url)).values()
                with pytest.raises(ObjectChangedError, match=r"etag:a .*reads answer etag:y: to index it again"):
                    await read(store, record, 0, 10)
            finally:
                await store.aclose()


async def test_pinned_by_size(gateway: Gateway) -> None:
    """With `pin="size"` reads go on without If-Match as long as the size is the same."""
    gateway.refuses = 501
    store = gateway.open(pin="size")
    try:
        (record,) = (await listed(store, "s3://bucket/")).values()
        assert record.version == f"stat:{len(RAMP)}:0"
        assert await read(store, record, 5, 300) == RAMP[5:300]
        gateway.size -= 1
        (smaller,) = (await listed(store, "s3://bucket/")).values()
        with pytest.raises(ObjectChangedError):
            await read(store, smaller, 5, 300)
    finally:
        await store.aclose()


async def test_a_store_without_if_match(gateway: Gateway) -> None:
    """A store that answers If-Match with 501 is a final error that names `pin="size"`."""
    gateway.refuses = 501
    store = gateway.open()
    try:
        with pytest.raises(StoreError, match=r"answered 501; .*'pin': 'size'") as caught:
            await read(store, ObjectRecord("s3://bucket/o", len(RAMP), "etag:part"), 0, 10)
        assert not retryable(caught.value)
    finally:
        await store.aclose()


def test_other_pins_are_refused() -> None:
    """A `pin` other than "size" is refused, and so is "size" for a store that fsspec reads."""
    with pytest.raises(ConfigError, match="pin='time' in storage_options: only 'size'"):
        open_store("s3://bucket", {"pin": "time"})
    with pytest.raises(ConfigError, match="pin='size' is of S3, Google, Azure and web servers"):
        open_store("memory://x", {"pin": "size"})
