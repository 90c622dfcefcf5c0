"""Listings and puts of a store without a network: retried as ranges are, or an error at once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import pytest

from streamer.config import FetchConfig
from streamer.errors import (
    AccessDeniedError,
    ConfigError,
    ObjectNotFoundError,
    StoreError,
    StreamerError,
    ThrottledError,
)
from streamer.fetch import Fetcher, retry
from streamer.manifest.model import ObjectRecord
from streamer.store.local_store import LocalStore

RECORDS = [[ObjectRecord(f"s3://b/{page}{i}", 1, "") for i in range(3)] for page in range(2)]
CONFIG = FetchConfig(backoff_start_seconds=0.001, backoff_max_seconds=0.01, failing_seconds=0.05, outage_seconds=0.2)


class FailingStore(LocalStore):
    """Stands for an object store with a listing of two pages: it fails as told between them, and at puts."""

    def __init__(self, *failures: StreamerError) -> None:
        super().__init__()
        self.failures = list(failures)
        self.puts: list[bytes] = []
        self.refreshed = 0

    async def list(self, url: str) -> AsyncGenerator[Sequence[ObjectRecord], None]:
        """See ObjectStore.list."""
        yield RECORDS[0]
        self._fail()
        yield RECORDS[1]

    async def put(self, url: str, content: bytes) -> None:
        """See ObjectStore.put."""
        self._fail()
        self.puts.append(content)

    async def refresh(self) -> None:
        """See ObjectStore.refresh."""
        self.refreshed += 1

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


def refusal(status: int | None = 503, **details: str | bool) -> StreamerError:
    """Makes a StoreError of this status, a ThrottledError for 503."""
    kind = ThrottledError if status == 503 else StoreError
    return kind("s3://b/: failed", url="s3://b/", status=status, **details)


@pytest.mark.parametrize("status", [503, None])
async def test_a_listing_begins_again_and_has_each_page_once(status: int | None) -> None:
    """A listing that fails begins again, more often than a range is tried, and gives each page once."""
    store = FailingStore(*(refusal(status) for _ in range(CONFIG.attempts + 4)))
    # However long a busy machine takes for them.
    async with Fetcher(replace(CONFIG, outage_seconds=60.0), lambda root: store) as fetcher:
        assert await fetcher.list("s3://b/") == RECORDS
        assert fetcher.statistics().retries == CONFIG.attempts + 4


async def test_a_put_is_repeated() -> None:
    """A put that fails is repeated, as for the parts of a manifest that a node gives to others."""
    store = FailingStore(refusal(), refusal())
    async with Fetcher(CONFIG, lambda root: store) as fetcher:
        await fetcher.put("s3://b/x", b"root")
    assert store.puts == [b"root"]


@pytest.mark.parametrize("status", [503, 500])
async def test_a_store_that_stays_away_is_an_error(status: int) -> None:
    """A listing of a store that stays down is an error after the outage's time, with its tries and seconds."""
    store = FailingStore(*(refusal(status) for _ in range(10_000)))
    async with Fetcher(CONFIG, lambda root: store) as fetcher:
        with pytest.raises(StoreError, match=r"\(\d+ tries in 0\.\d s\)") as caught:
            await fetcher.list("s3://b/")
    assert float(caught.value.details["elapsed_seconds"]) >= 0.2


@pytest.mark.parametrize(
    "error",
    [
        AccessDeniedError("no", status=403),
        ObjectNotFoundError("no", status=404),
        ConfigError("no"),
        refusal(None, untrusted=True),
    ],
)
async def test_what_waiting_does_not_mend_is_raised_at_once(error: StreamerError) -> None:
    """Refused credentials, a missing bucket, a wrong option and an untrusted certificate are raised after one try."""
    store = FailingStore(error, error)
    async with Fetcher(CONFIG, lambda root: store) as fetcher:
        with pytest.raises(type(error)) as caught:
            await fetcher.list("s3://b/")
    assert caught.value is error
    assert len(store.failures) == 1


async def test_a_metadata_server_may_need_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing credentials of a machine that may be starting are looked for again for some seconds, and no longer."""
    monkeypatch.setattr(retry, "FIRST_SECONDS", 60.0)
    error = AccessDeniedError("no credentials", status=None, soon=True)
    store = FailingStore(error, error, error)
    async with Fetcher(CONFIG, lambda root: store) as fetcher:
        assert await fetcher.list("s3://b/") == RECORDS
        monkeypatch.setattr(retry, "FIRST_SECONDS", 0.1)
        store.failures = [error] * 10_000
        with pytest.raises(AccessDeniedError, match=r"\(\d+ tries in [\d.]+ s\)"):
            await fetcher.list("s3://b/")


async def test_expired_credentials_are_renewed_once() -> None:
    """Expired credentials are renewed once for a listing; if the new ones are refused as well, that is an error."""
    expired = AccessDeniedError("old", status=401)
    store = FailingStore(expired)
    async with Fetcher(CONFIG, lambda root: store) as fetcher:
        assert await fetcher.list("s3://b/") == RECORDS
        assert store.refreshed == 1
        store.failures = [expired, expired]
        with pytest.raises(AccessDeniedError):
            await fetcher.list("s3://b/")
