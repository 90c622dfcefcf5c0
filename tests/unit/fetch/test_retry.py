"""Retries: which errors, after which pause, how often, and when a request is given up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from streamer.config import FetchConfig
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
from streamer.fetch import retry
from streamer.fetch.retry import (
    Failing,
    RetryBudget,
    cap_to_deadline,
    gives_up,
    is_credential_error,
    is_expiry,
    max_denial_seconds,
    pause_seconds,
    read_retry_after,
    retryable,
)


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
    """Outages and throttling are retried; errors that the request itself causes are not."""
    assert retryable(error) is expected


def test_full_jitter() -> None:
    """The pause before a retry is a uniform share of a limit that doubles with each try and is capped."""
    assert pause_seconds(1, 0.05, 10.0, 0.5) == 0.025
    assert pause_seconds(4, 0.05, 10.0, 0.5) == 0.2
    assert pause_seconds(30, 0.05, 10.0, 1.0) == 10.0
    assert pause_seconds(3, 0.05, 10.0, 0.0) == 0.0
    assert pause_seconds(5_000, 0.001, 0.02, 1.0) == 0.02


def test_retry_after_is_read_from_the_error() -> None:
    """Retry-After is read from the error in seconds, and is 0 where the store gave none."""
    assert read_retry_after(ThrottledError("x", retry_after_seconds=3)) == 3.0
    assert read_retry_after(ThrottledError("x", retry_after_seconds=None)) == 0.0
    assert read_retry_after(ThrottledError("x")) == 0.0


def test_expired_credentials_are_known_by_their_code() -> None:
    """Expired credentials are known by their code or by status 401; a refusal with 403 AccessDenied is not one."""
    assert is_expiry(AccessDeniedError("x", code="ExpiredToken"))
    assert is_expiry(AccessDeniedError("x", status=401, code=None))
    assert not is_expiry(AccessDeniedError("x", status=403, code="AccessDenied"))


LONE = Failing(tries=8, idle_seconds=12.0, silent=False, isolated=True)


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        (LONE, True),
        (replace(LONE, tries=7), False),
        (replace(LONE, idle_seconds=11.9), False),
        (replace(LONE, tries=2, silent=True), True),
        (replace(LONE, tries=1, silent=True), False),
        (replace(LONE, tries=2, silent=True, idle_seconds=11.9), False),
        (replace(LONE, tries=1, idle_seconds=0.1, permanent=True), True),
        (replace(LONE, tries=50, idle_seconds=0.1), False),
        (replace(LONE, isolated=False), False),
        (replace(LONE, tries=50, idle_seconds=61.0, isolated=False), True),
        (replace(LONE, tries=2, idle_seconds=61.0, isolated=False, silent=True), False),
        (replace(LONE, tries=2, idle_seconds=60.0, isolated=False, quiet_seconds=60.0), True),
        (replace(LONE, tries=1, idle_seconds=60.0, isolated=False, quiet_seconds=60.0), False),
        (replace(LONE, tries=2, idle_seconds=60.0, isolated=False, quiet_seconds=59.9), False),
        (replace(LONE, tries=2, idle_seconds=59.9, isolated=False, quiet_seconds=60.0), False),
        (replace(LONE, tries=1, idle_seconds=0.0, stalls=5), False),
        (replace(LONE, tries=1, idle_seconds=0.0, stalls=6), True),
    ],
)
def test_when_it_gives_up(failing: Failing, expected: bool) -> None:
    """A request is given up after its tries and time, or six stalls, and after the outage's time if all fail."""
    assert gives_up(failing, FetchConfig(attempts=8, failing_seconds=12.0, outage_seconds=60.0)) is expected


@pytest.mark.parametrize(
    ("seconds", "idle", "expected"), [(4.0, 0.0, 4.0), (4.0, 10.0, 2.0), (4.0, 11.5, 1.0), (4.0, 12.0, 4.0)]
)
def test_waits_end_when_it_is_time_to_decide(seconds: float, idle: float, expected: float) -> None:
    """A pause or timeout is cut to the time that is left until a request may be given up, but not below the minimum."""
    assert cap_to_deadline(seconds, 12.0, idle, least_seconds=1.0) == expected


def test_the_budget_bounds_the_load_of_an_outage() -> None:
    """The retry budget allows 100 retries, and then one for each request that is served."""
    budget = RetryBudget()
    assert sum(budget.take() for _ in range(200)) == 100
    budget.give_back()
    assert [budget.take(), budget.take()] == [True, False]


def test_the_budget_does_not_grow() -> None:
    """Served requests do not raise the retry budget above 100."""
    budget = RetryBudget()
    for _ in range(1000):
        budget.give_back()
    assert sum(budget.take() for _ in range(1000)) == 100


@pytest.mark.parametrize(("said", "seconds"), [(None, 0.0), (7.0, 7.0), (1e9, 60.0), (-5.0, 0.0), (float("nan"), 0.0)])
def test_retry_after_is_honoured_within_reason(said: float | None, seconds: float) -> None:
    """Retry-After is taken within 0 and 60 s, so that a wrong header does not stop requests for good."""
    assert read_retry_after(ThrottledError("slow down", retry_after_seconds=said)) == seconds


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (AccessDeniedError("x", status=403, code="AccessDenied"), False),
        (AccessDeniedError("x", status=403, code="InvalidAccessKeyId"), True),
        (AccessDeniedError("x", status=403, code="RequestTimeTooSkewed"), True),
        (AccessDeniedError("an issuer's", status=None), True),
        (AccessDeniedError("of a service's rules"), False),
    ],
)
def test_refusals_of_the_credentials_themselves(error: AccessDeniedError, known: bool) -> None:
    """A refusal of the credentials themselves is told from that of an object, which other requests may contradict."""
    assert is_credential_error(error) is known


def test_how_long_a_refusal_is_worth_looking_for_others() -> None:
    """A refusal is retried for an outage's time if the store has served, briefly if a machine may be starting."""
    config = FetchConfig()
    assert max_denial_seconds(AccessDeniedError("x"), config, served=True) == config.outage_seconds
    assert max_denial_seconds(AccessDeniedError("x", soon=True), config, served=False) == retry.FIRST_SECONDS
    assert max_denial_seconds(AccessDeniedError("x"), config, served=False) == 0.0
