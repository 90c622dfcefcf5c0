"""The progress of an index, in the log of the process that waits for it."""

from __future__ import annotations

import logging
import time

from streamer.loader.waiting import NOTICE_SECONDS
from streamer.wire.messages import IndexProgress

logger = logging.getLogger(__name__)


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
        """What was left out."""
        if self._first_rank:
            logger.warning("%s", text)

    def __call__(self, progress: IndexProgress) -> None:
        """How far it is."""
        self.so_far = f" ({progress.text})"
        # What is known before is in the line about the wait.
        warns = not self._warned and time.monotonic() - self._begun > NOTICE_SECONDS
        logger.log(logging.WARNING if warns else logging.INFO, "indexing: %s", progress.text)
        self._warned = self._warned or warns
