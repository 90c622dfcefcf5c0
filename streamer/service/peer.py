"""One connection of the service: bytes from asyncio in, requests to the server, events back. Bounded both ways."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import Protocol, cast

from streamer.errors import ProtocolError, StreamerError
from streamer.wire.frames import encode, request_decoder
from streamer.wire.messages import Event, Failed, Hello, Request

logger = logging.getLogger(__name__)

# A reader that leaves this much unread is dropped: it would hold the engine's memory.
MAX_UNREAD_BYTES = 80 << 20
# A connection that says nothing for this long after connecting is closed.
HELLO_SECONDS = 10.0
_UCRED = struct.Struct("3i")


class PeerHandler(Protocol):
    """What the server does with a connection."""

    def greet(self, peer: Peer, hello: Hello) -> None:
        """The first message."""

    def take(self, peer: Peer, request: Request) -> None:
        """Any later message."""

    def lost(self, peer: Peer) -> None:
        """The connection ended."""

    def joined(self, peer: Peer) -> bool:
        """A new connection; False: it is not welcome."""


class Peer(asyncio.Protocol):
    """Lives on the server's loop from connect to disconnect."""

    def __init__(self, handler: PeerHandler) -> None:
        self.name = "?"
        self.greeted = False
        self._handler = handler
        self._decoder = request_decoder()
        self._transport: asyncio.Transport | None = None
        self._hello_timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"Peer({self.name})"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        # uvloop's transports have the methods of asyncio's, not their base class.
        self._transport = cast(asyncio.Transport, transport)
        self.name = _credentials(self._transport)
        if not self._handler.joined(self):
            transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._hello_timer = loop.call_later(HELLO_SECONDS, self._no_hello)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        try:
            for request in self._decoder.feed(data):
                self._take(request)
        except StreamerError as error:
            logger.warning("%s: %s", self, error)
            self.fail(error)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self._transport = None
        self._handler.lost(self)

    def send(self, event: Event) -> None:
        """Sends an event; a peer that does not read is dropped."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(encode(event))
        if (unread := self._transport.get_write_buffer_size()) > MAX_UNREAD_BYTES:
            logger.warning("%s leaves %d bytes unread: dropped", self, unread)
            self._transport.abort()

    def fail(self, error: StreamerError, request: int = -1, session: int = -1) -> None:
        """Sends an error to the reader that asked."""
        self.send(Failed(type(error).__name__, str(error)[:65536], error.details, request, session))

    def close(self) -> None:
        """Closes after what was sent is out."""
        if self._transport is not None:
            self._transport.close()

    def _take(self, request: Request) -> None:
        if isinstance(request, Hello) and not self.greeted:
            self._handler.greet(self, request)
        elif isinstance(request, Hello) or not self.greeted:
            raise ProtocolError(f"{type(request).__name__} out of turn: a connection begins with one Hello")
        else:
            self._handler.take(self, request)

    def _no_hello(self) -> None:
        if not self.greeted:
            logger.warning("%s said nothing for %.0f s: closed", self, HELLO_SECONDS)
            self.close()


def _credentials(transport: asyncio.Transport) -> str:
    """Who is on the other end, as the kernel says (Linux)."""
    sock = transport.get_extra_info("socket")
    if sock is None or not hasattr(socket, "SO_PEERCRED"):
        return "peer"
    pid, uid, _gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return f"pid {pid} uid {uid}"
