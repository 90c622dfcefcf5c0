"""The engine behind a unix socket: who is connected, what they ask, when to leave."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np

from streamer.config import EngineConfig
from streamer.engine.engine import Engine
from streamer.engine.indexing import ManifestRequest
from streamer.engine.session import EngineSession, SessionRequest
from streamer.errors import (
    BrokenError,
    ConfigError,
    ProtocolError,
    ProtocolVersionError,
    ServiceError,
    StreamerError,
)
from streamer.service.peer import Peer
from streamer.version import VERSION
from streamer.wire.messages import (
    PROTOCOL,
    Advance,
    CloseSession,
    Content,
    Extend,
    GetManifest,
    GetStatistics,
    Hello,
    IndexProgress,
    ManifestReady,
    Opened,
    OpenSession,
    Read,
    Ready,
    Reject,
    Request,
    Statistics,
    Welcome,
)

logger = logging.getLogger(__name__)

MAX_PEERS = 4096
# Questions of one peer that may be in work at the same time.
MAX_QUESTIONS = 64
MAX_SESSIONS_PER_PEER = 256
MAX_READ_BYTES = 64 << 20


@dataclass(slots=True)
class _Conversation:
    """What one peer has going on."""

    job: str = ""
    sessions: dict[int, EngineSession] = field(default_factory=dict)
    questions: int = 0


class Server:
    """Answers peers for one engine. Lives on the engine's loop.

    Args:
        config: socket and grace.
        engine: opened already.
        tasks: where questions that take time run.
        leave: called once when nobody has been connected for the grace time.
    """

    def __init__(
        self, config: EngineConfig, engine: Engine, tasks: asyncio.TaskGroup, leave: Callable[[], None]
    ) -> None:
        self._config = config
        self._engine = engine
        self._tasks = tasks
        self._leave = leave
        self._peers: dict[Peer, _Conversation] = {}
        self._grace: asyncio.TimerHandle | None = None
        self._watch_grace()

    def __repr__(self) -> str:
        return f"Server(peers={len(self._peers)}, engine={self._engine!r})"

    # ------------------------------------------------------------ connections

    def joined(self, peer: Peer) -> bool:
        """A new connection."""
        if len(self._peers) >= MAX_PEERS:
            logger.warning("%s refused: %d peers are connected already", peer, len(self._peers))
            return False
        self._peers[peer] = _Conversation()
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        return True

    def lost(self, peer: Peer) -> None:
        """A connection ended: its leases end with it."""
        conversation = self._peers.pop(peer, _Conversation())
        for session in conversation.sessions.values():
            session.close()
        self._watch_grace()

    def greet(self, peer: Peer, hello: Hello) -> None:
        """Checks version; answers where the chunks are."""
        if hello.protocol != PROTOCOL:
            raise ProtocolVersionError(
                f"this engine speaks protocol {PROTOCOL} (streamer {VERSION}), the client {hello.protocol} "
                f"(streamer {hello.version}); install the same version on both sides",
                engine=PROTOCOL,
                client=hello.protocol,
            )
        peer.greeted = True
        self._peers[peer].job = hello.job
        cache = self._engine.cache
        peer.send(
            Welcome(
                PROTOCOL,
                VERSION,
                os.getpid(),
                str(cache.root),
                cache.root_id,
                [str(root) for root in cache.roots[1:]],
                cache.limit_bytes,
            )
        )

    def close(self) -> None:
        """Closes all connections."""
        for peer in list(self._peers):
            peer.close()

    # ------------------------------------------------------------ requests

    def take(self, peer: Peer, request: Request) -> None:
        """One message of a greeted peer."""
        conversation = self._peers[peer]
        match request:
            case OpenSession():
                self._open(peer, conversation, request)
            case Extend() | Advance() | Reject():
                self._step(peer, conversation, request)
            case CloseSession():
                if (session := conversation.sessions.pop(request.session, None)) is not None:
                    session.close()
            case GetManifest():
                self._question(peer, request.request, self._manifest(peer, request))
            case Read():
                self._question(peer, request.request, self._read(peer, request))
            case GetStatistics():
                peer.send(Statistics(request.request, self._engine.statistics()))
            case _:
                raise ProtocolError(f"{type(request).__name__} out of turn")

    def _open(self, peer: Peer, conversation: _Conversation, request: OpenSession) -> None:
        if request.session in conversation.sessions or len(conversation.sessions) >= MAX_SESSIONS_PER_PEER:
            raise ProtocolError(f"session {request.session} is open already, or there are too many")
        number = request.session
        try:
            conversation.sessions[number] = self._engine.open_session(
                SessionRequest(
                    job=request.job,
                    dataset=request.dataset,
                    consumer=request.consumer,
                    options=_options(request.options),
                    order_id=request.order_id,
                    global_batch=request.global_batch,
                    world_size=request.world_size,
                    start=request.start,
                    open_bytes=request.open_bytes,
                    stream=request.stream,
                ),
                on_ready=lambda through, rejects: peer.send(Ready(number, through, rejects)),
                on_error=lambda error: peer.fail(error, session=number),
            )
            peer.send(Opened(number))
        except StreamerError as error:
            peer.fail(error, session=number)

    def _step(self, peer: Peer, conversation: _Conversation, request: Extend | Advance | Reject) -> None:
        session = conversation.sessions.get(request.session)
        if session is None:  # it was refused; the peer does not know yet
            return
        match request:
            case Advance():
                session.advance(request.done, request.want)
            case Reject():
                session.reject(request.chunk, request.reason)
            case Extend():
                session.extend(request.epoch, _columns(request), request.complete)

    # ------------------------------------------------------------ questions that take time

    def _question(self, peer: Peer, number: int, answer: Awaitable[None]) -> None:
        conversation = self._peers[peer]
        if conversation.questions >= MAX_QUESTIONS:
            raise ProtocolError(f"more than {MAX_QUESTIONS} questions at once")
        conversation.questions += 1
        self._tasks.create_task(self._answer(peer, number, conversation, answer))

    async def _answer(self, peer: Peer, number: int, conversation: _Conversation, answer: Awaitable[None]) -> None:
        try:
            await answer
        except StreamerError as error:
            peer.fail(error, request=number)
        except Exception as error:
            logger.exception("question %d of %s failed", number, peer)
            peer.fail(BrokenError(f"the engine failed over a question: {error!r}; see its log"), request=number)
        finally:
            conversation.questions -= 1

    async def _manifest(self, peer: Peer, request: GetManifest) -> None:
        def progress(text: str, done: int, total: int) -> None:
            peer.send(IndexProgress(request.request, text, done, total))

        digest = await self._engine.manifest(
            ManifestRequest(
                urls=tuple(request.urls),
                format=request.format,
                options=_options(request.options),
                manifest=request.manifest,
                build=request.build,
                chunk_bytes=request.chunk_bytes or None,
                limit_seconds=request.limit_seconds,
                wait_seconds=request.wait_seconds,
            ),
            progress,
        )
        peer.send(ManifestReady(request.request, digest))

    async def _read(self, peer: Peer, request: Read) -> None:
        if request.stop - request.start > MAX_READ_BYTES:
            raise ServiceError(f"a read of {request.stop - request.start} bytes; at most {MAX_READ_BYTES}")
        content = await self._engine.read(
            request.dataset, _options(request.options), request.chunk, (request.start, request.stop)
        )
        peer.send(Content(request.request, content))

    def _watch_grace(self) -> None:
        if self._config.grace_seconds is not None and not self._peers and self._grace is None:
            loop = asyncio.get_running_loop()
            self._grace = loop.call_later(self._config.grace_seconds, self._leave)


def _options(encoded: bytes) -> dict[str, object]:
    try:
        options = json.loads(encoded)
    except ValueError as error:
        raise ConfigError("storage_options are not JSON", field="storage_options") from error
    if not isinstance(options, dict):
        raise ConfigError("storage_options are no mapping", field="storage_options")
    return options


def _columns(request: Extend) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if len(request.chunk) % 4 or len(request.first) % 8 or len(request.last) % 8:
        raise ProtocolError("schedule columns are cut short")
    return (
        np.frombuffer(request.chunk, "<u4").astype(np.uint32, copy=False),
        np.frombuffer(request.first, "<i8").astype(np.int64, copy=False),
        np.frombuffer(request.last, "<i8").astype(np.int64, copy=False),
    )
