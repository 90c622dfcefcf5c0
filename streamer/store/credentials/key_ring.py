"""Credentials that expire: looked for in threads of their own, while the last ones serve."""

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

from streamer.errors import StoreError, StreamerError
from streamer.store import failures

_log = logging.getLogger(__name__)

C = TypeVar("C")

# Renewed so long before they end, as botocore does; short-lived ones after half of their time.
_RENEWAL_SECONDS = 900.0
# A request waits at most so long for a look. Its patience for a first byte ends later (2 s), with a message that blames
# the store.
_WAIT_SECONDS = 1.5
# The same time before a look that has not ended gets another beside it, while the credentials last.
_LATE_SECONDS = 30.0
_MOST_LOOKS = 3
# Between looks that fail: a sixteenth of what is left, within these.
_AGAIN_SECONDS = (1.0, 30.0)
_WARNING_SECONDS = 60.0
THREAD_NAME = "streamer-credentials"


class Issued(msgspec.Struct, Generic[C], frozen=True):
    """What a look has found.

    Attributes:
        credentials: never shown.
        ends: when they expire, in UTC; None: never.
        region: of AWS, where the profile or the environment says one.
        source: where they were found, as the cloud's library calls it, for example "iam-role".
    """

    credentials: C
    ends: datetime | None = None
    region: str | None = None
    source: str = ""

    def __repr__(self) -> str:
        return f"Issued(ends={self.ends})"

    def seconds_left(self) -> float:
        """Until they end, by the clock of this machine."""
        return math.inf if self.ends is None else self.ends.timestamp() - time.time()


class KeyRing(Generic[C]):
    """The credentials of one root. Lives on one event loop.

    A request waits where there are none that are valid, and never for a renewal. A look makes everything anew: files
    are read again, issuers are asked again.

    Args:
        root: for messages.
        find: looks once; runs in a thread, and may hang there. It raises errors of streamer.
    """

    def __init__(self, root: str, find: Callable[[], Issued[C]]) -> None:
        self._root = root
        self._find = find
        self._issued: Issued[C] | None = None
        self._failure: StreamerError | None = None
        self._is_needed = True
        self._looks = 0
        self._began = self._next = self._refused = self._warned = -math.inf
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"KeyRing({self._root!r}, {self._issued}, looks={self._looks})"

    @property
    def issued(self) -> Issued[C]:
        """What was found last; for those who have waited for `keys` before. From any thread."""
        assert self._issued is not None, "waited for"
        if self._loop is not None and time.monotonic() >= self._next:  # an upload that lasts longer than its keys
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._look_if_due)
        return self._issued

    async def keys(self) -> C:
        """The credentials, at once while they are valid.

        Raises:
            StoreError: they cannot be obtained now; all who waited for one look share its failure.
            ConfigError, AccessDeniedError: and waiting does not help.
        """
        if time.monotonic() >= self._next:
            self._look_if_due()
        if self._is_needed:
            await self._wait()
        assert self._issued is not None, "waited for"
        return self._issued.credentials

    def refuse(self) -> None:
        """The store takes these no more: the next request waits for another look."""
        self._refused = time.monotonic()
        self._is_needed, self._next = True, -math.inf

    async def _wait(self) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        while self._is_needed:
            self._look_if_due()
            if self._failure is not None and not self._looks:
                self._fail(self._failure)
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._news.wait()
            except TimeoutError:
                self._fail(self._failure or self._silence())

    def _fail(self, failure: StreamerError) -> NoReturn:
        """Raises a copy for one of those who wait."""
        raise type(failure)(failure.message, **failure.details) from failure.__cause__

    def _silence(self) -> StoreError:
        seconds = time.monotonic() - self._began
        return failures.unobtainable(self._root, f"their issuer has not answered for {seconds:.1f} s")

    def _look_if_due(self) -> None:
        """Begins a look where it is time, and notices that the credentials have ended."""
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
        self._next = now + (_clamped(left / 8, 2.0, _LATE_SECONDS) if left > 0.0 else _LATE_SECONDS)
        self._loop = asyncio.get_running_loop()
        try:
            Thread(target=self._look, args=(self._loop, now), name=THREAD_NAME, daemon=True).start()
        except RuntimeError as error:  # the limit of threads is reached
            self._ended(failures.unobtainable(self._root, str(error)), now)

    def _look(self, loop: asyncio.AbstractEventLoop, began: float) -> None:
        """In the thread."""
        outcome: Issued[C] | StreamerError
        try:
            outcome = self._find()
        except StreamerError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - the edge: whatever a library raises becomes ours
            outcome = failures.unobtainable(self._root, type(error).__name__)
            outcome.__cause__ = failures.redacted(error)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._ended, outcome, began)

    def _ended(self, outcome: Issued[C] | StreamerError, began: float) -> None:
        self._looks -= 1
        if isinstance(outcome, StreamerError):
            self._failed(outcome)
        elif began >= self._refused:
            self._found(outcome)
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _found(self, issued: Issued[C]) -> None:
        left = issued.seconds_left()
        if not self._is_needed and self._issued is not None and left < self._issued.seconds_left():
            return  # of a look that took longer than one begun later
        if self._failure is not None and self._issued is not None:
            _log.info("%s: the credentials are renewed", self._root)
        self._issued, self._failure, self._is_needed = issued, None, False
        self._next = time.monotonic() + max(left - _RENEWAL_SECONDS, left / 2, 5.0)

    def _failed(self, failure: StreamerError) -> None:
        self._failure = failure
        now = time.monotonic()
        left = -math.inf if self._issued is None else self._issued.seconds_left()
        pause = _AGAIN_SECONDS[0] if self._is_needed else _clamped(left / 16, *_AGAIN_SECONDS)
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


# Of whatever credentials.
AnyRing = KeyRing[Any]


def _clamped(seconds: float, least: float, most: float) -> float:
    return min(max(seconds, least), most)
