"""Holds the peer server's end of the socket to its engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from streamer.base.message_socket import MessageSocket
from streamer.peers.messages import (
    MOST_MESSAGE_BYTES,
    Answer,
    Ask,
    Availability,
    ToEngine,
    ToServer,
    decode_to_server,
    encode,
)
from streamer.peers.protocol import ChunkRequest

# Their datagrams of 100 bytes fit into the socket, so that sending never waits.
_MOST_ASKS = 256


class EngineLink:
    """Asks the engine, and passes on its messages. On the server's loop.

    Args:
        end: this process's end of the socket.
        received: called with each message except answers.
        ended: called when the engine has ended.
    """

    def __init__(self, end: MessageSocket, received: Callable[[ToServer], None], ended: Callable[[], None]) -> None:
        self._end = end
        self._received = received
        self._finish = ended
        self._asked: dict[int, asyncio.Future[Availability]] = {}
        self._number = 0
        end.set_blocking(False)
        asyncio.get_running_loop().add_reader(end.fileno(), self._read)

    def send(self, message: ToEngine) -> None:
        """Sends a message; the end of the engine is noticed by reading."""
        with suppress(OSError):
            self._end.send(encode(message))

    def refuse_all(self) -> None:
        """Answers open questions with "no", because the engine does not answer any more."""
        for answered in self._asked.values():
            if not answered.done():
                answered.set_result("no")

    async def ask(self, request: ChunkRequest) -> Availability:
        """Asks where a chunk is whose file is not in the folder."""
        if len(self._asked) >= _MOST_ASKS:
            return "no"
        self._number += 1
        number = self._number
        answered: asyncio.Future[Availability] = asyncio.get_running_loop().create_future()
        self._asked[number] = answered
        self.send(Ask(number, request))
        try:
            return await answered
        finally:
            del self._asked[number]

    def _read(self) -> None:
        for received in self._end.receive_available(MOST_MESSAGE_BYTES):
            if received is None:
                self._finish()
            else:
                self._take(decode_to_server(received[0]))

    def _take(self, message: ToServer) -> None:
        if not isinstance(message, Answer):
            self._received(message)
        elif (answered := self._asked.get(message.number)) is not None and not answered.done():
            answered.set_result(message.availability)
