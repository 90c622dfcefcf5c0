"""Logs what a wait is for: a warning, once the wait is longer than a user takes for a normal start (1.5 s).

The loader uses it wherever it may wait for long: for the first batch, the engine, an index, other ranks
(`loader/feed/supply.py`, `loader/members/member.py`, `loader/agreement.py`).
"""

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

# A wait that is longer is logged: a user takes a longer silence for a hang.
NOTICE_SECONDS = 1.5
# Time between two warnings of one `WaitNotice`: the stall report describes training that waits for each batch.
AGAIN_SECONDS = 60.0

T = TypeVar("T")


class WaitNotice:
    """Waits, and logs what for if it takes long. Used by one thread.

    Args:
        logger: Logger of the module that waits.
        who: what the line in the log begins with, such as "rank 3: ".
    """

    def __init__(self, logger: logging.Logger, who: str = "") -> None:
        self._logger = logger
        self._who = who
        self._logged_at = float("-inf")

    def __repr__(self) -> str:
        return f"WaitNotice({self._logger.name})"

    def wait(self, wait: Callable[[float | None], T], what: Callable[[], str]) -> T:
        """Waits to the end, and returns what was waited for.

        Args:
            wait: Function that waits for at most the seconds that it is called with, then raises a TimeoutError. With
                None it waits without a limit. It is called again after the first TimeoutError.
            what: Function that describes what it waits for ("" logs nothing). Called after `NOTICE_SECONDS`, unless
                this object has logged a line within `AGAIN_SECONDS`.

        Raises:
            Exception: an error of `wait`. Its first TimeoutError is caught, unless it is a StreamerError.
        """
        try:
            return wait(NOTICE_SECONDS)
        except TimeoutError as error:
            if isinstance(error, StreamerError):  # a timeout of the store, not of this wait
                raise
            if time.monotonic() - self._logged_at >= AGAIN_SECONDS and (text := what()):
                self._logged_at = time.monotonic()
                self._logger.warning("%swaiting for %s", self._who, text)
        return wait(None)


@contextmanager
def watch_wait(logger: logging.Logger, what: Callable[[], str]) -> Iterator[None]:
    """Logs what a `with` block waits for, for calls that take no timeout. Starts a thread for that, which soon ends.

    Args:
        logger: Logger of the module that waits.
        what: Function that describes what it waits for ("" logs nothing). Called on that thread, at most once, if the
            block is still running after `NOTICE_SECONDS`.
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
    """Logs how far the engine's index of a dataset is, and its notes.

    The first progress after `NOTICE_SECONDS` is a warning on rank 0, all other progress is information.

    Args:
        rank: Rank of this process. Only rank 0 warns.

    Attributes:
        so_far: text of the last progress, as " (text)"; "" before the first one.
    """

    def __init__(self, rank: int) -> None:
        self.so_far = ""
        self._first_rank = rank == 0
        self._warned = rank != 0
        self._begun = time.monotonic()

    def note(self, text: str) -> None:
        """Logs a note of the index about objects that were left out. Only on rank 0."""
        if self._first_rank:
            logger.warning("%s", text)

    def __call__(self, progress: IndexProgress) -> None:
        """Logs how far the index is."""
        self.so_far = f" ({progress.text})"
        # Progress before that time is in the warning about the wait, by `so_far`.
        warns = not self._warned and time.monotonic() - self._begun > NOTICE_SECONDS
        logger.log(logging.WARNING if warns else logging.INFO, "indexing: %s", progress.text)
        self._warned = self._warned or warns
