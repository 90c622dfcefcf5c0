"""Answers peers over HTTP: sends chunks' files by sendfile, and asks the engine about chunks that have no file.

`peers/__main__.py` runs it in a process of its own, which `peers/server_process.py` starts. It uses asyncio's own loop:
a send takes 0.25 to 0.45 CPU s/GB in the thread that makes it, and 1.2 to 1.5 on uvloop, which has no sendfile
(loopback, 8 MiB, 2026-11-22).
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
# Longer lines of a request are refused; those of peers are short.
_MOST_LINE_BYTES = 4096
_KEEPALIVE_SECONDS = 15.0
# A connection must show the token within this time, and at most this many may not have shown it: the oldest of them
# gives way to a new one. So a client without the token cannot keep peers out.
_TOKEN_SECONDS = 5.0
_MOST_UNAUTHENTICATED = 256
_HANDSHAKE_SECONDS = 4.0
# New certificates are looked for this often; they are renewed days before they expire.
_RENEWAL_SECONDS = 60.0
# Counts are sent to the engine at most once in this time.
_COUNTS_SECONDS = 1.0
# A file must be sent within this time, and one second more for each MiB; else the connection is cut off.
_SEND_SECONDS = 10.0
_SEND_BYTES_PER_SECOND = 1 << 20
# Files may be sent for this long after a `Leave`.
_LEAVE_SECONDS = 5.0
# A file is sent in pieces of this size with TLS, because sendfile does not encrypt.
_PIECE_BYTES = 256 << 10
_MOST_DUE_SECONDS = 3600.0
# A request without wait=1 waits at most this long for its turn, since its peer soon asks the store as well.
_SHORT_WAIT_SECONDS = 0.1


class PeerServer:
    """Serves the chunks and manifests of one cache folder to peers that know the token.

    Args:
        end: this process's end of the socket to the engine.
        listener: bound socket that peers connect to.
    """

    def __init__(self, end: MessageSocket, listener: socket.socket) -> None:
        self._listener = listener
        # This process ends at once when the engine's end of the socket is closed. There is nothing to clean up.
        self._link = EngineLink(end, self._handle_message, lambda: os._exit(0))
        self._unauthenticated = BoundedConnections(_MOST_UNAUTHENTICATED, _TOKEN_SECONDS)
        self._started: asyncio.Future[ServerStart] = asyncio.get_running_loop().create_future()
        self._leaving = asyncio.Event()
        self._counts = Counts()
        self._report: asyncio.TimerHandle | None = None

    async def serve(self) -> None:
        """Waits for the engine's `ServerStart`, then serves until its `Leave`, and at most 5 s more for what has begun.

        If the engine ends without a `Leave`, the process ends at once.

        Raises:
            ConfigError: the certificates cannot be used.
        """
        start = await self._started
        self._start = start
        self._token = (BEARER + start.token).encode()
        self._sends = Sends(start.sends, start.send_bytes)
        # aiohttp's own messages are dropped: it logs the bytes of bad requests, among them perhaps a token.
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
        """Takes renewed certificates for new connections, until the engine's `Leave`."""
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
        """Adds to the counts of these names, and sees to it that the engine is told within a second."""
        changed = {name: getattr(self._counts, name) + count for name, count in more.items()}
        self._counts = msgspec.structs.replace(self._counts, **changed)
        if self._report is None:
            self._report = asyncio.get_running_loop().call_later(_COUNTS_SECONDS, self._send_counts)

    def _send_counts(self) -> None:
        self._report = None
        self._link.send(msgspec.structs.replace(self._counts, sends=self._sends.under_way))

    # ------------------------------------------------------------ answers

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers one request, as the table of `peers/protocol.py` says; first compares the token."""
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
        """Sends a chunk, and returns the response that was sent; or the status of a refusal.

        Raises:
            BusyError: too many other chunks are sent first.
        """
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
        """Sends a whole file as the answer; cuts the connection off if that fails or takes too long."""
        length = os.fstat(file.fileno()).st_size
        response = web.StreamResponse()
        response.content_length = length
        try:
            async with asyncio.timeout(_SEND_SECONDS + length / _SEND_BYTES_PER_SECOND):
                await response.prepare(request)
                # The first bytes of the file are sent together with the head of the answer, in one packet.
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
            # The head of the answer promises the length, so the peer must see a broken connection.
            logger.debug("a chunk was not sent whole: %s", error)
            if request.transport is not None:
                request.transport.abort()
        return response


def _refusal(status: int, *, last: bool = False) -> web.Response:
    """Returns an answer with a status and no body; if it is the `last`, the connection is closed after it."""
    response = web.Response(status=status)
    if last:
        response.force_close()
    return response


def _parse(request: web.BaseRequest) -> ChunkRequest | None:
    """Returns what a request for a chunk asks for; None if it is no such request."""
    key = parse_key(request.path)
    query = request.query
    dataset = query.get("dataset", "")
    due = request.headers.get(DUE_HEADER, "0")
    # Peers share the sends by their ids, since several may have one address. A peer without an id has its address.
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
    """Returns the length in bytes of a regular file; None if there is none at the path."""
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

# At most this many requests of one peer wait for their turn. A peer asks for a few dozen chunks at once.
_MOST_WAITING = 256


class BusyError(Exception):
    """Is raised when a chunk does not get its turn in time, because others are sent first."""


class Sends:
    """Gives turns to send files, in fair shares to the peers, and by due time among the chunks of one peer.

    Args:
        max_sends: limit for the number of files that are sent at once.
        max_bytes: limit for their lengths together. A file that is evicted while it is sent takes its space until then,
            and the cache keeps this much space free for that.

    Attributes:
        under_way: number of files that are being sent.
    """

    def __init__(self, max_sends: int, max_bytes: int) -> None:
        self._gate = FairGate(max_bytes)
        # The gate bounds both limits: a send takes the length of its file, but at least one of `max_sends` equal parts.
        self._least_bytes = -(-max_bytes // max_sends)
        self._waiting: Counter[str] = Counter()
        self.under_way = 0

    def __repr__(self) -> str:
        return f"Sends({self.under_way} under way, {self._waiting.total()} waiting)"

    def fits(self, length: int) -> bool:
        """Whether a file of this length in bytes may be sent at all."""
        return length <= self._gate.limit

    @asynccontextmanager
    async def turn(self, member: str, length: int, due_seconds: float, max_seconds: float) -> AsyncIterator[None]:
        """Waits for the turn of a chunk's file; the turn lasts until the end of the `async with`.

        Args:
            member: id of the peer that the file is sent to.
            length: length of the file in bytes.
            due_seconds: seconds until a reader of the peer needs the chunk.
            max_seconds: seconds to wait for the turn.

        Raises:
            BusyError: the wait would take longer, or too many requests of the peer wait already.
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

# At most this many questions are open. So many datagrams of 100 bytes fit into the socket, so that sending never waits.
_MOST_ASKS = 256


class EngineLink:
    """Asks the engine about chunks, and passes on its other messages. On the event loop of the server's process.

    Args:
        end: this process's end of the socket to the engine.
        received: called with each message of the engine that is not an answer.
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
        """Sends a message. A failure is ignored: reading from the socket shows when the engine has ended."""
        with suppress(OSError):
            self._end.send(encode(message))

    def refuse_all(self) -> None:
        """Answers open questions with "no", because the engine does not answer any more."""
        for answered in self._asked.values():
            if not answered.done():
                answered.set_result("no")

    async def ask(self, request: ChunkRequest) -> Availability:
        """Asks the engine where a chunk is whose file is not in the folder, and waits for the answer.

        Returns "no" at once if too many questions are open.
        """
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
        """Handles all messages that have arrived; called by the loop when there are some."""
        for received in self._end.receive_available(MOST_MESSAGE_BYTES):
            if received is None:
                self._finish()
                continue
            message = decode_to_server(received[0])
            if not isinstance(message, ServerAnswer):
                self._handle_message(message)
            elif (answered := self._asked.get(message.number)) is not None and not answered.done():
                answered.set_result(message.availability)
