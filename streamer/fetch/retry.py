"""Whether and when to try again, as pure decisions."""

from __future__ import annotations

from dataclasses import dataclass

from streamer.errors import (
    AccessDeniedError,
    ConfigError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    StoreTimeoutError,
    StreamerError,
    ThrottledError,
)
from streamer.store.failures import EXPIRED_CODES

_PERMANENT = (AccessDeniedError, ObjectNotFoundError, ObjectChangedError, ConfigError)
# 408 and 425 ask for another try; they and 429 arrive as their own types or with these numbers.
_RETRIED_CLIENT_ERRORS = (408, 425, 429)

# The token budget of aws-c-io's standard retry strategy: 500, a transient failure costs 10, a throttle 5, each
# success pays 1 back. It bounds the extra load of an outage; the first tries of new requests need no token.
CAPACITY_TOKENS = 500
TRANSIENT_TOKENS = 10
THROTTLE_TOKENS = 5


def retryable(error: StreamerError) -> bool:
    """Whether another try can succeed: by type, then by status; 4xx are the request's own fault."""
    if isinstance(error, _PERMANENT) or not isinstance(error, StoreError):
        return False
    status = error.details.get("status")
    return not (isinstance(status, int) and 300 <= status < 500 and status not in _RETRIED_CLIENT_ERRORS)


def expired(error: StreamerError) -> bool:
    """Whether renewed credentials may help."""
    return error.details.get("code") in EXPIRED_CODES


def pause_seconds(attempt: int, start: float, longest: float, draw: float) -> float:
    """Full jitter: `draw` in [0, 1) of `start` doubled per attempt, at most `longest`.

    Source: AWS Architecture Blog, "Exponential Backoff And Jitter".
    """
    return float(draw * min(longest, start * 2.0 ** (attempt - 1)))


def asked_seconds(error: StreamerError) -> float:
    """What the store's Retry-After asked for; 0 without one."""
    asked = error.details.get("retry_after_seconds")
    return float(asked) if isinstance(asked, (int, float)) else 0.0


def gives_up(attempt: int, attempts: int, *, elapsed_seconds: float, outage_seconds: float, alone: bool) -> bool:
    """Whether the failure of try number `attempt` (1, 2, ...) is the last.

    Args:
        attempt: which try failed.
        attempts: tries allowed.
        elapsed_seconds: since the first try began.
        outage_seconds: how long a dead endpoint is waited for.
        alone: the endpoint serves others meanwhile, or never served anybody: then `attempts` decide. Otherwise
            it is down after it worked, and is waited for as long as `outage_seconds`.
    """
    return attempt >= attempts and (alone or elapsed_seconds >= outage_seconds)


@dataclass(slots=True)
class RetryTokens:
    """The budget of one endpoint: it bounds the extra load of an outage."""

    tokens: float = CAPACITY_TOKENS

    def take(self, error: StreamerError) -> bool:
        """Pays for a retry; False when the budget is spent: the retry then waits the longest pause."""
        throttled = isinstance(error, (ThrottledError, StoreTimeoutError))
        price = THROTTLE_TOKENS if throttled else TRANSIENT_TOKENS
        if self.tokens < price:
            return False
        self.tokens -= price
        return True

    def succeeded(self) -> None:
        """A request went through: one token back."""
        self.tokens = min(CAPACITY_TOKENS, self.tokens + 1)
