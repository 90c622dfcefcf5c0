"""Sends requests to the engine and opens sessions with it: the client of every process that reads data.

The loader (`loader/`), the commands (`cli/`) and `tools/` use it. It has no event loop (Jupyter has one) and no thread:
messages of the engine are read while its owner waits for something, or calls `pump`. If the engine has died, such a
call connects to the next one and opens the sessions again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self, TypeVar

from msgspec.structs import replace

from streamer import errors
from streamer.base import linux
from streamer.client import in_process
from streamer.client.connection import Connection, DisconnectedError
from streamer.client.launcher import Restarts, connect, pause_before_restart, warn_once
from streamer.client.pending_requests import Ask, ManifestAsk, PendingRequests
from streamer.client.session import Session
from streamer.client.settings import ClientSettings
from streamer.client.store_variables import explain_error
from streamer.config import format_bytes
from streamer.errors import ClosedError, EngineUnavailableError, ServiceError
from streamer.wire.messages import (
    CacheShared,
    Content,
    Event,
    Failed,
    GetManifest,
    GetStatistics,
    IndexProgress,
    ManifestReady,
    Message,
    Notice,
    Opened,
    OpenSession,
    Read,
    Ready,
    Statistics,
    Welcome,
)

logger = logging.getLogger(__name__)

_ROOT_ID = "root-id"

_Answer = TypeVar("_Answer", bound=Message)


class EngineClient:
    """Talks to the engine over one connection, which it makes at its first use, and again if the engine is replaced.

    Used by one thread at a time. The child of a fork makes a connection of its own. A method that needs the connection
    raises ClosedError after `close` or `shut_down`, and the errors of `launcher.connect`.

    Args:
        settings: how to reach or start the engine.

    Attributes:
        settings: see Args.
        job: text that all ranks of the job share, or one with the pid of this process.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.job = settings.job or f"pid-{os.getpid()}"
        self._connection: Connection | None = None
        self._poll: linux.Epoll | None = None
        self._sessions: dict[int, Session] = {}
        self._answers: dict[int, Event] = {}
        self._numbers = itertools.count(1)
        self._closed = False
        self._restarts = Restarts()
        in_process.register(self)

    def __repr__(self) -> str:
        return f"EngineClient({self.settings.cache_dir}, sessions={len(self._sessions)}, {self._restarts})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ------------------------------------------------------------ requests

    def manifest(
        self,
        request: GetManifest,
        progress: Callable[[IndexProgress], None] | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> Path:
        """Waits until the engine has found or built a manifest, and returns its folder; raises as `manifests`.

        Args:
            request: the manifest that is asked for. Its number and options are filled in.
            progress: called with each report of progress.
            on_note: called with each line about objects that were left out.
        """
        return next(self.manifests([ManifestAsk(request, progress, on_note)]))

    def manifests(self, asks: Iterable[ManifestAsk]) -> Iterator[Path]:
        """Yields the folder of each manifest as this process sees it, in order; asks for a few at a time.

        Raises:
            StreamerError: the engine's error for the first manifest that cannot be had, mostly a ManifestError, a
                StoreError or a ConfigError.
        """
        options = self.settings.encode_options()
        sent, answered = itertools.tee(asks)
        answers = self.ask_each((ask.make_ask(options) for ask in sent), ManifestReady)
        root: Path | None = None
        for answer, ask in zip(answers, answered, strict=False):
            root = root or self.roots()[0]
            yield ask.take_answer(answer, root)

    def open_session(self, request: OpenSession, cache_full_hint: str = "") -> Session:
        """Opens a session with this client's job and storage options, and returns it without waiting for an answer.

        If the engine refuses the session, its first `ready` or `wait` raises the error.

        Args:
            request: what the session reads. Its number, job and options are filled in.
            cache_full_hint: a sentence that says what else helps if the cache is too small, or "".

        Raises:
            ConfigError, ClosedError: a storage option is not a plain value; the client was closed.
        """
        self._check_open()
        numbered = replace(request, session=next(self._numbers), job=self.job, options=self.settings.encode_options())
        session = Session(self, numbered, cache_full_hint)
        self._connect()
        self._sessions[session.number] = session
        self.post_all(session.reopen_messages())
        return session

    def read(self, dataset: str, chunk: int, start: int, stop: int, *, boundaries: bool = False) -> bytes:
        """Lets the engine read bytes of one chunk, for reads outside of a session (`dataset[i]`); waits for them.

        Args:
            dataset: digest of the manifest.
            chunk: number of the chunk.
            start: offset of the first byte in the chunk.
            stop: offset behind the last byte, at most 64 MiB later.
            boundaries: whether to ask for the boundaries of a recoded chunk's samples instead (see `Read`).

        Raises:
            StreamerError: the engine's error, or a ConfigError for a storage option that is not a plain value.
        """
        options = self.settings.encode_options()
        wanted = Read(0, dataset=dataset, chunk=chunk, start=start, stop=stop, options=options, boundaries=boundaries)
        return self.ask(lambda number: replace(wanted, request=number), Content).content

    def statistics(self) -> dict[str, object]:
        """Asks the engine for its statistics by name (`engine/statistics.py`), and returns them; errors as of `ask`."""
        return dict(self.ask(GetStatistics, Statistics).values)

    def roots(self) -> list[Path]:
        """Returns the path of the engine's cache folder as this process sees it, then those of the read-only layers.

        Raises:
            EngineUnavailableError: this process sees the folder neither where the engine does nor in its settings.
        """
        welcome = self._connect().welcome
        for candidate in (self.settings.cache_dir, Path(welcome.root)):
            with contextlib.suppress(OSError):
                if (candidate / _ROOT_ID).read_text(errors="replace").strip() == welcome.root_id:
                    return [candidate, *map(Path, welcome.layers)]
        raise EngineUnavailableError(
            f"the engine's cache folder {welcome.root} (root-id {welcome.root_id}) is visible neither there nor at "
            f"{self.settings.cache_dir}; mount it here and set STREAMER_CACHE_DIR",
            root=welcome.root,
        )

    @property
    def fallback_dir(self) -> Path:
        """Folder for selections if this process may not write to the manifests' folder; connects to the engine."""
        return self.settings.runtime_dir / "selections" / self.welcome.root_id

    @property
    def welcome(self) -> Welcome:
        """The engine's answer to the greeting; connects to the engine, and starts one, if necessary."""
        return self._connect().welcome

    # ------------------------------------------------------------ events

    def fileno(self) -> int:
        """Connects if necessary, and returns a descriptor that is readable when a message waits for `pump`.

        It stays the same if the engine is replaced. Raises ConfigError if there is no epoll (`linux.epoll`).
        """
        connection = self._connect()
        if self._poll is None:
            self._poll = linux.epoll()
            self._poll.register(connection.fileno(), select.POLLIN)
        return self._poll.fileno()

    def pump(self, timeout_seconds: float | None = 0.0) -> None:
        """Handles the engine's messages, after waiting at most `timeout_seconds` for one (None means no limit).

        If the engine is gone, this connects to the next one and opens the sessions there.

        Raises:
            StreamerError: what the engine reports of the connection. (Errors of sessions and requests are kept for
                their users.)
            EngineUnavailableError: engines crash again and again.
            ClosedError: the client is closed.
        """
        try:
            events = self._connect().receive(timeout_seconds)
        except DisconnectedError:
            self._reconnect()
            return
        for event in events:
            match event:
                case Ready(session=number) if number in self._sessions:
                    if self._sessions[number].handle_ready(event.through, event.rejects):
                        self._restarts.record_progress()
                case Failed(session=number) if number in self._sessions:
                    self._sessions[number].handle_error(_make_error(event))
                case Failed(request=number) if number >= 0:
                    self._answers[number] = event
                case Failed(session=-1):
                    raise _make_error(event)
                case IndexProgress():
                    self._answers[event.request] = event
                case ManifestReady() | Content() | Statistics() | CacheShared():
                    self._answers[event.request] = event
                    self._restarts.record_progress()
                case Notice():
                    warn_once(f"{self._connect().welcome.pid} {event.number}", event.text)
                case Opened() | Ready() | Failed():
                    logger.debug("late event %s", type(event).__name__)
                case _:
                    raise ServiceError(f"the engine sent {type(event).__name__} out of turn")

    def pump_until(self, reached: Callable[[], bool], timeout_seconds: float | None, what: str) -> None:
        """Handles messages until `reached()` is true; raises as `pump` does.

        Args:
            reached: called before each wait.
            timeout_seconds: seconds to wait at most. None means no limit.
            what: beginning of the text of the TimeoutError.

        Raises:
            TimeoutError: it was not true in time.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not reached():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"{what}: not ready after {timeout_seconds} s")
            self.pump(left)

    def post(self, message: Message, quietly: bool = False) -> None:
        """Sends a message. If the engine is gone, connects to the next one and opens the sessions there instead.

        With `quietly` it never connects: the message is dropped if there is no connection or the client is closed.

        Raises:
            EngineUnavailableError: engines crash again and again. All sessions have ended with this error.
        """
        if quietly and (self._connection is None or self._closed):
            return
        try:
            self._connect().send(message)
        except DisconnectedError:
            if not quietly:
                self._reconnect()

    def post_all(self, messages: Iterable[Message]) -> None:
        """Does the same as `post` for several messages."""
        try:
            connection = self._connect()
            for message in messages:
                connection.send(message)
        except DisconnectedError:
            self._reconnect()

    def forget(self, session: Session) -> None:
        """Passes no more messages to a session, which is closed."""
        self._sessions.pop(session.number, None)

    @property
    def connected(self) -> bool:
        """Whether there is a connection to an engine. May be read on any thread."""
        return self._connection is not None

    @property
    def closed(self) -> bool:
        """Whether `close` or `shut_down` was called."""
        return self._closed

    @property
    def in_use(self) -> bool:
        """Whether there is a connection, and the client is not closed or shut down. May be read on any thread."""
        return self.connected and not self.closed

    def shut_down(self) -> None:
        """Shuts the client down, from any thread: threads that use it get a ClosedError. `close` must follow."""
        self._closed = True
        if (connection := self._connection) is not None:
            connection.shut_down()

    def close(self) -> None:
        """Closes all sessions and the connection; idempotent. The engine may go on for other clients."""
        for session in list(self._sessions.values()):
            session.close()
        self._closed = True
        self._drop()
        self._drop_poll()

    # ------------------------------------------------------------ inside

    def _check_open(self) -> None:
        """Raises ClosedError, and drops the connection, if the client was closed or shut down."""
        if self._closed:
            # A descriptor that is kept after `shut_down` would be readable for ever and keep a selector busy.
            self._drop()
            raise ClosedError(
                "this connection to the engine is closed: its dataset (or client) was closed while it was in use"
            )

    def _connect(self) -> Connection:
        """Returns the connection; connects if there is none, and starts an engine where the settings allow it."""
        self._check_open()
        if self._connection is None:
            self._connection = connect(self.settings, self._restarts)
            self._compare_limit(self._connection.welcome)
            if self._poll is not None:
                # A closed socket leaves the set by itself. A selector would take a new socket of the same number for
                # the old one; it sees the set, which stays.
                self._poll.register(self._connection.fileno(), select.POLLIN)
            # `shut_down` may have been called meanwhile without finding a connection.
            self._check_open()
        return self._connection

    def _compare_limit(self, welcome: Welcome) -> None:
        """Warns if the engine has another limit than the one that was asked for."""
        asked = self.settings.cache_bytes
        found = welcome.cache_bytes
        if asked is None or not found or asked == found:
            return
        remedy = "change limit_bytes of the service" if self.settings.external else "end its other jobs, and wait 3 s"
        warn_once(
            f"{welcome.pid} {asked}",
            f"cache_bytes={asked} ({format_bytes(asked)}) is not used: the engine of {welcome.root} runs already, with "
            f"a limit of {format_bytes(found)}; to change it, {remedy}",
        )

    def _reconnect(self) -> None:
        """Counts a crash, connects to the next engine, and opens the sessions there.

        Raises:
            EngineUnavailableError: engines crash again and again. All sessions have ended with this error.
        """
        self._check_open()
        logger.warning("the engine of %s went away; connecting again", self.settings.cache_dir)
        begun = time.monotonic()
        reopened = False
        while not reopened:
            self._drop()
            try:
                pause_before_restart(self.settings, self._restarts)
                connection = self._connect()
            except EngineUnavailableError as error:
                # A later connection must not wait for these sessions.
                for session in self._sessions.values():
                    session.handle_error(error)
                self._sessions.clear()
                raise
            with contextlib.suppress(DisconnectedError):
                for session in self._sessions.values():
                    for message in session.reopen_messages():
                        connection.send(message)
                reopened = True
        logger.info("connected again after %.2f s", time.monotonic() - begun)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _drop_poll(self) -> None:
        if self._poll is not None:
            self._poll.close()
            self._poll = None

    def ask(self, request: Callable[[int], Message], kind: type[_Answer]) -> _Answer:
        """Sends a request and waits for its answer; sends it to the next engine if this one dies meanwhile.

        Args:
            request: makes the message, given its number.
            kind: type of the answer.

        Raises:
            StreamerError: the engine's error.
        """
        return next(self.ask_each([Ask(request)], kind))

    def ask_each(self, asks: Iterable[Ask], kind: type[_Answer]) -> Iterator[_Answer]:
        """Sends requests, a few at a time, and yields their answers in order; otherwise as `ask`.

        Raises:
            StreamerError: the engine's error for the first request that fails. The later ones get no answer.
        """
        pending = PendingRequests(asks, self._numbers)
        while True:
            if missing := pending.take_unsent(self._connect()):
                for message in missing:
                    self.post(message)
                # The connection may have been replaced meanwhile, so `take_unsent` is asked again.
                continue
            if (first := pending.first) is None:
                return
            number, ask = first
            match self._answers.pop(number, None):
                case None:
                    self.pump(None)
                case IndexProgress() as step:
                    if ask.progress is not None:
                        ask.progress(step)
                case Failed() as failure:
                    raise explain_error(_make_error(failure), self._connect().welcome.pid)
                case answer if isinstance(answer, kind):
                    pending.finish(number)
                    yield answer
                case other:
                    raise ServiceError(f"the engine answered {kind.__name__} with {type(other).__name__}")

    def after_fork(self) -> None:
        """Drops socket, epoll set, sessions and answers in the child of a fork: they belong to the parent."""
        self._drop()
        self._drop_poll()
        self._sessions.clear()
        self._answers.clear()


def _make_error(event: Failed) -> errors.StreamerError:
    return errors.from_wire(event.kind, event.message, event.details)
