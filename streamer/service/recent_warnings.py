"""The last warnings and errors of this process, for `/statistics.json` and `streamer stat --json`."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from streamer.engine.statistics import Table

logger = logging.getLogger(__name__)

MAX_WARNINGS = 20
# More kinds of errors than this at a time, and one of them is logged again.
_MAX_KINDS = 256
# The advice of an error stands at its end.
_MAX_LETTERS = 600


class RecentWarnings(logging.Handler):
    """Keeps the newest message of each kind: one that comes again counts up and does not push others out.

    A kind is a message with its `extra={"kind": ...}`, where it has one.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kinds: OrderedDict[tuple[str, str, str], Table] = OrderedDict()
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Remembers one message; any thread, under the handler's lock."""
        self._number += 1
        kind = record.name, str(record.msg), str(getattr(record, "kind", ""))
        known = self._kinds.pop(kind, {})
        self._kinds[kind] = {
            "at_seconds": round(record.created, 3),
            "level": record.levelname,
            "logger": record.name,
            "text": record.getMessage()[:_MAX_LETTERS],
            "count": int(known.get("count") or 0) + 1,
        }
        if len(self._kinds) > MAX_WARNINGS:
            self._kinds.popitem(last=False)

    def entries(self) -> list[Table]:
        """Returns the newest first: at_seconds (Unix time), level, logger, text, and how many of its kind came."""
        self.acquire()
        try:
            return [dict(entry) for entry in reversed(self._kinds.values())]
        finally:
            self.release()

    def newest(self) -> tuple[int, Table | None]:
        """Returns how many messages there were, and the newest one."""
        self.acquire()
        try:
            newest = next(reversed(self._kinds.values()), None)
            return self._number, newest
        finally:
            self.release()


@contextmanager
def recent_warnings() -> Iterator[RecentWarnings]:
    """Collects what the loggers of streamer warn of while the context lasts."""
    handler = RecentWarnings()
    logger = logging.getLogger("streamer")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


class JobErrors:
    """Logs the errors that jobs get: on their way from here, or raised by their loaders."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def log(self, job: str, consumer: str, error: str) -> None:
        """Logs an error of a consumer, or of another reader of a job, but only the first of equal ones.

        Args:
            job: name of the job, which may be empty.
            consumer: name of its reader, or "" before it has a session.
            error: type and text of the error, which may end the job.
        """
        key = (job, error)
        fresh = key not in self._known
        self._known[key] = None
        self._known.move_to_end(key)
        if len(self._known) > _MAX_KINDS:
            self._known.popitem(last=False)
        if fresh:
            who = f"job {job}" if job else "a job without a name"
            reader = f", {consumer}" if consumer else ""
            # The page shows the last one of each job.
            logger.error("%s%s got %s", who, reader, key[1], extra={"kind": job})
