"""The connections of a peer server that have not shown the token yet: few, and for seconds."""

from __future__ import annotations

import asyncio

from aiohttp.web_protocol import RequestHandler

# A peer shows the token with its first request.
_SECONDS = 5.0
# The oldest gives way to a new one: a client without the token cannot keep peers out.
_MOST = 256


class Unauthenticated:
    """Closes connections that do not show the token. On the server's loop."""

    def __init__(self) -> None:
        self._timers: dict[RequestHandler, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def connected(self, connection: RequestHandler) -> None:
        """A connection is about to be made."""
        if len(self._timers) >= _MOST:
            self._close(next(iter(self._timers)))
        loop = asyncio.get_running_loop()
        self._timers[connection] = loop.call_later(_SECONDS, self._close, connection)

    def shown(self, connection: RequestHandler) -> None:
        """It has shown the token; idempotent."""
        if (timer := self._timers.pop(connection, None)) is not None:
            timer.cancel()

    def _close(self, connection: RequestHandler) -> None:
        self.shown(connection)
        if connection.transport is not None:
            connection.transport.abort()
