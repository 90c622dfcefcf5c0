"""Bounds the connections to a port whose clients need not say who they are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from aiohttp.web_protocol import RequestHandler


class BoundedConnections:
    """Closes connections of which too little is heard. Lives on the server's loop.

    Of those that count, the one that was silent for longest gives way to a new one: many silent ones
    keep no other client out.

    Args:
        most: connections at once.
        seconds: how long one may be silent.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._timers: dict[RequestHandler, asyncio.TimerHandle] = {}

    def __repr__(self) -> str:
        return f"BoundedConnections({len(self._timers)} of {self._most})"

    def __len__(self) -> int:
        return len(self._timers)

    def connected(self, connection: RequestHandler) -> None:
        """Gives a new connection, or one that was heard of again, its time."""
        self.shown(connection)
        if len(self._timers) >= self._most:
            self._close(next(iter(self._timers)))
        loop = asyncio.get_running_loop()
        self._timers[connection] = loop.call_later(self._seconds, self._close, connection)

    def shown(self, connection: RequestHandler) -> None:
        """Counts a connection no longer, because of what it has shown or because it has ended; idempotent."""
        if (timer := self._timers.pop(connection, None)) is not None:
            timer.cancel()

    def _close(self, connection: RequestHandler) -> None:
        self.shown(connection)
        if connection.transport is not None:
            # Because uvloop's transports have the methods of asyncio's, not their base class.
            cast(asyncio.WriteTransport, connection.transport).abort()
