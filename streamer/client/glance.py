"""One look at a running engine's counters, over a line of its own: no session, no waiting, no engine started."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping

from streamer.client.connection import Connection, DisconnectedError
from streamer.client.settings import ClientSettings
from streamer.errors import StreamerError
from streamer.wire.messages import GetStatistics, Statistics

logger = logging.getLogger(__name__)


def glance(settings: ClientSettings, timeout_seconds: float) -> Mapping[str, object] | None:
    """The engine's counters (see `streamer.engine.statistics`); None: none runs there, or no answer in time.

    May be called on any thread, also while the job's own client waits: the line is this call's alone.

    Args:
        settings: which engine.
        timeout_seconds: for hello and answer.
    """
    deadline = time.monotonic() + timeout_seconds
    try:
        token = settings.token()
        with contextlib.closing(Connection(settings.socket_path, settings.job, token, timeout_seconds)) as line:
            line.send(GetStatistics(1))
            return _answer(line, deadline)
    except (DisconnectedError, StreamerError) as error:
        logger.debug("no look at the engine of %s: %s", settings.cache_dir, error)
        return None


def _answer(line: Connection, deadline: float) -> Mapping[str, object] | None:
    while (left := deadline - time.monotonic()) > 0:
        for event in line.receive(left):
            if isinstance(event, Statistics):
                return dict(event.values)
    return None
