"""The peer server's end of the socket to its engine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from streamer.peers.messages import (
    MOST_MESSAGE_BYTES,
    Lend,
    LendAnswer,
    Lent,
    Opened,
    ToEngine,
    ToServer,
    decode_to_server,
    encode,
)

# Their datagrams of 100 bytes fit into the socket, so that sending never waits.
_MOST_LENDS = 256


class EngineLink:
    """Asks the engine, and passes on what it says. On the server's loop.

    Args:
        end: of a pair of SOCK_SEQPACKET sockets.
        received: called with each message but answers.
        ended: called when the engine has gone.
    """

    def __init__(self, end: socket.socket, received: Callable[[ToServer], None], ended: Callable[[], None]) -> None:
        self._end = end
        self._received = received
        self._ended = ended
        self._lends: dict[int, asyncio.Future[LendAnswer]] = {}
        self._number = 0
        end.setblocking(False)
        asyncio.get_running_loop().add_reader(end, self._read)

    def send(self, message: ToEngine) -> None:
        """Sends a message; that the engine has gone is noticed by reading."""
        with suppress(OSError):
            self._end.send(encode(message))

    def refuse_all(self) -> None:
        """Answers what is open with "no": the engine does not any more."""
        for answered in self._lends.values():
            if not answered.done():
                answered.set_result("no")

    @asynccontextmanager
    async def lent(
        self, key: bytes, dataset: str, *, member: str, wait: bool, due_seconds: float
    ) -> AsyncIterator[LendAnswer]:
        """Asks for a chunk whose file is not there (see `Lend`); it is not evicted until the end of the context."""
        if len(self._lends) >= _MOST_LENDS:
            yield "no"
            return
        self._number += 1
        number = self._number
        answered = self._lends[number] = asyncio.get_running_loop().create_future()
        self.send(Lend(number, key, dataset, member, wait, due_seconds))
        try:
            yield await answered
        finally:
            del self._lends[number]
            self.send(Opened(number))

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while raw := self._end.recv(MOST_MESSAGE_BYTES):
                self._take(decode_to_server(raw))
            self._ended()

    def _take(self, message: ToServer) -> None:
        if not isinstance(message, Lent):
            self._received(message)
        elif (answered := self._lends.get(message.number)) is not None and not answered.done():
            answered.set_result(message.answer)
