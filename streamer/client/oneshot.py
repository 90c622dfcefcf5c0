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
from streamer.wire.messages import GetStatistics, ReportFinding, Statistics

if TYPE_CHECKING:
    from streamer.client.session import SessionSpec

logger = logging.getLogger(__name__)

# The limits of `wire.messages.ReportFinding`.
MAX_BOTTLENECK_LETTERS, MOST_ADVICE_LETTERS = 64, 240


def read_statistics(settings: ClientSettings, timeout_seconds: float) -> Mapping[str, object] | None:
    """The engine's counters (see `streamer.engine.statistics`); None if none runs there or answers in time.

    Args:
        settings: how to reach the engine.
        timeout_seconds: time for greeting and answer.
    """
    deadline = time.monotonic() + timeout_seconds
    try:
        token = settings.token()
        with contextlib.closing(Connection(settings.socket_path, settings.job, token, timeout_seconds)) as connection:
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
    """

    waiting_share: float
    bottleneck: str
    advice: str = ""


def report_finding(settings: ClientSettings, session: SessionSpec, timeout_seconds: float, finding: Finding) -> bool:
    """Reports a loader's waiting to the engine, for `streamer top` and /metrics.

    Args:
        settings: how to reach the engine, and the job.
        session: session of the loader.
        timeout_seconds: time for the greeting.
        finding: the report; cut to the length of a table's line.

    Returns:
        Whether it was sent; a missing engine is not an error.
    """
    try:
        token = settings.token()
        with contextlib.closing(Connection(settings.socket_path, settings.job, token, timeout_seconds)) as connection:
            connection.send(
                ReportFinding(
                    settings.job,
                    session.dataset,
                    session.consumer,
                    min(1.0, max(0.0, finding.waiting_share)),
                    finding.bottleneck[:MAX_BOTTLENECK_LETTERS],
                    finding.advice[:MOST_ADVICE_LETTERS],
                )
            )
    except (DisconnectedError, StreamerError) as error:
        logger.debug("the engine of %s got no report: %s", settings.cache_dir, error)
        return False
    return True


def _answer(connection: Connection, deadline: float) -> Mapping[str, object] | None:
    while (left := deadline - time.monotonic()) > 0:
        for event in connection.receive(left):
            if isinstance(event, Statistics):
                return dict(event.values)
    return None
