"""Bounds the connections of an HTTP port from clients that have not said who they are.

Used by the page of a service (`service/web.py`) and by the port of peers (`peers/server.py`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from aiohttp.web_protocol import RequestHandler


class BoundedConnections:
    """Counts connections and aborts those that are silent for too long. Lives on the server's loop.

    A new connection above the limit is taken; the one that was silent for longest is aborted instead. Many silent
    connections therefore keep no other client out. A connection that has ended is counted until it is released or its
    time is over. `len()` is the number of counted connections.

    Args:
        max_connections: number of counted connections at once.
        silent_seconds: time after which a connection is aborted that was not heard of again.
    """

    def __init__(self, max_connections: int, silent_seconds: float) -> None:
        self._max_connections = max_connections
        self._silent_seconds = silent_seconds
        self._timers: dict[RequestHandler, asyncio.TimerHandle] = {}

    def __repr__(self) -> str:
        return f"BoundedConnections({len(self._timers)} of {self._max_connections})"

    def __len__(self) -> int:
        return len(self._timers)

    def count(self, connection: RequestHandler) -> None:
        """Counts a connection that is new or was heard of again; its `silent_seconds` begin now.

        Aborts the connection that was silent for longest if there are too many.
        """
        self.release(connection)
        if len(self._timers) >= self._max_connections:
            self._close(next(iter(self._timers)))
        loop = asyncio.get_running_loop()
        self._timers[connection] = loop.call_later(self._silent_seconds, self._close, connection)

    def release(self, connection: RequestHandler) -> None:
        """Stops counting a connection, whose client has said who it is, and does not close it; idempotent."""
        if (timer := self._timers.pop(connection, None)) is not None:
            timer.cancel()

    def _close(self, connection: RequestHandler) -> None:
        self.release(connection)
        if connection.transport is not None:
            # Because uvloop's transports have the methods of asyncio's, not their base class.
            cast(asyncio.WriteTransport, connection.transport).abort()
