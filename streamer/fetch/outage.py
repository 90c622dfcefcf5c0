"""Reports once that an endpoint is being waited for: that it has received requests and sent nothing for a while."""

from __future__ import annotations

import logging
from collections.abc import Callable

from streamer.errors import StreamerError
from streamer.fetch.presence_clock import Alarm, PresenceClock

logger = logging.getLogger(__name__)

Notify = Callable[[str], None]

# Users take longer pauses for a hang.
QUIET_SECONDS = 1.5
# A store whose every answer takes longer is reported once in this time, not at each answer.
AGAIN_SECONDS = 60.0


class OutageWatch:
    """Watches one endpoint while requests wait for it. Lives on its loop.

    Args:
        clock: the endpoint's clock, which stops while this process does not run.
        root: the endpoint as messages may show it.
        outage_seconds: time for which requests wait for it.
        notify: called with a sentence, once in each period without an answer.
    """

    def __init__(self, clock: PresenceClock, root: str, outage_seconds: float, notify: Notify) -> None:
        self._clock = clock
        self._root = root
        self._outage_seconds = outage_seconds
        self._notify = notify
        self._waiters = 0
        self._progressed = 0.0
        self._why = ""
        self._alarm: Alarm | None = None
        self._announced_since: float | None = None
        self._announced_last = float("-inf")

    def __repr__(self) -> str:
        return f"OutageWatch({self._root!r}, waiters={self._waiters}, {'quiet' if self._announced_since else 'serves'})"

    def begin(self) -> None:
        """Begins a request that waits for an answer; `end` follows."""
        self._waiters += 1
        if self._waiters == 1:
            self._progressed = self._clock.time()
            self._why = ""
            self._alarm = Alarm(self._clock, self._progressed + QUIET_SECONDS, self._look)

    def end(self) -> None:
        """Ends a request that has its answer or its error."""
        self._waiters -= 1
        if not self._waiters and self._alarm is not None:
            self._alarm.cancel()
            self._alarm = self._announced_since = None

    def progressed(self, now: float) -> None:
        """Records that the endpoint sent bytes of an object, or an answer other than a refusal."""
        self._progressed = now
        if self._announced_since is not None:
            logger.info("%s serves again, after %.1f s", self._root, now - self._announced_since)
            self._announced_since = None

    def quiet_seconds(self) -> float:
        """Seconds for which the endpoint has served nothing although it was asked."""
        return self._clock.time() - self._progressed if self._waiters else 0.0

    def failed(self, error: StreamerError) -> None:
        """Records the failure of a try, which the report names if this goes on."""
        url = error.details.get("url")
        self._why = error.message.removeprefix(f"{url}: ")

    def _look(self) -> None:
        assert self._alarm is not None, "it is the alarm that calls"
        now = self._clock.time()
        quiet = self.quiet_seconds()
        if self._announced_since is None and quiet >= QUIET_SECONDS and now - self._announced_last >= AGAIN_SECONDS:
            self._announce(quiet, now)
        self._alarm.move(max(self._progressed, now - QUIET_SECONDS / 2) + QUIET_SECONDS)

    def _announce(self, quiet: float, now: float) -> None:
        self._announced_since = self._progressed
        self._announced_last = now
        text = (
            f"waiting for {self._root}, which has served nothing for {quiet:.1f} s ({self._why or 'no answer yet'}); "
            f"requests that fail are repeated for {self._outage_seconds:.0f} s, then this is an error"
        )
        logger.warning("%s", text)
        self._notify(text)
