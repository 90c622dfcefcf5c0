"""Chunks fetched through several endpoints, from a store without a network."""

from __future__ import annotations

import asyncio

import pytest

from streamer.config import FetchConfig
from streamer.errors import ConfigError
from streamer.fetch import Fetcher
from streamer.manifest.model import Chunk, Extent, ObjectRecord
from streamer.store.base import Take
from tests.unit.fetch.answering_store import AnsweringStore


async def _own_url(asked: Extent, take: Take) -> None:
    """Answers with the url of the object as its content, after one turn of the loop."""
    await asyncio.sleep(0)
    take(asked.object.url.encode()[asked.start : asked.stop])


async def test_lines_are_fetched_together() -> None:
    """Extents with one byte between them are fetched by one request, and that byte is left out of the chunk."""
    text = "".join(f"line {number}\n" for number in range(100)).encode()
    record = ObjectRecord("s3://bucket/lines", len(text), "")
    starts = [0, *(at + 1 for at, byte in enumerate(text[:-1]) if byte == 10)]
    extents = tuple(Extent(record, at, text.index(b"\n", at)) for at in starts)
    length = len(text) - len(extents)

    async def send(asked: Extent, take: Take) -> None:
        take(text[asked.start : asked.stop])

    async with Fetcher(FetchConfig(), lambda root: AnsweringStore(send)) as fetcher:
        with await fetcher.fetch(Chunk(0, bytes(16), extents, 0, len(extents), length, length)) as got:
            assert b"".join(got.parts) == text.replace(b"\n", b"")
        assert fetcher.statistics().requests == 1


@pytest.mark.parametrize("buckets", ["ab", "ba"])
async def test_the_windows_of_two_buckets_are_kept_apart(buckets: str) -> None:
    """A chunk of objects in two buckets, more than either window takes, is fetched whole and leaves no reservation."""
    urls = [f"s3://{bucket}/{number:02}" for number in range(10) for bucket in buckets]
    extents = tuple(Extent(ObjectRecord(url, len(url), ""), 0, len(url)) for url in urls)
    count = sum(map(len, urls))
    config = FetchConfig(window_start=2, window_min=1, window_max=2)
    async with Fetcher(config, lambda root: AnsweringStore(_own_url)) as fetcher:
        async with asyncio.timeout(10):
            for index in range(3):
                with await fetcher.fetch(Chunk(index, bytes(16), extents, 0, len(urls), count, count)) as got:
                    assert b"".join(got.parts) == "".join(urls).encode()
        assert [endpoint.gate.used for endpoint in fetcher._endpoints.values()] == [0, 0]
        assert fetcher.statistics().waiting == 0


async def test_a_wrong_option_that_the_store_finds_at_a_range_stays_a_config_error() -> None:
    """An error that is not the store's reaches the caller of a fetch with its type, after one try."""

    async def refuse(asked: Extent, take: Take) -> None:
        raise ConfigError("region='mars' is no region of AWS", field="region")

    extent = Extent(ObjectRecord("s3://bucket/a", 4, ""), 0, 4)
    async with Fetcher(FetchConfig(), lambda root: AnsweringStore(refuse)) as fetcher:
        with pytest.raises(ConfigError, match="no region of AWS") as caught:
            await fetcher.fetch(Chunk(0, bytes(16), (extent,), 0, 1, 4, 4))
        assert caught.value.details["field"] == "region"
        assert (fetcher.statistics().failures, fetcher.statistics().retries) == (1, 0)


class _StickingStore(AnsweringStore):
    """Stands for a store whose connections cannot be closed: it notes the try, and raises what the test says."""

    def __init__(self, tried: list[BaseException], error: BaseException) -> None:
        super().__init__(_own_url)
        self._tried = tried
        self._error = error

    async def aclose(self) -> None:
        self._tried.append(self._error)
        raise self._error


@pytest.mark.parametrize("error", [OSError("reset"), asyncio.CancelledError("now")])
async def test_a_store_that_cannot_be_closed_keeps_no_other_open(error: BaseException) -> None:
    """All stores of a fetcher are closed at its end, also if closing one fails or is cancelled; that is raised then."""
    tried: list[BaseException] = []
    fetcher = await Fetcher(FetchConfig(), lambda root: _StickingStore(tried, error)).__aenter__()
    for bucket in "abc":
        await fetcher.read(Extent(ObjectRecord(f"s3://{bucket}/1", 8, ""), 0, 8))
    with pytest.raises(type(error), match=str(error)):
        await fetcher.__aexit__(None, None, None)
    assert tried == [error] * 3
