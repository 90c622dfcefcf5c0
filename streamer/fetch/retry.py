"""Decides whether and when a failed request is sent again. No clock, no I/O.

`fetch/transfer.py` and `fetch/endpoint.py` decide by it; `peers/peer.py` takes its pauses from here, and
`executors/runner.py` asks which errors of the store are worth another run.
"""

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
# Client errors (4xx) after which the same request may succeed.
_RETRIED_CLIENT_ERRORS = (408, 425, 429)

# This many retries of an endpoint are sent after a short pause; further ones wait up to `backoff_max_seconds`. Each
# retry takes one, and each served request gives one back, so that an outage uses them up while failures of less than
# half of the requests do not. (The retry strategy of aws-c-io has 500 tokens, takes 10 or 5, and gives back 1. Failures
# of 5 % each by 503, resets and short bodies spent those in 4 s: 200 instead of 2,000 objects/s, 2026-11-22.)
RETRY_BUDGET = 100
# A range or an endpoint counts as silent after this many tries in a row without a byte. One timeout may be chance.
SILENT_TRIES = 2
# A range is given up after this many tries that stalled, although each may deliver bytes: a stalled body is resumed
# where it ended. If 2 % of the bodies stall by chance, six in one range have a probability of 6e-11. An object all of
# whose bodies stall is reported after 8.9-13.3 s, without this rule after 12.7-19.7 s (2026-11-20).
STALLED_TRIES = 6


def retryable(error: StreamerError) -> bool:
    """Whether another try can succeed, by the type of the error, then by its status.

    False for errors that are not StoreErrors, for errors of access, missing or changed objects, and for the statuses
    3xx, 4xx (but `_RETRIED_CLIENT_ERRORS`) and 501, which are the request's own fault.
    """
    if isinstance(error, _PERMANENT) or not isinstance(error, StoreError):
        return False
    status = error.details.get("status")
    return (
        not (isinstance(status, int) and 300 <= status < 500 and status not in _RETRIED_CLIENT_ERRORS) and status != 501
    )


def is_expiry(error: StreamerError) -> bool:
    """Whether renewed credentials may help: S3 names the reason, Google and Azure answer an old token with 401."""
    return error.details.get("code") in (*EXPIRED_CODES, *OTHER_KEYS_CODES) or error.details.get("status") == 401


# S3's code if the machine's clock is wrong. Requests are accepted once it is set right.
_SKEWED_CODE = "RequestTimeTooSkewed"
# A metadata server that does not answer is waited for this long before an endpoint served anything: those of Kubernetes
# need some seconds after the pod's start (Google, "Troubleshoot GKE authentication").
FIRST_SECONDS = 6.0


def is_credential_error(error: StreamerError) -> bool:
    """Whether a refusal concerns the credentials or the clock, so that it is the same for all objects."""
    is_of_issuer = error.details.get("status", 0) is None
    return is_expiry(error) or error.details.get("code") == _SKEWED_CODE or is_of_issuer


def max_denial_seconds(error: AccessDeniedError, config: FetchConfig, *, served: bool) -> float:
    """Returns the seconds for which requests are repeated after a refusal of everything; 0 if the refusal is final.

    An endpoint that has served requests is given the time of an outage: keys are rotated, a sign-in is renewed, a
    policy is corrected, a clock is set after a virtual machine was resumed.

    Args:
        error: the refusal.
        config: its `outage_seconds` is that time.
        served: whether the endpoint has served requests.
    """
    if served:
        return config.outage_seconds
    return FIRST_SECONDS if error.details.get("soon") else 0.0


def pause_seconds(attempt: int, start_seconds: float, longest_seconds: float, drawn_share: float) -> float:
    """Returns a pause with full jitter: `drawn_share` in [0, 1) times a length that doubles with each attempt.

    Source: AWS Architecture Blog, "Exponential Backoff And Jitter".

    Args:
        attempt: number of the try that failed, from 1.
        start_seconds: length at the first attempt.
        longest_seconds: upper bound of the length.
        drawn_share: random number.
    """
    doublings = min(attempt - 1, 64)  # a float's exponent ends at 1,023, and an outage may take more tries
    return float(drawn_share * min(longest_seconds, start_seconds * 2.0**doublings))


# A longer Retry-After is cut to this: a wrong header would stop the fetcher for good.
MOST_ASKED_SECONDS = 60.0


def read_retry_after(error: StreamerError) -> float:
    """Returns the seconds of the store's Retry-After, at most 60; 0 if there is none or it is not a duration."""
    asked = error.details.get("retry_after_seconds")
    return min(asked, MOST_ASKED_SECONDS) if isinstance(asked, (int, float)) and asked > 0 else 0.0


class TryOutcomes(msgspec.Struct):
    """Counts the outcomes of probes and of first tries of ranges. Later tries of one bad object would outnumber these.

    Attributes:
        served: number of those that were served.
        failed: number of those that failed.
    """

    served: int = 0
    failed: int = 0

    def count_since(self, earlier: TryOutcomes) -> TryOutcomes:
        """Returns the outcomes counted since `earlier`, which is a copy of this object."""
        return TryOutcomes(self.served - earlier.served, self.failed - earlier.failed)

    @property
    def ordinary(self) -> bool:
        """Whether at most a fifth failed, so that a range that fails `attempts` times is at fault itself."""
        return 4 * self.failed <= self.served


class Failing(msgspec.Struct, frozen=True):
    """Describes how a range (or another call) fails, for `gives_up`.

    Attributes:
        tries: number of tries in a row that failed without progress.
        idle_seconds: seconds since the last progress, or since the first try began.
        silent: whether the last try timed out without an error of the store, although the link is not full.
        isolated: whether the failure concerns this range only (`Endpoint.concerns_one_request`).
        quiet_seconds: seconds for which the endpoint has served nothing although it was asked.
        permanent: whether waiting cannot help (`Endpoint.is_permanent`).
        stalls: number of tries of this range, with or without bytes, that ended in silence. 0 if no large body of the
            endpoint was served since the first of them.
    """

    tries: int
    idle_seconds: float
    silent: bool
    isolated: bool
    quiet_seconds: float = 0.0
    permanent: bool = False
    stalls: int = 0


def gives_up(failing: Failing, config: FetchConfig) -> bool:
    """Whether the last failure is final, so that the range is not requested again.

    A range of a working endpoint gets `attempts` tries and `failing_seconds`: if 20 % of the requests fail by chance,
    one range in 400,000 fails eight times in a row. A silent try costs seconds, so two are enough. An endpoint that
    serves nothing is waited for (`outage_seconds`), even if it never served: otherwise a store that restarted while a
    job started ended the job after 1.9 s (2026-11-22). A wrong address is waited for as well; `OutageWatch` reports it
    after 1.5 s. Of a silent endpoint two tries are enough, as eight of a listing take 244 s (2026-11-23).
    """
    if failing.stalls >= STALLED_TRIES or failing.permanent:
        return True
    if not failing.isolated:
        away_seconds = min(failing.idle_seconds, failing.quiet_seconds)
        if failing.tries >= SILENT_TRIES and away_seconds >= config.outage_seconds:
            return True
        # An endpoint that sends a few bytes at each try is never quiet, so the range's own time counts.
        return failing.tries >= config.attempts and failing.idle_seconds >= config.outage_seconds
    enough = failing.tries >= (SILENT_TRIES if failing.silent else config.attempts)
    return enough and failing.idle_seconds >= config.failing_seconds


def describe_tries(tries: int, elapsed_seconds: float, quiet_seconds: float, config: FetchConfig) -> str:
    """Returns what a final error adds to the message of the last try: how many tries, how long; "" after one try."""
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
    """Returns a pause or timeout, cut so that it ends when a range has been without progress for `failing_seconds`.

    Args:
        seconds: length to cut, returned as it is if that time is over.
        failing_seconds: that time.
        idle_seconds: seconds without progress until now.
        least_seconds: the result is not cut below this.
    """
    left = failing_seconds - idle_seconds
    return min(seconds, max(left, least_seconds)) if left > 0 else seconds


class RetryBudget(msgspec.Struct):
    """Counts the retries of one endpoint that may be sent after a short pause; bounds the extra load of an outage.

    Attributes:
        left: number of such retries left.
    """

    left: int = RETRY_BUDGET

    def take(self) -> bool:
        """Takes one; returns False if none is left, so that the retry waits longer."""
        if not self.left:
            return False
        self.left -= 1
        return True

    def give_back(self) -> None:
        """Gives one back, for a request that was served; never more than there were at first."""
        self.left = min(RETRY_BUDGET, self.left + 1)
