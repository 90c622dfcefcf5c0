"""Starts the peer server, answers its questions, and starts it again. The side of the engine."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec

from streamer.base.processes import child_environment, interpreter, unforked
from streamer.base.threads import in_thread
from streamer.errors import ConfigError
from streamer.fetch.retry import pause_seconds
from streamer.peers.lookup import split_address
from streamer.peers.messages import (
    MOST_MESSAGE_BYTES,
    Answer,
    Ask,
    Availability,
    Counts,
    Leave,
    Start,
    ToEngine,
    ToServer,
    decode_to_engine,
    encode,
)
from streamer.peers.protocol import ChunkRequest

logger = logging.getLogger(__name__)

_BACKLOG = 512
# A server that ends at once is started again after 1 s, 2 s, ... 60 s.
_PAUSE_SECONDS = 1.0
_MOST_PAUSE_SECONDS = 60.0
# After a Leave it sends what is under way for 5 s.
_END_SECONDS = 6.0


# The engine's side, asked only for chunks whose file is not there: it starts the fetch of what is kept here. A request
# that waits is answered when the fetch has ended, at most half a second later.
ServeChunk = Callable[[ChunkRequest], Awaitable[Availability]]


class PeerServerProcess:
    """Runs the process that answers peers. In an `async with` of the engine, on its loop.

    The engine binds the socket: a port that is taken is its error, and peers can connect while a server that has ended
    is started again.

    Args:
        listen: host:port; port 0 takes a free one.
        start: the first message to the server.
        serve: answers its questions.

    Attributes:
        port: port that it listens on.
        restarts: number of times that the process ended by itself.
    """

    def __init__(self, listen: str, start: Start, serve: ServeChunk) -> None:
        self._listen = listen
        self._first = start
        self._serve = serve
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._answers: set[asyncio.Task[None]] = set()
        self._counts = self._past = Counts()
        self.port = 0
        self.restarts = 0

    def __repr__(self) -> str:
        return f"PeerServerProcess(port={self.port}, pid={self.pid})"

    @property
    def pid(self) -> int | None:
        """The id of the process; None while it does not run."""
        return None if self._process is None else self._process.pid

    async def __aenter__(self) -> Self:
        self._listener = _bound(self._listen)
        self.port = self._listener.getsockname()[1]
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._supervision = self._tasks.create_task(self._supervise(), name="peer server")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._supervision.cancel()
        await asyncio.wait([self._supervision])
        self._send(Leave())
        self._listener.close()
        await self._stop(_END_SECONDS)
        await self._tasks.__aexit__(None, None, None)

    def statistics(self) -> dict[str, int]:
        """Returns the counts of all server processes since the start, and the sends under way."""
        counts = msgspec.structs.asdict(_added(self._past, self._counts))
        return {**counts, "peer_server_restarts": self.restarts}

    # ------------------------------------------------------------ the process

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            begun = loop.time()
            try:
                await in_thread(None, self._start)
                await self._follow()
            except (OSError, msgspec.MsgspecError) as error:
                logger.warning("the peer server: %s", error)
            self.restarts += 1
            failures = 1 if loop.time() - begun > _MOST_PAUSE_SECONDS else failures + 1
            pause = pause_seconds(failures, _PAUSE_SECONDS, _MOST_PAUSE_SECONDS, 1.0)
            logger.warning("the peer server has ended (%s): starts again in %.0f s", await self._stop(0.0), pause)
            await asyncio.sleep(pause)

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        descriptors = theirs.fileno(), self._listener.fileno()
        try:
            ours.setblocking(False)
            with theirs, unforked():
                self._process = subprocess.Popen(
                    [interpreter(), "-P", "-m", "streamer.peers", *map(str, descriptors)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=descriptors,
                    cwd="/",
                    start_new_session=True,
                    env=child_environment({}),
                )
        except BaseException:
            ours.close()
            raise
        self._socket = ours
        # The token is in no argument, variable or file.
        self._send(self._first)

    async def _stop(self, seconds: float) -> str:
        """Waits at most `seconds` for the end of the process, then kills it; returns how it ended. Idempotent."""
        process, self._process = self._process, None
        self._past = msgspec.structs.replace(_added(self._past, self._counts), sends=0)
        self._counts = Counts()
        code = None if process is None else await in_thread(None, _end, process, seconds)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        for task in self._answers:
            task.cancel()
        return f"exit code {code}"

    # ------------------------------------------------------------ what it asks

    async def _follow(self) -> None:
        """Answers until the server has ended.

        Takes all messages in one turn of the loop; uvloop's `sock_recv` takes a turn for each. Busy engines then
        answered up to 0.8 s late in a cold epoch, and peers asked the store for 2 to 12 % of the chunks as well; now
        for 0.1 to 2 % (four engines on two cores, 2026-11-23).
        """
        assert self._socket is not None, "started"
        while raw := await asyncio.get_running_loop().sock_recv(self._socket, MOST_MESSAGE_BYTES):
            with suppress(BlockingIOError):
                while raw:
                    self._take(decode_to_engine(raw))
                    raw = self._socket.recv(MOST_MESSAGE_BYTES)

    def _take(self, message: ToEngine) -> None:
        if isinstance(message, Counts):
            self._counts = message
        else:
            task = self._tasks.create_task(self._answer(message))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

    async def _answer(self, asked: Ask) -> None:
        self._send(Answer(asked.number, await self._serve(asked.request)))

    def _send(self, message: ToServer) -> None:
        """Sends a message; the end of the server is noticed by reading."""
        if self._socket is not None:
            try:
                self._socket.send(encode(message))
            except OSError as error:
                logger.debug("the peer server was not told: %s", error)


def _added(first: Counts, second: Counts) -> Counts:
    names = first.__struct_fields__
    return Counts(*(getattr(first, name) + getattr(second, name) for name in names))


def _end(process: subprocess.Popen[bytes], seconds: float) -> int:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _bound(listen: str) -> socket.socket:
    """Opens a socket that listens; a peer that connects before the server runs waits for it.

    Raises:
        ConfigError: the address is not host:port, or is taken.
    """
    host, port = split_address(listen)
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        both = family == socket.AF_INET6  # [::] answers IPv4, too
        return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise ConfigError(
            f"cannot answer peers at {listen}: {error.strerror or error}; choose another [peers] listen", field="listen"
        ) from error
