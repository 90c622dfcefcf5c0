"""One GET from a store without a network: when its first byte is late for a duplicate, and when it is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from streamer.config import FetchConfig
from streamer.errors import StoreTimeoutError
from streamer.fetch.endpoint import Endpoint
from streamer.fetch.hedge import Sampled
from streamer.fetch.request import Request, RequestSpec
from streamer.fetch.statistics import RequestTally
from streamer.manifest.model import Extent, ObjectRecord
from streamer.store.base import Take
from tests.unit.fetch.answering_store import AnsweringStore

BODY = bytes(range(200))
MS = 0.001


async def _received(
    answer: Callable[[Take], Awaitable[None]],
    late: Callable[[], None],
    *,
    first_byte_seconds: float = 3600.0,
    duplicate_seconds: float = MS,
) -> bytes:
    """Sends one request to a store that answers so, and returns its body."""
    config, landed = FetchConfig(), bytearray(len(BODY))
    endpoint = Endpoint("s3://bucket", AnsweringStore(lambda asked, take: answer(take)), config)
    spec = RequestSpec(
        Extent(ObjectRecord("s3://bucket/o", len(BODY), "etag:1"), 0, len(BODY)),
        endpoint,
        RequestTally(),
        Sampled(),
        first_byte_seconds,
        duplicate_seconds,
        lambda: memoryview(landed),
        0,
    )
    await Request(spec, lambda request: True, late).receive()
    return bytes(landed)


async def test_late_for_a_duplicate() -> None:
    """A request that is late for a duplicate reports it once and goes on."""
    told: list[None] = []
    is_late = asyncio.Event()

    def late() -> None:
        told.append(None)
        is_late.set()

    async def answer(take: Take) -> None:
        await is_late.wait()
        await asyncio.sleep(5 * MS)
        take(BODY)

    assert await _received(answer, late) == BODY
    assert told == [None]


async def test_late_for_good() -> None:
    """A request that is given up before a duplicate is due reports none and names the bytes received."""
    told: list[None] = []

    async def answer(take: Take) -> None:
        await asyncio.sleep(3600)

    with pytest.raises(StoreTimeoutError, match="0 of 200 bytes"):
        await _received(answer, lambda: told.append(None), first_byte_seconds=MS, duplicate_seconds=2 * MS)
    assert told == []


async def test_whole_body_of_a_store_that_has_not_said_so() -> None:
    """A request whose body has arrived whole before its store returns is not reported as late."""
    told: list[None] = []

    async def answer(take: Take) -> None:
        take(BODY)
        await asyncio.sleep(20 * MS)

    assert await _received(answer, lambda: told.append(None)) == BODY
    assert told == []
