"""One connection of the service: bytes from asyncio in, requests to the server, events back. Bounded both ways."""

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

# Bytes that a reader may leave unread besides the contents it asked for: 100,000 small events. More would hold the
# engine's memory; the client reconnects and continues where it was.
MAX_UNREAD_BYTES = 4 << 20
# A connection that says nothing for this long after connecting is closed.
HELLO_SECONDS = 10.0
# Requests of one client that are taken before the others have their turn, if they take no longer.
BURST = 64
BURST_SECONDS = 0.01
_MAX_ERROR_LETTERS = 65536


class ClientHandler(Protocol):
    """The server, as its connections use it; a protocol, because the server imports its connections."""

    def greet(self, client: ClientConnection, hello: Hello) -> None:
        """Handles the first message."""

    def take(self, client: ClientConnection, request: Request) -> None:
        """Handles any later message."""

    def remove_client(self, client: ClientConnection) -> None:
        """Handles the end of the connection."""

    def add_client(self, client: ClientConnection) -> bool:
        """Registers a new connection; returns False to refuse it."""

    def limit_frames(self, client: ClientConnection, unfinished_bytes: int) -> None:
        """Is told how much of a frame has arrived whose end has not."""

    def count_drop(self, client: ClientConnection, why: str) -> None:
        """Counts a connection that is ended because of the client: "protocol", "unread", "silent", "unfinished"."""


class ClientConnection(asyncio.Protocol):
    """Lives on the server's loop from connect to disconnect."""

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
        """Called by asyncio."""
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
        """Called by asyncio."""
        self._received += data
        if self._requests is None:
            self._take_some()

    def pause_writing(self) -> None:
        """Called by asyncio: the client has unread bytes."""
        self._drained.clear()

    def resume_writing(self) -> None:
        """Called by asyncio: all is read, or at least out."""
        self._content_bytes = 0
        self._drained.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self._transport = None
        self._drained.set()
        self._handler.remove_client(self)

    def send(self, event: Event) -> None:
        """Sends an event; a client that does not read is dropped."""
        if self._transport is None or self._transport.is_closing():
            return
        if isinstance(event, Content):
            self._content_bytes += len(event.content)
        encoded = encode(event)
        if isinstance(event, Statistics):  # of many sessions these are long; one answer more may be unread
            self._statistics_bytes = len(encoded)
        self._transport.write(encoded)
        asked_bytes = self._content_bytes + self._statistics_bytes
        if (unread := self._transport.get_write_buffer_size()) > MAX_UNREAD_BYTES + asked_bytes:
            self.drop(f"leaves {unread} bytes unread", "unread")

    async def wait_until_read(self, seconds: float) -> None:
        """Waits until the client has read what it was sent; one that does not in time is dropped."""
        try:
            async with asyncio.timeout(seconds):
                await self._drained.wait()
        except TimeoutError:
            self.drop(f"has not read its answer for {seconds:.0f} s", "unread")

    def fail(self, error: StreamerError, request: int = -1, session: int = -1) -> None:
        """Sends an error to the reader that asked."""
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
        """Ends the connection at once; `what` for the log, `why` to count."""
        if self._transport is not None and not self._transport.is_closing():
            logger.warning("%s %s: dropped", self, what)
            self._handler.count_drop(self, why)
            self._transport.abort()

    def close(self) -> None:
        """Closes after what was sent is out."""
        if self._transport is not None:
            self._transport.close()

    # ------------------------------------------------------------ inside

    def _take_some(self) -> None:
        """Takes a burst of what has arrived; if there is more, reading pauses and other clients are served."""
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
                # They look at every session: one per turn.
                if isinstance(request, GetStatistics | ReportFinding | ReportError):
                    break
        except StreamerError as error:
            self._refuse(error)
        except Exception as error:
            logger.exception("a message of %s failed", self)
            self._refuse(BrokenError(f"the engine failed over a message: {error!r}; see its log"))
        self._go_on()

    def _go_on(self) -> None:
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
        logger.warning("%s: %s", self, error)
        self._handler.count_drop(self, "protocol")
        self.fail(error)
        self._received.clear()
        self.close()

    def _no_hello(self) -> None:
        if not self.greeted:
            self.drop(f"said nothing for {HELLO_SECONDS:.0f} s", "silent")
