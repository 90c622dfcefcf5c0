"""The errors that jobs were sent: one line in the log for each, whose ranks mostly get the same one at once."""

from __future__ import annotations

import logging
from collections import OrderedDict

from streamer.errors import StreamerError

logger = logging.getLogger(__name__)

# More kinds than this at a time, and one of them is logged again.
_MOST_KINDS = 256


class JobErrors:
    """Logs errors on their way to clients."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def log(self, job: str, consumer: str, error: StreamerError) -> None:
        """An error that a consumer, or another reader of a job, is sent; only the first of equal ones is logged.

        Args:
            job: its name; may be empty.
            consumer: which of its readers; "" before it has a session.
            error: may end the job.
        """
        key = (job, f"{type(error).__name__}: {error}")
        fresh = key not in self._known
        self._known[key] = None
        self._known.move_to_end(key)
        if len(self._known) > _MOST_KINDS:
            self._known.popitem(last=False)
        if fresh:
            who = f"job {job}" if job else "a job without a name"
            reader = f", {consumer}" if consumer else ""
            # Of each job, the page shows the last one.
            logger.error("%s%s got %s", who, reader, key[1], extra={"kind": job})
