"""Tests of the pauses of an endpoint, with a random number that is always the largest."""

from __future__ import annotations

import random

import pytest

from streamer.config import FetchConfig
from streamer.errors import StoreError, ThrottledError
from streamer.fetch.endpoint import Endpoint
from streamer.store.local_store import LocalStore

CONFIG = FetchConfig(backoff_start_seconds=0.5, backoff_max_seconds=4.0, failing_seconds=8.0)
FAILED = StoreError("failed")


@pytest.fixture
async def endpoint(monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    """Returns an endpoint that pauses for as long as it may."""
    monkeypatch.setattr(random, "random", lambda: 1.0)
    return Endpoint("s3://bucket", LocalStore(), CONFIG)


async def test_pauses_double(endpoint: Endpoint) -> None:
    """Pauses double with each failed try, up to the largest."""
    assert [endpoint.pause(FAILED, tries, 0.0) for tries in (1, 2, 3, 4, 5)] == [0.5, 1.0, 2.0, 4.0, 4.0]


async def test_late_pauses_are_the_largest(endpoint: Endpoint) -> None:
    """Without early retries the first pause may be the largest."""
    assert endpoint.pause(FAILED, 1, 0.0, early=False) == 4.0


async def test_pauses_end_with_the_time_to_fail(endpoint: Endpoint) -> None:
    """A pause ends when the request may be given up; after that time it is not cut."""
    assert endpoint.pause(FAILED, 4, 7.0) == 1.0
    assert endpoint.pause(FAILED, 4, 9.0) == 4.0


async def test_a_store_may_ask_for_more(endpoint: Endpoint) -> None:
    """A pause is not shorter than the Retry-After of the store."""
    assert endpoint.pause(ThrottledError("slow down", retry_after_seconds=6), 1, 7.5) == 6.0
