"""Keeps the last warnings of an engine's process, and logs the errors that jobs get.

`lifecycle.py` collects the warnings for `/statistics.json`, `streamer stat --json` and the marks of the page's curves.
`server.py` logs errors of jobs by `JobErrors`, so that they are among the warnings.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from streamer.engine.statistics import Table

logger = logging.getLogger(__name__)

# Kinds of messages that are kept.
MAX_WARNINGS = 20
# Errors that `JobErrors` remembers as logged.
_MAX_KINDS = 256
# Letters of a text that are kept: enough for the advice at the end of an error.
_MAX_LETTERS = 600


class RecentWarnings(logging.Handler):
    """A handler of warnings and errors that keeps the newest message of each kind, and counts how many there were.

    Messages are of one kind if they have the logger, the text without its arguments, and the `extra={"kind": ...}`, if
    any, in common. So a message that is repeated does not push out others.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kinds: OrderedDict[tuple[str, str, str], Table] = OrderedDict()
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps one message, and drops the oldest kind if there are too many; logging calls it under the lock.

        A message whose arguments do not fit is not kept: logging reports it on stderr (`handleError`), as it does for
        all its handlers.
        """
        try:
            kind = record.name, str(record.msg), str(getattr(record, "kind", ""))
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - whatever the text's own code raises must not end what logs
            self.handleError(record)
            return
        self._number += 1
        known = self._kinds.pop(kind, {})
        self._kinds[kind] = {
            "at_seconds": round(record.created, 3),
            "level": record.levelname,
            "logger": record.name,
            "text": text[:_MAX_LETTERS],
            "count": int(known.get("count") or 0) + 1,
        }
        if len(self._kinds) > MAX_WARNINGS:
            self._kinds.popitem(last=False)

    def entries(self) -> list[Table]:
        """Returns the newest message of each kind, newest first; any thread.

        Each is a dict with at_seconds (Unix time), level, logger, text, and count, the number of messages of its kind.
        """
        self.acquire()
        try:
            return [dict(entry) for entry in reversed(self._kinds.values())]
        finally:
            self.release()

    def newest(self) -> tuple[int, Table | None]:
        """Returns how many messages there have been, and the newest one as in `entries`, or None; any thread."""
        self.acquire()
        try:
            newest = next(reversed(self._kinds.values()), None)
            return self._number, newest
        finally:
            self.release()


@contextmanager
def recent_warnings() -> Iterator[RecentWarnings]:
    """Collects the warnings and errors of all loggers of streamer while the context lasts."""
    handler = RecentWarnings()
    logger = logging.getLogger("streamer")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


class JobErrors:
    """Logs the errors that jobs get, from this engine or from their own loaders, each once for a job.

    An error may be logged again when `_MAX_KINDS` other ones have come after it.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def log(self, job: str, consumer: str, error: str) -> None:
        """Logs an error, unless the same job has had it before.

        Args:
            job: name of the job, "" if it has none.
            consumer: name of the rank that got the error, "" if the error is not that of a session.
            error: type and text of the error.
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
            # The kind is the job's name: the last error of each job is kept among the warnings.
            logger.error("%s%s got %s", who, reader, key[1], extra={"kind": job})
