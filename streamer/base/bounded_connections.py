"""Bounds the connections of a port from clients that have not said who they are: the page, and the port of peers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from aiohttp.web_protocol import RequestHandler


class BoundedConnections:
    """Closes connections that are silent for too long. Lives on the server's loop.

    Where there are too many, the one that was silent for longest gives way to a new one, so that many silent ones keep
    no other client out. One that has ended keeps its place until it is released or its time is over.

    Args:
        max_connections: connections at once.
        silent_seconds: how long one may be silent.
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
        """Counts a connection that is new, or was heard of again, and gives it `silent_seconds` from now on."""
        self.release(connection)
        if len(self._timers) >= self._max_connections:
            self._close(next(iter(self._timers)))
        loop = asyncio.get_running_loop()
        self._timers[connection] = loop.call_later(self._silent_seconds, self._close, connection)

    def release(self, connection: RequestHandler) -> None:
        """Counts a connection no more, and does not close it: its client has said who it is; idempotent."""
        if (timer := self._timers.pop(connection, None)) is not None:
            timer.cancel()

    def _close(self, connection: RequestHandler) -> None:
        self.release(connection)
        if connection.transport is not None:
            # Because uvloop's transports have the methods of asyncio's, not their base class.
            cast(asyncio.WriteTransport, connection.transport).abort()
