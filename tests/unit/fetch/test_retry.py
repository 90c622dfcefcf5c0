"""Whether and when to try again."""

from __future__ import annotations

import pytest

from streamer.errors import (
    AccessDeniedError,
    ConfigError,
    ObjectChangedError,
    ObjectNotFoundError,
    ShortReadError,
    StoreError,
    StoreTimeoutError,
    StreamerError,
    ThrottledError,
)
from streamer.fetch.retry import RetryTokens, asked_seconds, expired, gives_up, pause_seconds, retryable


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ThrottledError("x", status=503), True),
        (ThrottledError("x", status=429), True),
        (StoreTimeoutError("x"), True),
        (ShortReadError("x"), True),
        (StoreError("x", status=None), True),
        (StoreError("x", status=500), True),
        (StoreError("x", status=400), False),
        (StoreError("x", status=301), False),
        (StoreError("x", status=408), True),
        (ObjectNotFoundError("x", status=404), False),
        (AccessDeniedError("x", status=403), False),
        (ObjectChangedError("x"), False),
        (ConfigError("x"), False),
    ],
)
def test_what_is_worth_another_try(error: StreamerError, expected: bool) -> None:
    """Outages and pushback are; what the request itself got wrong is not."""
    assert retryable(error) is expected


def test_full_jitter() -> None:
    """A uniform share of a limit that doubles and is capped."""
    assert pause_seconds(1, 0.05, 10.0, 0.5) == 0.025
    assert pause_seconds(4, 0.05, 10.0, 0.5) == 0.2
    assert pause_seconds(30, 0.05, 10.0, 1.0) == 10.0
    assert pause_seconds(3, 0.05, 10.0, 0.0) == 0.0


def test_retry_after_is_read_from_the_error() -> None:
    """What the store asked for, in seconds."""
    assert asked_seconds(ThrottledError("x", retry_after_seconds=3)) == 3.0
    assert asked_seconds(ThrottledError("x", retry_after_seconds=None)) == 0.0
    assert asked_seconds(ThrottledError("x")) == 0.0


def test_expired_credentials_are_known_by_their_code() -> None:
    """A refusal for good is not."""
    assert expired(AccessDeniedError("x", code="ExpiredToken"))
    assert not expired(AccessDeniedError("x", code="AccessDenied"))


@pytest.mark.parametrize(
    ("attempt", "elapsed", "alone", "expected"),
    [(7, 100.0, True, False), (8, 0.1, True, True), (8, 0.1, False, False), (50, 61.0, False, True)],
)
def test_when_it_gives_up(attempt: int, elapsed: float, alone: bool, expected: bool) -> None:
    """After the attempts when others go through; after the outage's time when nobody does."""
    assert gives_up(attempt, 8, elapsed_seconds=elapsed, outage_seconds=60.0, alone=alone) is expected


def test_tokens_bound_the_load_of_an_outage() -> None:
    """50 transient retries, or 100 throttled ones, then none until requests succeed again."""
    tokens = RetryTokens()
    assert sum(tokens.take(StoreError("x")) for _ in range(200)) == 50
    for _ in range(10):
        tokens.succeeded()
    assert tokens.take(StoreError("x"))
    assert not tokens.take(ThrottledError("x"))
    assert sum(RetryTokens(500).take(ThrottledError("x")) for _ in range(1)) == 1


def test_tokens_do_not_grow_beyond_their_capacity() -> None:
    """A long calm does not save up for a storm."""
    tokens = RetryTokens()
    for _ in range(1000):
        tokens.succeeded()
    assert sum(tokens.take(ThrottledError("x")) for _ in range(1000)) == 100
