"""What the tests of the fetcher share: obstore's runtime, warm, and a store that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import obstore
import pytest

from tests.fault.fake_s3 import FakeS3, serving


@pytest.fixture(scope="session")
def warm_runtime() -> None:
    """The threads and descriptors of obstore's runtime live as long as the process."""

    async def put() -> None:
        await obstore.put_async(obstore.store.MemoryStore(), "warm", b"")

    asyncio.run(put())


@pytest.fixture(params=["curl", pytest.param("obstore", marks=pytest.mark.slow)])
def client(request: pytest.FixtureRequest) -> str:
    """Who reads the server: the clients of the hot path; a test may name others."""
    return str(request.param)


@pytest.fixture
async def server(warm_runtime: None, client: str) -> AsyncIterator[FakeS3]:
    """A store that works until a script says otherwise."""
    fake = FakeS3(client)
    async with serving(fake):
        yield fake
