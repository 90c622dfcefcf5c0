"""Decides whether and when to try again. Pure functions."""

from __future__ import annotations

import msgspec

from streamer.config import FetchConfig
from streamer.errors import (
    AccessDeniedError,
    ConfigError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    StreamerError,
)
from streamer.store.failures import EXPIRED_CODES, OTHER_KEYS_CODES

_PERMANENT = (AccessDeniedError, ObjectNotFoundError, ObjectChangedError, ConfigError)
# 408 and 425 ask for another try; they and 429 arrive as their own types or with these numbers.
_RETRIED_CLIENT_ERRORS = (408, 425, 429)

# Number of retries per endpoint that are sent after the short pause; further ones wait up to `backoff_max_seconds`.
# Each retry takes one, and each served request gives one back, so that an outage uses them up while failures of less
# than half of the requests do not. (The retry strategy of aws-c-io has 500 tokens, takes 10 or 5, and gives back 1: 5 %
# each of 503, resets and short bodies spent those in 4 s, 200 instead of 2,000 objects/s, 2026-11-22.)
RETRY_BUDGET = 100
# Consecutive tries without a byte after which a range counts as silent. One timeout may be chance; two are not.
SILENT_TRIES = 2
# A body that stalls is resumed where it ended, so each try delivers its bytes. At 2 % of stalls six in one range have a
# probability of 6e-11; an object all of whose bodies stall somewhere took 12.7-19.7 s, now 8.9-13.3 s (2026-11-20).
STALLED_TRIES = 6


def retryable(error: StreamerError) -> bool:
    """Whether another try can succeed, by type, then by status: 4xx and 501 are the request's own fault."""
    if isinstance(error, _PERMANENT) or not isinstance(error, StoreError):
        return False
    status = error.details.get("status")
    return (
        not (isinstance(status, int) and 300 <= status < 500 and status not in _RETRIED_CLIENT_ERRORS) and status != 501
    )


def is_expired(error: StreamerError) -> bool:
    """Whether other credentials may help: S3 names the reason, Google and Azure answer an old token with 401."""
    return error.details.get("code") in (*EXPIRED_CODES, *OTHER_KEYS_CODES) or error.details.get("status") == 401


# The machine's clock is wrong: what is signed later is accepted.
_SKEWED_CODE = "RequestTimeTooSkewed"
# A first start waits this long for a metadata server that does not answer: those of Kubernetes need some seconds after
# the pod's start (Google, "Troubleshoot GKE authentication").
FIRST_SECONDS = 6.0


def is_credential_error(error: StreamerError) -> bool:
    """Whether a refusal concerns the credentials, whatever is requested with them."""
    is_of_issuer = error.details.get("status", 0) is None
    return is_expired(error) or error.details.get("code") == _SKEWED_CODE or is_of_issuer


def max_denied_seconds(error: AccessDeniedError, config: FetchConfig, *, served: bool) -> float:
    """Returns the seconds in which other credentials are sought after a refusal of everything; 0 if it is final.

    Keys are rotated, a sign-in is renewed, a policy is corrected, a clock is set after a virtual machine was resumed:
    an endpoint that has served requests is given the time of an outage.

    Args:
        error: the refusal.
        config: bounds.
        served: whether the endpoint has served requests.
    """
    if served:
        return config.outage_seconds
    return FIRST_SECONDS if error.details.get("soon") else 0.0


def pause_seconds(attempt: int, start_seconds: float, longest_seconds: float, drawn_share: float) -> float:
    """Returns a pause with full jitter: `drawn_share` in [0, 1) times a length that doubles with each attempt.

    The length is `start_seconds` at first and `longest_seconds` at most.

    Source: AWS Architecture Blog, "Exponential Backoff And Jitter".
    """
    doublings = min(attempt - 1, 64)  # a float's exponent ends at 1,023, and an outage may take more tries
    return float(drawn_share * min(longest_seconds, start_seconds * 2.0**doublings))


# The longest Retry-After that is respected: a wrong header would stop the fetcher for good.
MOST_ASKED_SECONDS = 60.0


def read_retry_after(error: StreamerError) -> float:
    """Returns the seconds of the store's Retry-After, at most a minute; 0 without one, or if it is not a duration."""
    asked = error.details.get("retry_after_seconds")
    return min(asked, MOST_ASKED_SECONDS) if isinstance(asked, (int, float)) and asked > 0 else 0.0


class TryOutcomes(msgspec.Struct):
    """Outcomes of probes and of the first tries of ranges; later tries of one bad object would outnumber them."""

    served: int = 0
    failed: int = 0

    def count_since(self, earlier: TryOutcomes) -> TryOutcomes:
        """Returns those that were added after `earlier`."""
        return TryOutcomes(self.served - earlier.served, self.failed - earlier.failed)

    @property
    def ordinary(self) -> bool:
        """Whether at most a fifth failed, for which `attempts` tries are enough."""
        return 4 * self.failed <= self.served


class Failing(msgspec.Struct, frozen=True):
    """How a range fails. A body that arrives in pieces is not a failure, unless it stalls while others do not.

    Attributes:
        tries: tries in a row that failed without keeping a byte.
        idle_seconds: time since the last byte was kept, or since the first try began.
        silent: whether the last try waited in vain for a store that answers others as quickly as ever.
        isolated: whether the failure concerns this range only, see `Endpoint.is_isolated`.
        quiet_seconds: time for which the endpoint has served nothing although it was asked.
        permanent: whether the certificate of an endpoint that never served a request is refused: waiting does not help.
        stalls: tries of this range, with or without bytes, that ended in silence; 0 while no other range got a large
            body since the first of them.
    """

    tries: int
    idle_seconds: float
    silent: bool
    isolated: bool
    quiet_seconds: float = 0.0
    permanent: bool = False
    stalls: int = 0


def gives_up(failing: Failing, config: FetchConfig) -> bool:
    """Whether the last failure is final.

    If 20 % of requests fail by chance, one range in 400,000 fails eight times in a row; a range of a working endpoint
    therefore gets `attempts` tries and `failing_seconds`. A silent try costs seconds, so two are enough. An endpoint
    that serves no request is waited for, even if it never did: a store that restarted while a job started ended the job
    after 1.9 s (2026-11-22). A wrong address is waited for as well, and `OutageWatch` reports it after 1.5 s. If an
    endpoint is silent, two tries are enough: eight of a listing, 30 s each, were 244 s (2026-11-23).
    """
    if failing.stalls >= STALLED_TRIES or failing.permanent:
        return True
    if not failing.isolated:
        away_seconds = min(failing.idle_seconds, failing.quiet_seconds)
        if failing.tries >= SILENT_TRIES and away_seconds >= config.outage_seconds:
            return True
        # Every try gets a few bytes, so the endpoint is never quiet.
        return failing.tries >= config.attempts and failing.idle_seconds >= config.outage_seconds
    enough = failing.tries >= (SILENT_TRIES if failing.silent else config.attempts)
    return enough and failing.idle_seconds >= config.failing_seconds


def describe_tries(tries: int, elapsed_seconds: float, quiet_seconds: float, config: FetchConfig) -> str:
    """Returns the tries and times that a final error adds to the failure of its last try; "" if there was one."""
    if tries == 1:
        return ""
    text = f" ({tries} tries in {elapsed_seconds:.1f} s)"
    if quiet_seconds >= config.outage_seconds:
        text += (
            f"; the store served nothing for {quiet_seconds:.0f} s (a larger outage_seconds in the file that "
            "STREAMER_CONFIG names waits longer)"
        )
    return text


def cap_to_deadline(seconds: float, failing_seconds: float, idle_seconds: float, least_seconds: float = 0.0) -> float:
    """Cuts a pause or a timeout to end at `failing_seconds`, not below `least_seconds`; unchanged after that time."""
    left = failing_seconds - idle_seconds
    return min(seconds, max(left, least_seconds)) if left > 0 else seconds


class RetryBudget(msgspec.Struct):
    """The retries of one endpoint that are sent early: bounds the extra load of an outage."""

    left: int = RETRY_BUDGET

    def take(self) -> bool:
        """Takes one; returns False if none is left, so that the retry waits for the longest pause."""
        if not self.left:
            return False
        self.left -= 1
        return True

    def give_back(self) -> None:
        """Gives one back for a served request."""
        self.left = min(RETRY_BUDGET, self.left + 1)
