"""One request to a running engine over its own connection: the engine's counters, or a loader's report.

Opens no session and starts no engine. May be called from any thread, also while the job's own client waits.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from streamer.client.connection import Connection, DisconnectedError
from streamer.client.settings import ClientSettings
from streamer.errors import StreamerError
from streamer.wire.messages import GetStatistics, PackedRows, ReportError, ReportFinding, Statistics

if TYPE_CHECKING:
    from streamer.client.session import SessionSpec

logger = logging.getLogger(__name__)

# The limits of `wire.messages.ReportFinding` and `ReportError`.
MAX_BOTTLENECK_LETTERS = 64
MOST_ADVICE_LETTERS = 240
MOST_ERROR_LETTERS = 1200


def read_statistics(settings: ClientSettings, timeout_seconds: float) -> Mapping[str, object] | None:
    """Returns the engine's counters (see `streamer.engine.statistics`); None if none answers in time."""
    deadline = time.monotonic() + timeout_seconds
    try:
        with contextlib.closing(_connected(settings, timeout_seconds)) as connection:
            connection.send(GetStatistics(1))
            return _answer(connection, deadline)
    except (DisconnectedError, StreamerError) as error:
        logger.debug("no answer of the engine of %s: %s", settings.cache_dir, error)
        return None


class Finding(msgspec.Struct, frozen=True):
    """A loader's report about its waiting.

    Attributes:
        waiting_share: share of the trainer's time, 0 to 1.
        bottleneck, advice: why it waits, and what to do about it.
        rows: of a loader that packs documents into rows.
    """

    waiting_share: float
    bottleneck: str
    advice: str = ""
    rows: PackedRows | None = None


def report(settings: ClientSettings, session: SessionSpec, timeout_seconds: float, what: Finding | Exception) -> bool:
    """Reports a loader's waiting to the engine, for `streamer top` and /metrics, or an error that the loader raises.

    Args:
        settings: how to reach the engine, and the job.
        session: session of the loader.
        timeout_seconds: time for the greeting.
        what: the report or the error; cut to the length of a line.

    Returns:
        Whether it was sent; a missing engine is not an error.
    """
    try:
        with contextlib.closing(_connected(settings, timeout_seconds)) as connection:
            connection.send(_message(settings.job, session, what))
    except (DisconnectedError, StreamerError) as error:
        logger.debug("the engine of %s got no report: %s", settings.cache_dir, error)
        return False
    return True


def _connected(settings: ClientSettings, timeout_seconds: float) -> Connection:
    return Connection(
        settings.socket_path,
        settings.job,
        settings.token(),
        timeout_seconds,
        external=settings.external and settings.is_configured,
    )


def _message(job: str, session: SessionSpec, what: Finding | Exception) -> ReportFinding | ReportError:
    if isinstance(what, Exception):
        error = f"{type(what).__name__}: {what}"
        return ReportError(job, session.dataset, session.consumer, error[:MOST_ERROR_LETTERS])
    return ReportFinding(
        job,
        session.dataset,
        session.consumer,
        min(1.0, max(0.0, what.waiting_share)),
        what.bottleneck[:MAX_BOTTLENECK_LETTERS],
        what.advice[:MOST_ADVICE_LETTERS],
        what.rows,
    )


def _answer(connection: Connection, deadline: float) -> Mapping[str, object] | None:
    while (left := deadline - time.monotonic()) > 0:
        for event in connection.receive(left):
            if isinstance(event, Statistics):
                return dict(event.values)
    return None
