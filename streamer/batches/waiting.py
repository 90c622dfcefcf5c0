"""Says what a wait is for: once, as a warning in the log, when it is longer than a user takes for a start."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from streamer.errors import StreamerError
from streamer.wire.messages import IndexProgress

logger = logging.getLogger(__name__)

# A user takes a longer silence for a hang.
NOTICE_SECONDS = 1.5
# Training that waits for each batch is described by the stall report, not by a line for each.
AGAIN_SECONDS = 60.0

T = TypeVar("T")


class WaitNotice:
    """Waits, and says what for. Used by one thread.

    Args:
        logger: of the module that waits.
        who: begins the line, "rank 3: ".
    """

    def __init__(self, logger: logging.Logger, who: str = "") -> None:
        self._logger = logger
        self._who = who
        self._logged_at = float("-inf")

    def __repr__(self) -> str:
        return f"Notice({self._logger.name})"

    def wait(self, wait: Callable[[float | None], T], what: Callable[[], str]) -> T:
        """Waits to the end.

        Args:
            wait: Function that waits for at most the seconds that it gets (None: no limit), then raises a TimeoutError.
            what: Function that describes what it waits for ("" logs nothing). Called once, after `NOTICE_SECONDS`.
        """
        try:
            return wait(NOTICE_SECONDS)
        except TimeoutError as error:
            if isinstance(error, StreamerError):  # the store's, not of this wait
                raise
            if time.monotonic() - self._logged_at >= AGAIN_SECONDS and (text := what()):
                self._logged_at = time.monotonic()
                self._logger.warning("%swaiting for %s", self._who, text)
        return wait(None)


@contextmanager
def watch_wait(logger: logging.Logger, what: Callable[[], str]) -> Iterator[None]:
    """Says what the block waits for, from a thread of its own, for calls that take no timeout.

    Args:
        logger: Logger of the module that waits.
        what: Function that describes what it waits for ("" logs nothing). Called once, on that thread.
    """
    over = threading.Event()

    def watch() -> None:
        if not over.wait(NOTICE_SECONDS) and (text := what()):
            logger.warning("waiting for %s", text)

    threading.Thread(target=watch, name="streamer-notice", daemon=True).start()
    try:
        yield
    finally:
        over.set()


class Announcer:
    """Logs the progress of an index: its cost as a warning if it takes long, the rest as information; and its notes.

    Attributes:
        so_far: the last text, in brackets; "" before the first one.
    """

    def __init__(self, rank: int) -> None:
        self.so_far = ""
        self._first_rank = rank == 0
        self._warned = rank != 0
        self._begun = time.monotonic()

    def note(self, text: str) -> None:
        """Logs a note about objects that were left out."""
        if self._first_rank:
            logger.warning("%s", text)

    def __call__(self, progress: IndexProgress) -> None:
        """Logs how far the index is."""
        self.so_far = f" ({progress.text})"
        # The line about the wait has what is known before.
        warns = not self._warned and time.monotonic() - self._begun > NOTICE_SECONDS
        logger.log(logging.WARNING if warns else logging.INFO, "indexing: %s", progress.text)
        self._warned = self._warned or warns
