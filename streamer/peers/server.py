"""Answers peers over HTTP: sends chunk files by sendfile, and asks the engine for what is not there.

It runs in a process of its own, on asyncio's own loop: a send costs 0.25 to 0.45 CPU s/GB in the thread that makes it,
and on uvloop, which has no sendfile, 1.2 to 1.5 (loopback, 8 MiB, 2026-11-22).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import socket
import ssl
import stat
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import BinaryIO

import msgspec
from aiohttp import web

from streamer.base.bounded_connections import BoundedConnections
from streamer.base.message_socket import MessageSocket
from streamer.errors import ConfigError
from streamer.fetch.fair_gate import FairGate, WaitQueue
from streamer.formats.chunkfile import HEADER_BYTES, relative_path
from streamer.peers.messages import (
    MOST_MESSAGE_BYTES,
    Availability,
    Counts,
    Leave,
    ServerAnswer,
    ServerQuestion,
    ServerStart,
    ToEngine,
    ToServer,
    decode_to_server,
    encode,
)
from streamer.peers.protocol import (
    BEARER,
    DUE_HEADER,
    MEMBER_HEADER,
    PEER_PATH,
    WAIT_SECONDS,
    ChunkRequest,
    is_digest,
    parse_key,
    parse_manifest_file,
)
from streamer.peers.tls import Renewal, server_context

logger = logging.getLogger(__name__)

_BACKLOG = 512
# Requests have short lines and no body.
_MOST_LINE_BYTES = 4096
_KEEPALIVE_SECONDS = 15.0
# A peer shows the token with its first request. Of connections that have not shown it the oldest gives way to a new
# one: a client without the token cannot keep peers out.
_TOKEN_SECONDS = 5.0
_MOST_UNAUTHENTICATED = 256
_HANDSHAKE_SECONDS = 4.0
# Certificates are renewed days before they expire.
_RENEWAL_SECONDS = 60.0
_COUNTS_SECONDS = 1.0
# A peer that takes its chunk more slowly than this, after these seconds, is cut off.
_SEND_SECONDS = 10.0
_SEND_BYTES_PER_SECOND = 1 << 20
_LEAVE_SECONDS = 5.0
# So much is encrypted at once; sendfile encrypts nothing.
_PIECE_BYTES = 256 << 10
_MOST_DUE_SECONDS = 3600.0
# A request that does not wait is answered within this time, before the peer that sent it asks the store as well.
_SHORT_WAIT_SECONDS = 0.1


class PeerServer:
    """Serves the chunks of one cache folder.

    Args:
        end: the server's end of the socket to the engine.
        listener: bound socket that peers connect to.
    """

    def __init__(self, end: MessageSocket, listener: socket.socket) -> None:
        self._listener = listener
        # Nothing is to be cleaned up; the socket ends with the engine, whatever ends that.
        self._link = EngineLink(end, self._handle_message, lambda: os._exit(0))
        self._unauthenticated = BoundedConnections(_MOST_UNAUTHENTICATED, _TOKEN_SECONDS)
        self._started: asyncio.Future[ServerStart] = asyncio.get_running_loop().create_future()
        self._leaving = asyncio.Event()
        self._counts = Counts()
        self._report: asyncio.TimerHandle | None = None

    async def serve(self) -> None:
        """Serves until the engine tells it to leave and what it began is sent; ends the process with the engine."""
        start = await self._started
        self._start = start
        self._token = (BEARER + start.token).encode()
        self._sends = Sends(start.sends, start.send_bytes)
        # Garbage is logged with its bytes, among them perhaps a token.
        silent = logging.getLogger("streamer.peers.http")
        silent.disabled = True
        self._http = web.Server(
            self._answer,
            handler_cancellation=True,
            access_log=None,
            logger=silent,
            keepalive_timeout=_KEEPALIVE_SECONDS,
            lingering_time=0,
            max_line_size=_MOST_LINE_BYTES,
            max_field_size=_MOST_LINE_BYTES,
        )
        context = server_context(start.tls_folder) if start.tls_folder else None
        listening = await asyncio.get_running_loop().create_server(
            self._connect,
            sock=self._listener,
            backlog=_BACKLOG,
            ssl=context,
            ssl_handshake_timeout=None if context is None else _HANDSHAKE_SECONDS,
        )
        await (self._leaving.wait() if context is None else self._renew(context))
        listening.close()
        self._http.pre_shutdown()  # idle connections
        await self._http.shutdown(_LEAVE_SECONDS)

    async def _renew(self, context: ssl.SSLContext) -> None:
        """Looks for renewed certificates until the engine tells it to leave."""
        renewal = Renewal(context, self._start.tls_folder)
        while not self._leaving.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_RENEWAL_SECONDS):
                    await self._leaving.wait()
            try:
                renewal.look()
            except ConfigError as error:
                logger.warning("%s", error)

    def _connect(self) -> asyncio.Protocol:
        connection = self._http()
        self._unauthenticated.count(connection)
        return connection

    # ------------------------------------------------------------ the engine

    def _handle_message(self, message: ToServer) -> None:
        if isinstance(message, Leave):
            self._leaving.set()
            self._link.refuse_all()
        elif isinstance(message, ServerStart):
            self._started.set_result(message)

    def _count(self, **more: int) -> None:
        """Counts, and tells the engine within a second."""
        changed = {name: getattr(self._counts, name) + count for name, count in more.items()}
        self._counts = msgspec.structs.replace(self._counts, **changed)
        if self._report is None:
            self._report = asyncio.get_running_loop().call_later(_COUNTS_SECONDS, self._send_counts)

    def _send_counts(self) -> None:
        self._report = None
        self._link.send(msgspec.structs.replace(self._counts, sends=self._sends.under_way))

    # ------------------------------------------------------------ answers

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        shown = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not hmac.compare_digest(shown, self._token):
            self._count(served_unauthorized=1)
            return _refusal(401, last=True)
        self._unauthenticated.release(request.protocol)
        if request.method != "GET":
            return _refusal(405, last=True)
        if request.path == PEER_PATH:
            return web.Response(body=msgspec.json.encode(self._start.facts), content_type="application/json")
        if (manifest_file := parse_manifest_file(request.path)) is not None:
            file = _open(os.path.join(self._start.folder, "manifests", *manifest_file))
            if file is None:
                return _refusal(404)
            with file:
                return await self._send(request, file)
        asked = _parse(request)
        if asked is None:
            return _refusal(400, last=True)
        try:
            status = 503 if self._leaving.is_set() else await self._chunk(request, asked)
        except BusyError:
            status = 503 if asked.due_seconds < WAIT_SECONDS else 202
        except Exception:
            logger.exception("chunk %s was not sent", asked.key.hex())
            status = 503
        if isinstance(status, web.StreamResponse):
            return status
        if status == 503:
            self._count(served_refused=1)
        return _refusal(status)

    async def _chunk(self, request: web.BaseRequest, asked: ChunkRequest) -> web.StreamResponse | int:
        """Sends the chunk, or returns the status of a refusal."""
        path = os.path.join(self._start.folder, relative_path(asked.key))
        seconds = WAIT_SECONDS if asked.wait else _SHORT_WAIT_SECONDS
        if (length := _file_bytes(path)) is None and not asked.held:
            if await self._link.ask(asked) == "coming":
                return 202
            length = _file_bytes(path)
        if length is None or not self._sends.fits(length):
            return 404
        async with self._sends.turn(asked.member, length, asked.due_seconds, seconds):
            file = _open(path)
            if file is None:  # it has been evicted
                return 404
            with file:
                return await self._send(request, file)

    async def _send(self, request: web.BaseRequest, file: BinaryIO) -> web.StreamResponse:
        length = os.fstat(file.fileno()).st_size
        response = web.StreamResponse()
        response.content_length = length
        try:
            async with asyncio.timeout(_SEND_SECONDS + length / _SEND_BYTES_PER_SECOND):
                await response.prepare(request)
                # They go with the head of the answer, in one packet.
                await response.write(file.read(HEADER_BYTES))
                if self._start.tls_folder:
                    while piece := file.read(_PIECE_BYTES):
                        await response.write(piece)
                elif length > HEADER_BYTES and request.transport is not None:
                    loop = asyncio.get_running_loop()
                    await loop.sendfile(request.transport, file, HEADER_BYTES, length - HEADER_BYTES)
                await response.write_eof()
            self._count(served_requests=1, served_bytes=length)
        except (OSError, TimeoutError, RuntimeError) as error:
            # The length is promised: an answer that ends early is a broken connection.
            logger.debug("a chunk was not sent whole: %s", error)
            if request.transport is not None:
                request.transport.abort()
        return response


def _refusal(status: int, *, last: bool = False) -> web.Response:
    response = web.Response(status=status)
    if last:
        response.force_close()
    return response


def _parse(request: web.BaseRequest) -> ChunkRequest | None:
    """Parses a request for a chunk; None for any other request."""
    key = parse_key(request.path)
    query = request.query
    dataset = query.get("dataset", "")
    due = request.headers.get(DUE_HEADER, "0")
    # Engines behind one address are told apart by their id, others by their address.
    member = request.headers.get(MEMBER_HEADER) or request.remote or ""
    if key is None or not is_digest(dataset) or not due.isdecimal() or not member.isascii() or request.body_exists:
        return None
    seconds = min(int(due[:12]) / 1000, _MOST_DUE_SECONDS)
    return ChunkRequest(
        key=key,
        dataset=dataset,
        member=member,
        wait=query.get("wait") == "1",
        held=query.get("held") == "1",
        due_seconds=seconds,
    )


def _file_bytes(path: str) -> int | None:
    """Returns the length of a regular file; None if there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _open(path: str) -> BinaryIO | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    return os.fdopen(descriptor, "rb", buffering=0)


# ---------------------------------------------------------------- which chunk is sent next

# A peer asks for a few dozen chunks at once.
_MOST_WAITING = 256


class BusyError(Exception):
    """Is raised when a chunk is not sent in time, because others are before it."""


class Sends:
    """Gives turns to send, in fair shares to the peers, and by due time among the chunks of one peer.

    Args:
        max_sends: limit for the sends at once.
        max_bytes: limit for the lengths of the files that are sent at once. A file that is evicted meanwhile takes
            its space until it is sent; the cache keeps so much free.
    """

    def __init__(self, max_sends: int, max_bytes: int) -> None:
        self._gate = FairGate(max_bytes)
        # A gate bounds both: each send takes its length, and its part of the number.
        self._least_bytes = -(-max_bytes // max_sends)
        self._waiting: Counter[str] = Counter()
        self.under_way = 0

    def __repr__(self) -> str:
        return f"Sends({self.under_way} under way, {self._waiting.total()} waiting)"

    def fits(self, length: int) -> bool:
        """Whether a file of that length can ever be sent."""
        return length <= self._gate.limit

    @asynccontextmanager
    async def turn(self, member: str, length: int, due_seconds: float, max_seconds: float) -> AsyncIterator[None]:
        """Waits for the turn of a chunk; the turn lasts as long as the context.

        Args:
            member: the peer that it is sent to.
            length: length of the file in bytes.
            due_seconds: seconds until a reader of the peer needs it, which decides among the chunks of one peer.
            max_seconds: seconds that it may wait for its turn.

        Raises:
            BusyError: the wait takes longer.
        """
        amount = max(length, self._least_bytes)
        if self._waiting[member] >= _MOST_WAITING:
            raise BusyError
        due = asyncio.get_running_loop().time() + due_seconds
        self._waiting[member] += 1
        try:
            async with asyncio.timeout(max_seconds):
                await self._gate.acquire(WaitQueue(lambda: due, lambda: member), amount)
        except TimeoutError:
            raise BusyError from None
        finally:
            self._waiting[member] -= 1
            if not self._waiting[member]:
                del self._waiting[member]
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1
            self._gate.release(amount, member)


# ---------------------------------------------------------------- the socket to the engine

# So many datagrams of 100 bytes fit into the socket, so that sending never waits.
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
        self._handle_message = received
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
        self.send(ServerQuestion(number, request))
        try:
            return await answered
        finally:
            del self._asked[number]

    def _read(self) -> None:
        for received in self._end.receive_available(MOST_MESSAGE_BYTES):
            if received is None:
                self._finish()
                continue
            message = decode_to_server(received[0])
            if not isinstance(message, ServerAnswer):
                self._handle_message(message)
            elif (answered := self._asked.get(message.number)) is not None and not answered.done():
                answered.set_result(message.availability)
