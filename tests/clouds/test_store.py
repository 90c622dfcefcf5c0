"""The contract of every store against emulators of S3, Azure and Google, and against HTTPS with a private CA.

moto, Azurite and gcp-storage-emulator check little or nothing of a signature or a policy and never
throttle: refusals and 503s are shown on fakes in tests/contract and tests/fault.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from streamer.errors import StoreError
from streamer.manifest.model import ObjectRecord
from streamer.store import open_store
from streamer.store.fsspec_store import FsspecStore
from streamer.store.obstore_store import ObstoreStore
from tests.clouds.conftest import BUCKET, Cloud, Options
from tests.contract.store_contract import FILES, Kind, StoreContract, read

# aiohttp warns gcsfs and adlfs of the 3 MB that they send in one piece; only tests write so much.
pytestmark = [pytest.mark.clouds, pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")]


@pytest.fixture
async def kind(cloud: Cloud) -> AsyncIterator[Kind]:
    """The cloud's bucket, holding FILES."""
    store, writer = cloud.open(), cloud.open_writer()
    base = cloud.root if cloud.writer is None else cloud.writer[0]

    async def put(url: str, content: bytes) -> None:
        await writer.put(base + url.removeprefix(cloud.root), content)

    try:
        for name, content in FILES.items():
            await put(f"{cloud.root}/{name}", content)
        yield Kind(store, cloud.root, put)
    finally:
        await writer.aclose()
        await store.aclose()


class TestClouds(StoreContract):
    """The contract of stores for each emulator, read by each client that can."""

    @pytest.mark.parametrize("length", [0, 1000, 20_000_000])
    async def test_a_file_becomes_an_object(
        self, cloud: Cloud, kind: Kind, tmp_path_factory: pytest.TempPathFactory, length: int
    ):
        """A file written to a cloud's store becomes an object, where an emulator takes the writer's signature."""
        if cloud.writer is not None:
            pytest.skip("obstore's Google client signs every write, and no emulator takes its signature (conftest.py)")
        await super().test_a_file_becomes_an_object(kind, tmp_path_factory, length)


async def test_clients_are_what_they_say(cloud: Cloud) -> None:
    """Each kind of store is opened with the client that it names."""
    store = cloud.open()
    assert type(store) is (ObstoreStore if cloud.client == "obstore" else FsspecStore)
    await store.aclose()


async def test_auto_takes_obstore_where_it_can(cloud: Cloud) -> None:
    """A store opened without a client's name uses obstore, unless its options have no counterpart there."""
    store = open_store(cloud.root, cloud.options)
    assert isinstance(store, FsspecStore if "session_kwargs" in cloud.options else ObstoreStore)
    await store.aclose()


@pytest.mark.parametrize("client", ["obstore", "fsspec"])
async def test_unknown_authority_is_refused(untrusting: Options, client: str) -> None:
    """HTTPS with a certificate of an unknown CA is refused, and the error names the option that takes the CA."""
    store = open_store(f"s3://{BUCKET}", untrusting, client=client)  # type: ignore[arg-type]
    try:
        with pytest.raises(StoreError, match=r"certificate is not trusted.*verify"):
            await read(store, ObjectRecord(f"s3://{BUCKET}/train/a/1.bin", 1000, "etag:x"), 0, 10)
    finally:
        await store.aclose()
