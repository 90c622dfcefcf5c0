"""Decides how many requests per second one endpoint is sent, once it is known to limit them.

A pure state machine; time is an argument. A store refuses requests (429, 503) for one of two reasons: by chance, a
share of them at any rate, as S3 does with 0.1 to 1 %; or because they come faster than it permits. The refusals look
the same, so a trial decides: for a moment requests are sent at only nine tenths of the rate that was just served. Below
a limit nothing is refused; by chance the same share as before is. A limit is then respected, while chance costs only
the retries.

Simulated with 30 ms latency and 10,000 objects of 110 KB from the first request on (2026-11-23): with chance 0.99 of
the rate remains at 1 and 5 %, 0.94 at 20 %; limits of 100 to 2,000 requests/s are used to at least 0.92 with 1 %
refused, and to 0.8 with 5 % chance on top. Limiting the number of requests in flight instead is too coarse: 200
requests/s are 6 in flight, so that one more is 17 %, and a slow answer counts as spare capacity (0.69 of the limit with
5 % chance on top).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

INTERVAL_SECONDS = 0.25
# Rates are measured over at least this many mean durations of a request, because the first answers are the quick ones.
INTERVAL_DURATIONS = 4.0
# A tally without anything unusual is added to the known chance after this long.
TALLY_SECONDS = 5.0
# Refusals beyond chance that start a trial, as a share of the answers and in number. 1 % by chance is common.
NOTICED_SHARE = 0.02
NOTICED_REFUSALS = 8.0
# While more and more requests are in flight, each step tells as much as a trial: a limit refuses a third at the next
# one. More than this share refused is a limit at once. Without this rule trials slow the start: 5 % of 503 on raw
# objects reduced the rate to 0.72 instead of 0.945 (2026-11-23).
CLIMBING_SHARE = 0.25
# A larger share is never taken for chance: full speed does not help a store that refuses this many.
CHANCE_MOST = 0.4
# A share that was found to be chance is tried again after this long, because the trial may have been wrong.
REPEAT_SECONDS = 30.0
TRIAL_FACTOR = 0.9
# The share of a measured limit that is sent.
LIMIT_FACTOR = 0.97
# A limit may rise, and the measured one includes what the store allows in a burst.
HOLD_SECONDS = 15.0
RAISE_SECONDS = 2.0
RAISE_FACTOR = 1.1
# The rate doubles at each interval after a trial that found no limit, and after an outage.
RESUME_FACTOR = 2.0
# Rate for a store that refuses everything, to see when that ends.
LEAST_PER_SECOND = 16.0
# No store is sent this many requests, so it means no limit.
MOST_PER_SECOND = 1e6


class AnswerTally(msgspec.Struct):
    """Counts of the answers to requests that were sent since a moment.

    Attributes:
        since: that moment.
        served: requests that ended well.
        refused: requests that were refused.
        served_seconds: total duration of the served requests.
        refused_seconds: total duration of the refused ones.
        looked_at: time of the last look.
        served_then: requests served by the last look.
    """

    since: float
    served: int = 0
    refused: int = 0
    served_seconds: float = 0.0
    refused_seconds: float = 0.0
    looked_at: float = 0.0
    served_then: int = 0

    @property
    def answers(self) -> int:
        """Number of answers of both kinds."""
        return self.served + self.refused

    def recent_rate(self, now: float) -> float:
        """Requests served per second since the last look: the time before may include a burst that the store allows."""
        if self.looked_at:
            return (self.served - self.served_then) / max(now - self.looked_at, 1e-3)
        return self._served_per_second(now)

    def look(self, now: float) -> None:
        """Remembers the number served by now."""
        self.looked_at = now
        self.served_then = self.served

    def _served_per_second(self, now: float) -> float:
        """Requests served per second of the time whose requests can have been answered by now."""
        return self.served / max(now - self.since - self._mean_seconds, 1e-3)

    def refusal_share(self, now: float) -> float:
        """Returns the share of refused requests, by the answers of each kind per second that could be counted."""
        served = self._served_per_second(now)
        refused = self.refused / max(now - self.since - self.refused_seconds / max(1, self.refused), 1e-3)
        return refused / max(served + refused, 1e-9)

    def complete(self, now: float) -> bool:
        """Whether it is long enough for its rates to mean something."""
        elapsed = now - self.since
        return elapsed >= INTERVAL_SECONDS and elapsed >= INTERVAL_DURATIONS * self._mean_seconds

    @property
    def _mean_seconds(self) -> float:
        return self.served_seconds / max(1, self.served)


class Chance(msgspec.Struct):
    """The share of requests that is refused at any rate, and the number of answers from which it is known."""

    share: float = 0.0
    answers: float = 0.0

    def learn(self, share: float, answers: int) -> None:
        """Adds answers to the average."""
        total = self.answers + answers
        self.share += (share - self.share) * answers / max(total, 1.0)
        self.answers = total

    def excess(self, share: float, answers: int) -> float:
        """Refusals among the answers that chance does not explain; 0 if chance may explain all of them."""
        expected = self.share * answers
        variance = expected + answers * expected / max(self.answers, 1.0)
        excess = share * answers - expected
        return excess if excess >= 3.0 * math.sqrt(variance) else 0.0


class Pacing:
    """The rate at which requests are sent to one endpoint.

    Args:
        climbing: tells whether the number of requests in flight is growing quickly.
        now: the moment; all moments are of one clock.

    Attributes:
        per_second: requests to be sent per second; inf: no limit.
        measured_limit: requests per second that the store was found to permit; inf: no limit.
        confirmations: trials that found a limit since the last one that found chance.
        by_chance: whether the last trial that decided found that the store refuses requests by chance.
    """

    def __init__(self, climbing: Callable[[], bool], now: float) -> None:
        self.per_second = self.measured_limit = math.inf
        self.confirmations = 0
        self.by_chance = False
        self._climbing = climbing
        self._chance = Chance()
        self._tally = AnswerTally(now)
        self._next_look = now
        # The share that was refused before the running trial; None if none is running.
        self._tried_share: float | None = None
        self._repeat_at = now
        self._raise_at = math.inf
        self._raise_seconds = RAISE_SECONDS
        self._raise_factor = RAISE_FACTOR

    def __repr__(self) -> str:
        state = "trial" if self._tried_share is not None else "limited" if self.limited else "open"
        return f"Pacing({state}, per_second={self.per_second:.0f}, chance={self._chance.share:.3f})"

    @property
    def limited(self) -> bool:
        """Whether the rate is limited."""
        return self.per_second < math.inf

    def record_served(self, sent_at: float, now: float) -> None:
        """Records that a request sent at `sent_at` ended well."""
        if sent_at >= self._tally.since:
            self._tally.served += 1
            self._tally.served_seconds += now - sent_at
            self._look(now)

    def record_refused(self, sent_at: float, now: float) -> None:
        """Records that a request sent at `sent_at` was answered 429 or 503."""
        if sent_at >= self._tally.since:
            self._tally.refused += 1
            self._tally.refused_seconds += now - sent_at
            self._look(now)

    def _look(self, now: float) -> None:
        if now < self._next_look or not self._tally.complete(now):
            return
        self._next_look = now + INTERVAL_SECONDS
        tally = self._tally
        if self._tried_share is not None:
            self._end_trial(self._tried_share, now)
        else:
            self._watch(now)
        tally.look(now)

    def _watch(self, now: float) -> None:
        """Looks for refusals that chance does not explain; otherwise learns, and raises a rate that is due for it."""
        tally = self._tally
        share = self._tally.refusal_share(now)
        if self._chance.share > NOTICED_SHARE and now >= self._repeat_at and not self.limited:
            self._chance = Chance()
        excess = self._chance.excess(share, tally.answers)
        if excess >= NOTICED_REFUSALS and excess > NOTICED_SHARE * tally.answers:
            if share > CLIMBING_SHARE + self._chance.share or not self._climbing():
                self._try(share, now)
            else:
                self._tally = AnswerTally(now)
            return
        if not tally.refused or now - tally.since >= TALLY_SECONDS:
            self._learn(share, now)
        if now >= self._raise_at:
            self._raise(now)

    def _try(self, share: float, now: float) -> None:
        """Starts a trial."""
        self._tried_share = share
        self.per_second = max(TRIAL_FACTOR * self._tally.recent_rate(now), LEAST_PER_SECOND)
        self._tally = AnswerTally(now)

    def _end_trial(self, share_before: float, now: float) -> None:
        """Ends the trial if it shows something.

        Args:
            share_before: share of requests that was refused before the trial.
            now: the moment.
        """
        tally = self._tally
        share = self._tally.refusal_share(now)
        predicted = (share_before - self._chance.share) * tally.answers
        excess = (share - self._chance.share) * tally.answers
        if max(predicted, excess) < NOTICED_REFUSALS:
            return
        # A limit: no more is refused than by chance. Chance: the same share is refused at another rate.
        found_limit = excess < predicted / 2
        deviation = 2.0 * math.sqrt(max(predicted, 0.0)) + 1.0
        found_chance = share <= CHANCE_MOST and abs(excess - predicted) <= deviation
        if not found_limit and not found_chance:
            # The rate before the trial was not what the store permits: a burst, an outage.
            self._try(share, now)
            return
        self._tried_share = None
        self.by_chance = not found_limit
        if found_limit:
            self._keep_to_limit(now)
        else:
            self.confirmations = 0
            self._chance = Chance()
            self._learn(share, now)
            self._repeat_at = now + REPEAT_SECONDS
            self._resume(now)

    def _keep_to_limit(self, now: float) -> None:
        if self.per_second <= LEAST_PER_SECOND:  # an outage that is over, in which nothing was measured
            self._resume(now)
            return
        self.measured_limit = self.per_second / TRIAL_FACTOR
        self.confirmations += 1
        self.per_second = LIMIT_FACTOR * self.measured_limit
        self._raise_at = now + HOLD_SECONDS
        self._raise_seconds = RAISE_SECONDS
        self._raise_factor = RAISE_FACTOR
        self._tally = AnswerTally(now)

    def _resume(self, now: float) -> None:
        """Returns to full speed quickly, but not at once: a limit shows before it is exceeded many times."""
        self._raise_seconds = INTERVAL_SECONDS
        self._raise_factor = RESUME_FACTOR
        self._raise(now)

    def _raise(self, now: float) -> None:
        self.per_second *= self._raise_factor
        self._raise_at = now + self._raise_seconds
        if self.per_second > MOST_PER_SECOND:
            self.per_second = self.measured_limit = self._raise_at = math.inf
        self._tally = AnswerTally(now)

    def _learn(self, share: float, now: float) -> None:
        self._chance.learn(share, self._tally.answers)
        self._tally = AnswerTally(now)
