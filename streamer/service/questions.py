"""Questions that take time: manifests and single samples. Bounded per peer and in bytes over all peers."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable

import msgspec

from streamer.engine.engine import Engine
from streamer.engine.indexing import ManifestRequest
from streamer.errors import BrokenError, ConfigError, ProtocolError, ServiceError, StreamerError
from streamer.fetch.gate import Gate, Line
from streamer.service.limits import MAX_QUESTIONS, MAX_READ_BYTES, Limits
from streamer.service.peer import Peer
from streamer.wire.messages import Content, GetManifest, IndexProgress, ManifestReady, Read

logger = logging.getLogger(__name__)

# 64 MiB through a unix socket take 0.1 s; a reader that needs so long has stopped.
ANSWER_SECONDS = 10.0
_NO_OPTIONS = (b"", b"{}")


class Asker(msgspec.Struct):
    """What one peer has in work."""

    in_work: int = 0
    reading: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    told_about_options: bool = False


class Questions:
    """Answers for one engine. Lives on its loop.

    Args:
        engine: who knows.
        tasks: where the answers are made.
        limits: of all peers together.
    """

    def __init__(self, engine: Engine, tasks: asyncio.TaskGroup, limits: Limits) -> None:
        self._engine = engine
        self._tasks = tasks
        self._limits = limits
        self._asked_bytes = 0
        self._answers = Gate(limits.answer_bytes)
        self._running: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"Questions({len(self._running)} in work, asked_bytes={self._asked_bytes}, answers={self._answers})"

    def ask(self, peer: Peer, asker: Asker, question: GetManifest | Read) -> None:
        """Answers as soon as it can; an error goes to the peer.

        Raises:
            ProtocolError: the peer asks too much at once.
        """
        size = sum(map(len, question.urls)) if isinstance(question, GetManifest) else 0
        if asker.in_work >= MAX_QUESTIONS:
            raise ProtocolError(f"more than {MAX_QUESTIONS} questions at once")
        if self._asked_bytes + size > max(size, self._limits.question_bytes):
            busy = ServiceError(f"{self._asked_bytes} bytes of urls are being asked about already; ask again later")
            peer.fail(busy, request=question.request)
            return
        answer = (
            self._manifest(peer, asker, question)
            if isinstance(question, GetManifest)
            else self._read(peer, asker, question)
        )
        asker.in_work += 1
        self._asked_bytes += size
        task = self._tasks.create_task(self._answered(peer, question.request, answer))
        self._running.add(task)
        task.add_done_callback(lambda done: self._over(done, asker, size))

    async def finish(self, seconds: float) -> None:
        """Waits at most so long for what is in work, then cancels it: the clients ask the next engine."""
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)
        for task in self._running:
            task.cancel()

    def options(self, peer: Peer, asker: Asker, encoded: bytes) -> dict[str, object]:
        """The storage options that a peer sent; none where the service holds the credentials.

        Raises:
            ConfigError: they are no JSON mapping.
        """
        if encoded in _NO_OPTIONS:
            return {}
        if self._engine.fetchers.access.held:
            if not asker.told_about_options:
                asker.told_about_options = True
                logger.warning("%s sends storage_options: not used, this service has its own", peer)
            return {}
        return decoded_options(encoded)

    # ------------------------------------------------------------ inside

    def _over(self, task: asyncio.Task[None], asker: Asker, size: int) -> None:
        self._running.discard(task)
        asker.in_work -= 1
        self._asked_bytes -= size

    async def _answered(self, peer: Peer, number: int, answer: Awaitable[None]) -> None:
        try:
            await answer
        except StreamerError as error:
            peer.fail(error, request=number)
        except Exception as error:
            logger.exception("question %d of %s failed", number, peer)
            peer.fail(BrokenError(f"the engine failed over a question: {error!r}; see its log"), request=number)

    async def _manifest(self, peer: Peer, asker: Asker, request: GetManifest) -> None:
        def progress(text: str, done: int, total: int) -> None:
            peer.send(IndexProgress(request.request, text, done, total))

        digest = await self._engine.manifest(
            ManifestRequest(
                urls=tuple(request.urls),
                format=request.format,
                options=self.options(peer, asker, request.options),
                manifest=request.manifest,
                build=request.build,
                chunk_bytes=request.chunk_bytes or None,
                limit_seconds=request.limit_seconds,
                wait_seconds=request.wait_seconds,
            ),
            progress,
        )
        peer.send(ManifestReady(request.request, digest))

    async def _read(self, peer: Peer, asker: Asker, request: Read) -> None:
        """One at a time for each peer; its bytes stay reserved until the peer has taken them."""
        size = request.stop - request.start
        if not 0 <= size <= MAX_READ_BYTES:
            raise ServiceError(f"a read of {size} bytes; 0 to {MAX_READ_BYTES} are possible")
        options = self.options(peer, asker, request.options)
        async with asker.reading:
            await self._answers.acquire(Line(asyncio.get_running_loop().time), size)
            try:
                span = (request.start, request.stop)
                content = await self._engine.read(request.dataset, options, request.chunk, span)
                peer.send(Content(request.request, content))
                del content
                await peer.drained(ANSWER_SECONDS)
            finally:
                self._answers.release(size)


def decoded_options(encoded: bytes) -> dict[str, object]:
    """Storage options as they cross the socket.

    Raises:
        ConfigError: no JSON mapping. Their text is not quoted: it may hold a secret.
    """
    try:
        options = json.loads(encoded)
    except (ValueError, RecursionError):
        raise ConfigError("storage_options are not JSON", field="storage_options") from None
    if not isinstance(options, dict):
        raise ConfigError("storage_options are no mapping", field="storage_options")
    return options
