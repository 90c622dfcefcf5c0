"""Turns the bytes of one connection into requests for the server, and sends its events; bounds what both sides hold.

`lifecycle.py` has one made for each client that connects. `server.py` and `long_requests.py` answer through it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Protocol, cast

from streamer.errors import BrokenError, ProtocolError, StreamerError
from streamer.service.admission import Credentials
from streamer.wire.frames import MAX_HELLO_BYTES, MAX_REQUEST_BYTES, encode, request_decoder
from streamer.wire.messages import (
    Content,
    Event,
    Failed,
    GetStatistics,
    Hello,
    ReportError,
    ReportFinding,
    Request,
    Statistics,
)

logger = logging.getLogger(__name__)

# Bytes of events that a client may leave unread, besides contents and statistics that it asked for: 100,000 small
# events. A client with more is dropped, since they take the engine's memory; it reconnects and continues where it was.
MAX_UNREAD_BYTES = 4 << 20
# A connection that says nothing for this long after connecting is closed.
HELLO_SECONDS = 10.0
# Requests of one client that are handled before other clients have their turn, and the time after which they have it.
BURST = 64
BURST_SECONDS = 0.01
_MAX_ERROR_LETTERS = 65536


class ClientHandler(Protocol):
    """What a connection calls of `server.Server`; a protocol, because the server imports its connections."""

    def greet(self, client: ClientConnection, hello: Hello) -> None:
        """Handles the first message; a StreamerError that it raises is sent to the client and ends the connection."""

    def take(self, client: ClientConnection, request: Request) -> None:
        """Handles any later message; a StreamerError that it raises is sent to the client and ends the connection."""

    def remove_client(self, client: ClientConnection) -> None:
        """Handles the end of a connection, also of one that was refused."""

    def add_client(self, client: ClientConnection) -> bool:
        """Registers a new connection; returns False to refuse it."""

    def limit_frames(self, client: ClientConnection, unfinished_bytes: int) -> None:
        """Notes how many bytes have arrived of a frame that is not complete; 0 if there is none."""

    def count_drop(self, client: ClientConnection, why: str) -> None:
        """Counts a connection that is ended because of the client: "protocol", "unread", "silent", "unfinished"."""


class ClientConnection(asyncio.Protocol):
    """One connection of a client, from connect to disconnect. Lives on the engine's loop.

    Args:
        handler: the server.

    Attributes:
        credentials: process and user of the client; None where the platform does not tell them.
        greeted: whether the client was admitted, which the server sets.
    """

    def __init__(self, handler: ClientHandler) -> None:
        self.credentials: Credentials | None = None
        self.greeted = False
        self._handler = handler
        self._decoder = request_decoder()
        self._decoder.allow(MAX_HELLO_BYTES)
        self._received = bytearray()
        self._requests: Iterator[Request] | None = None
        self._transport: asyncio.Transport | None = None
        self._hello_timer: asyncio.TimerHandle | None = None
        self._content_bytes = 0
        self._statistics_bytes = 0
        self._paused = False
        self._drained = asyncio.Event()

    def __repr__(self) -> str:
        return f"ClientConnection({self.credentials or '?'})"

    def fileno(self) -> int:
        """Returns the descriptor of its socket; -1 if it is closed."""
        connection = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if connection is None else int(connection.fileno())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Registers the connection with the server, and waits `HELLO_SECONDS` for its first message.

        A connection that the server refuses is ended.
        """
        # uvloop's transports have the methods of asyncio's, not their base class.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        self._drained.set()
        connection = self._transport.get_extra_info("socket")
        self.credentials = None if connection is None else Credentials.read(connection)
        if not self._handler.add_client(self):
            self._transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._hello_timer = loop.call_later(HELLO_SECONDS, self._no_hello)

    def data_received(self, data: bytes) -> None:
        """Takes bytes of the client: handles complete requests now, or after those that wait."""
        self._received += data
        if self._requests is None:
            self._take_some()

    def pause_writing(self) -> None:
        """Notes that the client has unread bytes."""
        self._drained.clear()

    def resume_writing(self) -> None:
        """Notes that the kernel has taken all that was sent."""
        self._content_bytes = 0
        self._drained.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells the server that the connection has ended."""
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self._transport = None
        self._drained.set()
        self._handler.remove_client(self)

    def send(self, event: Event) -> None:
        """Sends an event, unless the connection is closing; drops a client that leaves too much unread."""
        if self._transport is None or self._transport.is_closing():
            return
        if isinstance(event, Content):
            self._content_bytes += len(event.content)
        encoded = encode(event)
        if isinstance(event, Statistics):  # long with many sessions: one answer may be unread besides the limit
            self._statistics_bytes = len(encoded)
        self._transport.write(encoded)
        asked_bytes = self._content_bytes + self._statistics_bytes
        if (unread := self._transport.get_write_buffer_size()) > MAX_UNREAD_BYTES + asked_bytes:
            self.drop(f"leaves {unread} bytes unread", "unread")

    async def wait_until_read(self, seconds: float) -> None:
        """Waits until the kernel has taken all that was sent; drops a client that has not read enough in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._drained.wait()
        except TimeoutError:
            self.drop(f"has not read its answer for {seconds:.0f} s", "unread")

    def fail(self, error: StreamerError, request: int = -1, session: int = -1) -> None:
        """Sends an error as the answer to a request or a session of the client; -1 means that it is of none."""
        self.send(
            Failed(
                kind=type(error).__name__,
                message=str(error)[:_MAX_ERROR_LETTERS],
                details=error.details,
                request=request,
                session=session,
            )
        )

    def drop(self, what: str, why: str) -> None:
        """Ends the connection at once, unless it is closing; what was sent may be lost.

        Args:
            what: sentence for the log, of which the connection is the subject.
            why: reason under which it is counted, as in `ClientHandler.count_drop`.
        """
        if self._transport is not None and not self._transport.is_closing():
            logger.warning("%s %s: dropped", self, what)
            self._handler.count_drop(self, why)
            self._transport.abort()

    def close(self) -> None:
        """Closes the connection when all that was sent is out."""
        if self._transport is not None:
            self._transport.close()

    # ------------------------------------------------------------ inside

    def _take_some(self) -> None:
        """Handles a burst of the requests that have arrived. If there are more, `_go_on` comes back to them."""
        if self._transport is None or self._transport.is_closing():
            self._requests = None
            return
        try:
            if self._requests is None:
                received, self._received = self._received, bytearray()
                self._requests = self._decoder.feed(received)
            begun = time.perf_counter()
            for _ in range(BURST):
                if time.perf_counter() - begun > BURST_SECONDS:
                    break
                if (request := next(self._requests, None)) is None:
                    self._requests = None
                    break
                if isinstance(request, Hello) and not self.greeted:
                    self._handler.greet(self, request)
                    self._decoder.allow(MAX_REQUEST_BYTES)
                elif isinstance(request, Hello) or not self.greeted:
                    raise ProtocolError(f"{type(request).__name__} out of turn: a connection begins with one Hello")
                else:
                    self._handler.take(self, request)
                # A turn ends with one of these, because each goes over all sessions.
                if isinstance(request, GetStatistics | ReportFinding | ReportError):
                    break
        except StreamerError as error:
            self._refuse(error)
        except Exception as error:
            logger.exception("a message of %s failed", self)
            self._refuse(BrokenError(f"the engine failed over a message: {error!r}; see its log"))
        self._go_on()

    def _go_on(self) -> None:
        """Reads on if all requests are handled; else pauses reading, and handles more after other clients' turns."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._requests is None and not self._received:
            self._handler.limit_frames(self, self._decoder.buffered_bytes)
            if self._paused:
                self._paused = False
                self._transport.resume_reading()
            return
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._take_some)

    def _refuse(self, error: StreamerError) -> None:
        """Sends an error and closes the connection; further bytes of the client are dropped."""
        logger.warning("%s: %s", self, error)
        self._handler.count_drop(self, "protocol")
        self.fail(error)
        self._received.clear()
        self.close()

    def _no_hello(self) -> None:
        if not self.greeted:
            self.drop(f"said nothing for {HELLO_SECONDS:.0f} s", "silent")
