"""Starts the process that answers peers, answers its questions, and starts it again when it ends: the engine's side.

`peers/group.py` runs it as long as the engine has peers. The process runs `peers/server.py`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import msgspec

from streamer.base.child import ConnectedChild, RestartPauses, describe_exit, make_environment
from streamer.base.concurrency import in_thread
from streamer.errors import ConfigError
from streamer.peers.lookup import split_address
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
    decode_to_engine,
    encode,
)
from streamer.peers.protocol import ChunkRequest

logger = logging.getLogger(__name__)

_BACKLOG = 512
# The pause before the next process is short if the last one ran for longer than this.
_USEFUL_SECONDS = 60.0
_MIN_PAUSE_SECONDS = 1.0
# The process has this long to end after a `Leave`: for 5 s it sends the rest of what it has begun.
_END_SECONDS = 6.0


# Returns where a chunk is whose file is not in the cache folder, and starts its fetch if it is kept here
# (`Serving.serve`). A request with `wait` is answered when the fetch has ended, after half a second at the latest.
ServeChunk = Callable[[ChunkRequest], Awaitable[Availability]]


class PeerServerProcess:
    """Runs the process that answers peers, inside its `async with`, on the engine's loop.

    The engine binds the socket. So a port that is taken is an error at the start, and peers can connect while a process
    that has ended is started again. Entering raises a ConfigError if the address cannot be used.

    Args:
        listen: host:port to listen on. Port 0 means any free port.
        start: the first message to each process.
        serve: answers its questions.

    Attributes:
        port: port that peers connect to, once entered.
        restarts: number of times that the process ended by itself, or could not be started.
    """

    def __init__(self, listen: str, start: ServerStart, serve: ServeChunk) -> None:
        self._listen = listen
        self._first = start
        self._serve = serve
        self._child: ConnectedChild | None = None
        self._answers: set[asyncio.Task[None]] = set()
        self._counts = self._past = Counts()
        self.port = 0
        self.restarts = 0

    def __repr__(self) -> str:
        return f"PeerServerProcess(port={self.port}, pid={self.pid})"

    @property
    def pid(self) -> int | None:
        """Id of the process, or None while it does not run."""
        return None if self._child is None else self._child.pid

    async def __aenter__(self) -> Self:
        host, port = split_address(self._listen)
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            both = family == socket.AF_INET6  # [::] answers IPv4, too
            # A peer that connects before the server runs waits for it.
            self._listener = socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"cannot answer peers at {self._listen}: {reason}; choose another [peers] listen",
                field="listen",
            ) from error
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
        """Returns the counts of all processes since the start, by the names of `Counts`, and `peer_server_restarts`."""
        counts = msgspec.structs.asdict(_add(self._past, self._counts))
        return {**counts, "peer_server_restarts": self.restarts}

    # ------------------------------------------------------------ the process

    async def _supervise(self) -> None:
        """Starts the process and follows it, again and again with growing pauses, until it is cancelled."""
        loop = asyncio.get_running_loop()
        pauses = RestartPauses()
        while True:
            begun = loop.time()
            try:
                await in_thread(None, self._start)
                await self._follow()
            except (OSError, ValueError) as error:
                logger.warning("the peer server: %s", error)
            self.restarts += 1
            pause = max(_MIN_PAUSE_SECONDS, pauses.count_end(useful=loop.time() - begun > _USEFUL_SECONDS))
            logger.warning("the peer server has ended (%s): starts again in %.0f s", await self._stop(0.0), pause)
            await asyncio.sleep(pause)

    def _start(self) -> None:
        self._child = ConnectedChild(
            "streamer.peers", [self._listener.fileno()], environment=make_environment({}), folder="/"
        )
        # The token is sent, so that it is in no argument, variable or file.
        self._send(self._first)

    async def _stop(self, grace_seconds: float) -> str:
        """Waits at most `grace_seconds` for the end of the process, then kills it; returns how it ended. Idempotent."""
        child = self._child
        self._past = msgspec.structs.replace(_add(self._past, self._counts), sends=0)
        self._counts = Counts()
        how = "not started" if child is None else describe_exit(await in_thread(None, child.end, grace_seconds))
        self._child = None
        for task in self._answers:
            task.cancel()
        return how

    # ------------------------------------------------------------ what it asks

    async def _follow(self) -> None:
        """Takes the messages of the process until it has ended. Raises OSError, and msgspec.MsgspecError.

        All messages that have arrived are taken in one turn of the loop; uvloop's `sock_recv` takes a turn for each.
        With `sock_recv` busy engines answered up to 0.8 s late in a cold epoch, and peers asked the store for 2 to 12 %
        of the chunks as well, now for 0.1 to 2 % (four engines on two cores, 2026-11-23).
        """
        assert self._child is not None, "started"
        end = self._child.socket
        while raw := await end.wait_for_message(MOST_MESSAGE_BYTES):
            self._take(decode_to_engine(raw))
            for received in end.receive_available(MOST_MESSAGE_BYTES):
                if received is None:
                    return
                self._take(decode_to_engine(received[0]))

    def _take(self, message: ToEngine) -> None:
        """Keeps counts, and starts a task that answers a question."""
        if isinstance(message, Counts):
            self._counts = message
        else:
            task = self._tasks.create_task(self._answer(message))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

    async def _answer(self, asked: ServerQuestion) -> None:
        self._send(ServerAnswer(asked.number, await self._serve(asked.request)))

    def _send(self, message: ToServer) -> None:
        """Sends a message, if the process runs. A failure is ignored: `_follow` notices that the process has ended."""
        if self._child is not None:
            try:
                self._child.socket.send(encode(message))
            except OSError as error:
                logger.debug("the peer server was not told: %s", error)


def _add(first: Counts, second: Counts) -> Counts:
    names = first.__struct_fields__
    return Counts(*(getattr(first, name) + getattr(second, name) for name in names))
