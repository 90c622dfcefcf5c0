"""Decides how many requests per second one endpoint is sent, once it is known to limit them. No clock, no I/O.

Each endpoint has a `Pacing` (`fetch/endpoint.py`). A store refuses requests (429, 503) for one of two reasons. It may
refuse a share of them by chance, at any rate, as S3 does with 0.1 to 1 %. Or it refuses those that come faster than it
permits. The refusals look the same, so a trial decides: for a moment requests are sent at only nine tenths of the rate
that was just served. If the store has a limit, nothing more is refused. If it refuses by chance, the share is the same
as before. A limit is then respected, while refusals by chance only cost retries.

Simulated with 30 ms latency and 10,000 objects of 110 KB from the first request on (2026-11-23). With refusals by
chance 0.99 of the rate remains at 1 and 5 % of them, 0.94 at 20 %. Limits of 100 to 2,000 requests/s are used to at
least 0.92 with 1 % refused, and to 0.8 if another 5 % are refused by chance. Limiting the number of requests in flight
instead is too coarse: 200 requests/s are 6 in flight, so one more is 17 %, and a slow answer counts as spare capacity
(0.69 of the limit, if 5 % are refused by chance).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

# The tally of answers is looked at when both have passed: this time, and this many mean durations of a request, because
# the first answers are the quick ones.
INTERVAL_SECONDS = 0.25
INTERVAL_DURATIONS = 4.0
# A tally without more refusals than by chance is added to what is known of chance after this long.
TALLY_SECONDS = 5.0
# Refusals beyond those by chance start a trial if they are more than this share of the answers, and at least this many.
# 1 % by chance is common.
NOTICED_SHARE = 0.02
NOTICED_REFUSALS = 8.0
# While the window grows in slow start, a trial begins only if more than this share is refused beyond chance: the next
# step tells as much as a trial, since a limit would refuse a third of it. Without this rule trials slow the start: with
# 5 % of 503 on raw objects the rate was 0.72 instead of 0.945 of the possible one (2026-11-23).
CLIMBING_SHARE = 0.25
# A larger share of refusals is never taken for chance: full speed does not help a store that refuses this many.
CHANCE_MOST = 0.4
# The known chance is forgotten after this long and found out again, because the trial may have been wrong.
REPEAT_SECONDS = 30.0
# The rate of a trial, as a share of the rate that was just served.
TRIAL_FACTOR = 0.9
# The rate that is sent once a limit is known, as a share of it.
LIMIT_FACTOR = 0.97
# The rate is kept for `HOLD_SECONDS`, then raised by a tenth every `RAISE_SECONDS`: a limit may rise, and the measured
# one includes what the store allows in a burst.
HOLD_SECONDS = 15.0
RAISE_SECONDS = 2.0
RAISE_FACTOR = 1.1
# The rate is multiplied by this at each interval after a trial that found no limit, and after an outage.
RESUME_FACTOR = 2.0
# The rate does not fall below this, so that a store that refuses everything shows when that ends.
LEAST_PER_SECOND = 16.0
# A higher rate means no limit, since no store is sent this many requests.
MOST_PER_SECOND = 1e6


class AnswerTally(msgspec.Struct):
    """Counts the answers to requests that were sent after a moment. A look is a decision of `Pacing` from the counts.

    Attributes:
        since: that moment, in seconds.
        served: number of requests that were served.
        refused: number of requests that were refused (429, 503).
        served_seconds: sum of the durations of the served requests.
        refused_seconds: sum of the durations of the refused ones.
        looked_at: time of the last look, or 0 before the first one.
        served_then: value of `served` at the last look.
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
        """Returns the requests served per second since the last look; before that the store may have allowed a burst.

        Before the first look it is the rate since `since`.
        """
        if self.looked_at:
            return (self.served - self.served_then) / max(now - self.looked_at, 1e-3)
        return self._served_per_second(now)

    def look(self, now: float) -> None:
        """Notes time and number of served requests for the next `recent_rate`."""
        self.looked_at = now
        self.served_then = self.served

    def _served_per_second(self, now: float) -> float:
        """Returns the requests served per second, over the time whose requests can have been answered by now."""
        return self.served / max(now - self.since - self._mean_seconds, 1e-3)

    def refusal_share(self, now: float) -> float:
        """Returns the share of requests that are refused, 0 to 1.

        It compares rates, not counts: refusals come sooner than other answers, so more of them are counted by now.
        """
        served = self._served_per_second(now)
        refused = self.refused / max(now - self.since - self.refused_seconds / max(1, self.refused), 1e-3)
        return refused / max(served + refused, 1e-9)

    def complete(self, now: float) -> bool:
        """Whether enough time has passed for the rates to mean something."""
        elapsed = now - self.since
        return elapsed >= INTERVAL_SECONDS and elapsed >= INTERVAL_DURATIONS * self._mean_seconds

    @property
    def _mean_seconds(self) -> float:
        return self.served_seconds / max(1, self.served)


class Chance(msgspec.Struct):
    """Estimates the share of requests that a store refuses by chance, at any rate.

    Attributes:
        share: that share, 0 to 1.
        answers: number of answers from which it is known.
    """

    share: float = 0.0
    answers: float = 0.0

    def learn(self, share: float, answers: int) -> None:
        """Adds a number of answers, of which `share` were refused, to the average."""
        total = self.answers + answers
        self.share += (share - self.share) * answers / max(total, 1.0)
        self.answers = total

    def excess(self, share: float, answers: int) -> float:
        """Returns how many refusals chance does not explain, of `answers` with this share refused; 0 if it may."""
        expected = self.share * answers
        variance = expected + answers * expected / max(self.answers, 1.0)
        excess = share * answers - expected
        return excess if excess >= 3.0 * math.sqrt(variance) else 0.0


class Pacing:
    """Decides the rate at which requests are sent to one endpoint. It is told of each answer.

    Args:
        climbing: returns whether the window grows in slow start (`WindowControl.climbing`).
        now: the present time. All times are seconds of one monotonic clock.

    Attributes:
        per_second: requests to be sent per second. Infinity means no limit.
        measured_limit: requests per second that the store was found to permit. Infinity means that none was found.
        confirmations: number of trials that found a limit, since the last one that found refusals by chance.
        by_chance: whether the last trial with a result found refusals by chance.
    """

    def __init__(self, climbing: Callable[[], bool], now: float) -> None:
        self.per_second = self.measured_limit = math.inf
        self.confirmations = 0
        self.by_chance = False
        self._climbing = climbing
        self._chance = Chance()
        self._tally = AnswerTally(now)
        self._next_look = now
        # The share that was refused before the running trial. None means that no trial is running.
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
        """Whether the rate is limited now, by a trial, a known limit, or until full speed is reached again."""
        return self.per_second < math.inf

    def record_success(self, sent_at: float, now: float) -> None:
        """Records that a request sent at `sent_at` was served; may change the rate."""
        if sent_at >= self._tally.since:
            self._tally.served += 1
            self._tally.served_seconds += now - sent_at
            self._look(now)

    def record_refusal(self, sent_at: float, now: float) -> None:
        """Records that a request sent at `sent_at` was answered 429 or 503; may change the rate."""
        if sent_at >= self._tally.since:
            self._tally.refused += 1
            self._tally.refused_seconds += now - sent_at
            self._look(now)

    def _look(self, now: float) -> None:
        """Decides once per interval: ends a trial, or looks for refusals that need one."""
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
        """Starts a trial if chance does not explain the refusals; else adds them to chance, and raises a held rate."""
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
        """Starts a trial: lowers the rate, and counts anew. `share` is what was refused before it."""
        self._tried_share = share
        self.per_second = max(TRIAL_FACTOR * self._tally.recent_rate(now), LEAST_PER_SECOND)
        self._tally = AnswerTally(now)

    def _end_trial(self, share_before: float, now: float) -> None:
        """Ends the trial if it shows a limit or chance; starts another one if it shows neither.

        Does nothing while it has too few answers.

        Args:
            share_before: share of requests that was refused before the trial.
            now: the present time.
        """
        tally = self._tally
        share = self._tally.refusal_share(now)
        predicted = (share_before - self._chance.share) * tally.answers
        excess = (share - self._chance.share) * tally.answers
        if max(predicted, excess) < NOTICED_REFUSALS:
            return
        # If there is a limit, no more is refused than by chance. If there is none, the same share as before is refused.
        found_limit = excess < predicted / 2
        deviation = 2.0 * math.sqrt(max(predicted, 0.0)) + 1.0
        found_chance = share <= CHANCE_MOST and abs(excess - predicted) <= deviation
        if not found_limit and not found_chance:
            # The rate served before the trial was not what the store permits, as in a burst or an outage.
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
        """Sets the rate by the limit that the trial has found, and holds it."""
        if self.per_second <= LEAST_PER_SECOND:  # an outage is over, in which no rate was measured
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
        """Doubles the rate at each interval from now on, up to no limit: a limit shows before it is exceeded far."""
        self._raise_seconds = INTERVAL_SECONDS
        self._raise_factor = RESUME_FACTOR
        self._raise(now)

    def _raise(self, now: float) -> None:
        """Raises the rate by one step, and counts anew."""
        self.per_second *= self._raise_factor
        self._raise_at = now + self._raise_seconds
        if self.per_second > MOST_PER_SECOND:
            self.per_second = self.measured_limit = self._raise_at = math.inf
        self._tally = AnswerTally(now)

    def _learn(self, share: float, now: float) -> None:
        self._chance.learn(share, self._tally.answers)
        self._tally = AnswerTally(now)
