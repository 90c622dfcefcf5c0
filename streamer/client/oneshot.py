"""One request to a running engine over its own connection: the engine's counters, or a loader's report.

Opens no session and starts no engine. May be called from any thread, also while the job's own client waits.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from streamer.client.connection import Connection, DisconnectedError
from streamer.client.settings import ClientSettings
from streamer.errors import StreamerError
from streamer.wire.messages import GetStatistics, ReportError, ReportFinding, Statistics

if TYPE_CHECKING:
    from streamer.wire.messages import OpenSession

logger = logging.getLogger(__name__)


def read_statistics(settings: ClientSettings, timeout_seconds: float) -> Mapping[str, object] | None:
    """Returns the engine's counters (see `streamer.engine.statistics`); None if none answers in time."""
    deadline = time.monotonic() + timeout_seconds
    try:
        with contextlib.closing(_connect(settings, timeout_seconds)) as connection:
            connection.send(GetStatistics(1))
            while (left_seconds := deadline - time.monotonic()) > 0:
                for event in connection.receive(left_seconds):
                    if isinstance(event, Statistics):
                        return dict(event.values)
    except (DisconnectedError, StreamerError) as error:
        logger.debug("no answer of the engine of %s: %s", settings.cache_dir, error)
    return None


def report(
    settings: ClientSettings, session: OpenSession, timeout_seconds: float, what: ReportFinding | Exception
) -> bool:
    """Reports a loader's waiting to the engine, for `streamer top` and /metrics, or an error that the loader raises.

    Args:
        settings: how to reach the engine, and the job.
        session: session of the loader.
        timeout_seconds: time for the greeting.
        what: the report, without the session that it is about, or the error.

    Returns:
        Whether it was sent; a missing engine is not an error.
    """
    try:
        with contextlib.closing(_connect(settings, timeout_seconds)) as connection:
            if isinstance(what, Exception):
                connection.send(ReportError.make(settings.job, session.dataset, session.consumer, what))
            else:
                connection.send(what.assign_to(settings.job, session.dataset, session.consumer))
    except (DisconnectedError, StreamerError) as error:
        logger.debug("the engine of %s got no report: %s", settings.cache_dir, error)
        return False
    return True


def _connect(settings: ClientSettings, timeout_seconds: float) -> Connection:
    return Connection(
        settings.socket_path,
        settings.job,
        settings.token(),
        timeout_seconds,
        external=settings.external and settings.is_configured,
    )
