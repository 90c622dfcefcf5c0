"""Holds credentials that expire, and renews them in threads of their own while the last ones are still valid.

`store/root.py` makes the `KeyRing` of a root, for its store by obstore or libcurl, if credentials must be looked for. A
look is one attempt to find credentials: it reads files and asks their issuer.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from threading import Thread
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from streamer.errors import StreamerError
from streamer.store import failures

_log = logging.getLogger(__name__)

C = TypeVar("C")

# Credentials are renewed this long before they expire, as botocore does; short-lived ones after half of their time.
_RENEWAL_SECONDS = 900.0
# A request waits at most this long for a look: less than its timeout for a first byte (2 s), whose message would blame
# the store.
_WAIT_SECONDS = 1.5
# A look that has not ended after this time gets another one beside it. While the credentials are valid it is an eighth
# of the time that they have left, from 2 s to this.
_LATE_SECONDS = 30.0
# Looks that run at once.
_MOST_LOOKS = 3
# Pause after a failed look: a sixteenth of the time that the credentials have left, within these bounds.
_AGAIN_SECONDS = (1.0, 30.0)
# Time between warnings that the credentials could not be renewed.
_WARNING_SECONDS = 60.0
THREAD_NAME = "streamer-credentials"


class Issued(msgspec.Struct, Generic[C], frozen=True):
    """Holds the result of a look.

    Attributes:
        credentials: the credentials, which are never shown. None means that the store's client finds them by itself.
        ends: time at which they expire, in UTC, or None if they do not.
        region: AWS's region, or None if neither the profile nor the environment names one.
        source: the cloud library's name of their origin, for example "iam-role".
    """

    credentials: C
    ends: datetime | None = None
    region: str | None = None
    source: str = ""

    def __repr__(self) -> str:
        return f"Issued(ends={self.ends})"

    def seconds_left(self) -> float:
        """Returns the seconds until the credentials expire, by the clock of this machine; infinity if they do not."""
        return math.inf if self.ends is None else self.ends.timestamp() - time.time()


class KeyRing(Generic[C]):
    """Keeps the credentials of one root. Lives on one event loop.

    A request waits only if there are no valid credentials, never for a renewal. Each look reads all files again, and
    asks the issuers again.

    Args:
        root: root of the urls, for messages.
        find: makes one look. It runs in a thread, and may hang there. Errors other than StreamerError become
            StoreErrors.
    """

    def __init__(self, root: str, find: Callable[[], Issued[C]]) -> None:
        self._root = root
        self._find = find
        self._issued: Issued[C] | None = None
        self._failure: StreamerError | None = None
        self._is_needed = True
        self._looks = 0
        # The time from which `_look_if_due` may begin the next look, also beside one that runs.
        self._began = self._next = self._refused = self._warned = -math.inf
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"KeyRing({self._root!r}, {self._issued}, looks={self._looks})"

    @property
    def issued(self) -> Issued[C]:
        """Result of the last good look, for callers on any thread, after `keys` was awaited once.

        It begins a look if one is due.
        """
        assert self._issued is not None, "waited for"
        if self._loop is not None and time.monotonic() >= self._next:  # an upload that lasts longer than its keys
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._look_if_due)
        return self._issued

    async def keys(self) -> C:
        """Returns the credentials, at once if they are valid; begins a look if one is due.

        Without valid credentials it waits for a look, at most 1.5 s. In the second after a failed look it does not
        begin another one, and raises the error of that look at once unless one runs.

        Raises:
            StoreError: the credentials cannot be obtained now. All that waited for one look get the same error.
            ConfigError, AccessDeniedError: they cannot be obtained, and waiting does not help.
        """
        if time.monotonic() >= self._next:
            self._look_if_due()
        if self._is_needed:
            await self._wait()
        assert self._issued is not None, "waited for"
        return self._issued.credentials

    def refuse(self) -> None:
        """Notes that the store rejects the credentials: the next `keys` begins a look and waits for it."""
        self._refused = time.monotonic()
        self._is_needed = True
        self._next = -math.inf

    async def _wait(self) -> None:
        """Waits until a look has found credentials; raises the error of `keys`."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while self._is_needed:
            self._look_if_due()
            if self._failure is not None and not self._looks:
                self._fail(self._failure)
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._news.wait()
            except TimeoutError:
                seconds = time.monotonic() - self._began
                silence = failures.unobtainable(self._root, f"their issuer has not answered for {seconds:.1f} s")
                self._fail(self._failure or silence)

    def _fail(self, failure: StreamerError) -> NoReturn:
        """Raises a copy of an error, because several requests may wait for one look."""
        raise type(failure)(failure.message, **failure.details) from failure.__cause__

    def _look_if_due(self) -> None:
        """Begins a look if it is time, and notices that the credentials have expired."""
        now = time.monotonic()
        if now < self._next:
            return
        left = -math.inf if self._issued is None else self._issued.seconds_left()
        if not self._is_needed and left <= 0.0:
            self._is_needed = True
        if self._looks >= _MOST_LOOKS:
            self._next = now + _AGAIN_SECONDS[0]
            return
        if not self._looks:
            self._began = now
        self._looks += 1
        self._next = now + (_clamp(left / 8, 2.0, _LATE_SECONDS) if left > 0.0 else _LATE_SECONDS)
        self._loop = asyncio.get_running_loop()
        try:
            Thread(target=self._look, args=(self._loop, now), name=THREAD_NAME, daemon=True).start()
        except RuntimeError as error:  # the limit of threads is reached
            self._end_look(failures.unobtainable(self._root, str(error)), now)

    def _look(self, loop: asyncio.AbstractEventLoop, began_at: float) -> None:
        """Looks, in a thread of its own, and hands the result or the error to the loop."""
        outcome: Issued[C] | StreamerError
        try:
            outcome = self._find()
        except StreamerError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - the edge: whatever a library raises becomes ours
            outcome = failures.unobtainable(self._root, type(error).__name__)
            outcome.__cause__ = failures.redact(error)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._end_look, outcome, began_at)

    def _end_look(self, outcome: Issued[C] | StreamerError, began_at: float) -> None:
        """Takes the outcome of a look, on the loop, and wakes those who wait."""
        self._looks -= 1
        if isinstance(outcome, StreamerError):
            self._note_failure(outcome)
        # A look that began before `refuse` may have found the same credentials: its result is dropped.
        elif began_at >= self._refused:
            self._accept(outcome)
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _accept(self, issued: Issued[C]) -> None:
        """Keeps what a look has found, unless what is there is valid for longer, and sets the time of the renewal."""
        left = issued.seconds_left()
        if not self._is_needed and self._issued is not None and left < self._issued.seconds_left():
            return  # the result is older: its look took longer than one begun later
        if self._failure is not None and self._issued is not None:
            _log.info("%s: the credentials are renewed", self._root)
        self._issued = issued
        self._failure = None
        self._is_needed = False
        self._next = time.monotonic() + max(left - _RENEWAL_SECONDS, left / 2, 5.0)

    def _note_failure(self, failure: StreamerError) -> None:
        """Keeps the error of a look, sets the time of the next one, and warns if valid credentials were not renewed."""
        self._failure = failure
        now = time.monotonic()
        left = -math.inf if self._issued is None else self._issued.seconds_left()
        pause = _AGAIN_SECONDS[0] if self._is_needed else _clamp(left / 16, *_AGAIN_SECONDS)
        self._next = min(self._next, now + (min(pause, left) if left > 0.0 else pause))
        if not self._is_needed and self._issued is not None and now - self._warned >= _WARNING_SECONDS:
            self._warned = now
            until = "for ever" if self._issued.ends is None else f"until {self._issued.ends:%H:%M:%S} UTC"
            _log.warning(
                "%s: the credentials could not be renewed: %s; the old ones are valid %s, and it is tried again",
                self._root,
                failure.message,
                until,
            )


# A ring of any kind of credentials.
AnyRing = KeyRing[Any]


def _clamp(seconds: float, least_seconds: float, max_seconds: float) -> float:
    return min(max(seconds, least_seconds), max_seconds)
