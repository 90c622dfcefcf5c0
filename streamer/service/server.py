"""Answers the clients of one engine. Made by `lifecycle.py`; connections (`client_connection.py`) and HTTP call it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from streamer.base.process import process_statistics
from streamer.config import EngineConfig
from streamer.engine.engine import Engine
from streamer.engine.session import EngineSession
from streamer.engine.statistics import Table, Values, engine_statistics
from streamer.errors import ConfigError, EngineUnavailableError, ProtocolError, ServiceError, StreamerError
from streamer.fetch.fetcher_set import options_key
from streamer.service.admission import MAX_SESSIONS_PER_PEER, Admission, ServiceLimits
from streamer.service.client_connection import ClientConnection
from streamer.service.long_requests import ClientRequests, LongRequests, SessionProofs
from streamer.service.recent_warnings import JobErrors
from streamer.version import VERSION
from streamer.wire.frames import Side, version_error
from streamer.wire.messages import (
    BOTTLENECKS,
    PROTOCOL,
    Advance,
    CloseSession,
    Extend,
    GetManifest,
    GetStatistics,
    Hello,
    Notice,
    Opened,
    OpenSession,
    Part,
    Read,
    Ready,
    Reject,
    ReportError,
    ReportFinding,
    Request,
    ShareCache,
    Statistics,
    Welcome,
)
from streamer.wire.schedule import EpochSchedule
from streamer.wire.store_options import StoreOptions

logger = logging.getLogger(__name__)

# Letters of a client's text in the log: enough for a reason with a path, or for the name of a rank and its worker.
_MAX_LETTERS = 500
# Letters of job, order, stream and dataset of a session together.
_MAX_NAME_LETTERS = 64 << 10
# Different storage options of the parts of one session together: 4,096 of 500 bytes. They are read in one turn of the
# loop: 7 MB took 0.5 s of it (2026-11-29), this takes 0.2 s.
_MAX_OPTIONS_BYTES = 2 << 20
# Numbers of a session are below this: a float holds them exactly, and no count of bytes or samples is larger.
_MAX_NUMBER = 1 << 53


class _ClientState(msgspec.Struct):
    """The state of one connection; sessions by their numbers. `pid` is 0 until the client has said hello."""

    pid: int = 0
    job: str = ""
    sessions: dict[int, EngineSession] = msgspec.field(default_factory=dict)
    requests: ClientRequests = msgspec.field(default_factory=ClientRequests)


class Server:
    """Answers clients for one engine, and sends them its notices. Lives on the engine's loop.

    Args:
        config: says who may connect, and the grace time.
        engine, tasks: the open engine, and the group that runs the answers to long requests.
        leave: called when there has been no connection for the grace time.
        limits: limits for all clients together; if None, they are those of `ServiceLimits.make`.
        warnings: returns the last warnings of this process.
        cache_notice: sentence about the cache that each session is sent; "" if there is none.

    Raises:
        ConfigError: the group does not exist, or the token file cannot be read or is empty.
    """

    def __init__(
        self,
        config: EngineConfig,
        engine: Engine,
        tasks: asyncio.TaskGroup,
        leave: Callable[[], None],
        *,
        limits: ServiceLimits | None = None,
        warnings: Callable[[], list[Table]] = list,
        cache_notice: str = "",
    ) -> None:
        self._config = config
        self._engine = engine
        self._leave = leave
        self._admission = Admission(config.cache, config.service)
        self._limits = limits or ServiceLimits.make(config.service)
        self._warnings = warnings
        self._cache_notices = [Notice(0, one_line(cache_notice))] if cache_notice else []
        self._errors = JobErrors()
        self._long_requests = LongRequests(engine, tasks, self._limits, self._fail)
        self._proofs = SessionProofs(engine.preparation.prepare, tasks)
        self._clients: dict[ClientConnection, _ClientState] = {}
        # Bytes of incomplete frames, those that began first at the front.
        self._unfinished: dict[ClientConnection, int] = {}
        # Connections of users who may not connect, until they are told so.
        self._strangers: dict[ClientConnection, None] = {}
        self._grace: asyncio.TimerHandle | None = None
        self._begun = engine.now()
        self._count: Counter[str] = Counter()
        engine.on_notice = self._notice
        self._watch_grace()

    def __repr__(self) -> str:
        return f"Server(clients={len(self._clients)}, engine={self._engine!r})"

    def statistics(self) -> Values:
        """Returns the statistics of the engine and of the service: its connections, its process, its warnings."""
        return {
            **engine_statistics(self._engine),
            "version": VERSION,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "uptime_seconds": round(self._engine.now() - self._begun, 3),
            "connections": len(self._clients),
            "connections_total": self._count["connections"],
            "connections_refused": self._count["refused"],
            "dropped_protocol": self._count["dropped protocol"],
            "dropped_unread": self._count["dropped unread"],
            "dropped_silent": self._count["dropped silent"],
            "dropped_unfinished": self._count["dropped unfinished"],
            "warnings": self._warnings(),
            **process_statistics(),
        }

    def reload(self, config: EngineConfig, admission: Admission) -> None:
        """Takes over a new configuration, and who may connect by it; open connections stay."""
        self._admission = admission
        self._config = config

    def pids(self) -> list[int]:
        """Returns the pids that connected clients gave, 0 for one that has not said hello; any thread."""
        return [state.pid for state in self._clients.copy().values()]

    def descriptors(self) -> list[int]:
        """Returns the descriptors of the connections; any thread."""
        return [number for client in self._clients.copy() if (number := client.fileno()) >= 0]

    # ------------------------------------------------------------ connections

    def add_client(self, client: ClientConnection) -> bool:
        """Registers a connection and stops the grace time; returns False, and does neither, if there are too many."""
        self._count["connections"] += 1
        if len(self._clients) >= self._limits.clients:
            self._count["refused"] += 1
            logger.warning("%s refused: %d are connected already", client, len(self._clients))
            return False
        if not self._admission.knows(client.credentials):
            if len(self._strangers) >= self._limits.strangers:
                next(iter(self._strangers)).drop("may not connect, and has said nothing", "silent")
            self._strangers[client] = None
        self._clients[client] = _ClientState()
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        return True

    def remove_client(self, client: ClientConnection) -> None:
        """Handles the end of a connection: its sessions, leases and requests end; the grace time may begin."""
        state = self._clients.pop(client, _ClientState())
        self._proofs.drop(client)
        self._long_requests.leave(state.requests)
        self._unfinished.pop(client, None)
        self._strangers.pop(client, None)
        for session in state.sessions.values():
            session.close()
        if client.greeted:
            self._engine.disconnect(state.job)
        self._watch_grace()

    def count_drop(self, client: ClientConnection, why: str) -> None:
        """Counts a connection that is ended because of what its client did; see `ClientHandler.count_drop`."""
        self._count[f"dropped {why}"] += 1
        self._unfinished.pop(client, None)
        self._strangers.pop(client, None)

    def limit_frames(self, client: ClientConnection, unfinished_bytes: int) -> None:
        """Notes the bytes of a client's incomplete frame; drops those that began first if all take too much memory."""
        if not unfinished_bytes:
            self._unfinished.pop(client, None)
            return
        self._unfinished[client] = unfinished_bytes
        while sum(self._unfinished.values()) > self._limits.frame_bytes:
            first, held = next(iter(self._unfinished.items()))
            first.drop(f"has sent {held} bytes of a frame and not its end, while others need the memory", "unfinished")
            self._unfinished.pop(first, None)

    def greet(self, client: ClientConnection, hello: Hello) -> None:
        """Admits a client: checks its credentials and its version, and answers with a `Welcome`.

        Raises:
            EngineUnavailableError: this user may not connect, another user is served, or the token is wrong.
            ProtocolVersionError: the client has another version of the protocol.
        """
        try:
            self._admission.check(client.credentials, hello.token)
            self._long_requests.sole_user.check_connection(client.credentials)
        except EngineUnavailableError:
            self._count["refused"] += 1
            raise
        if hello.protocol != PROTOCOL:
            raise version_error(Side(PROTOCOL, VERSION), Side(hello.protocol, hello.version))
        client.greeted = True
        self._clients[client].pid = hello.pid
        self._clients[client].job = hello.job
        self._engine.connect(hello.job)
        cache = self._engine.cache
        cache.restore(asked=True)  # the client looks for the folder
        client.send(
            Welcome(
                protocol=PROTOCOL,
                version=VERSION,
                pid=os.getpid(),
                root=str(cache.root),
                root_id=cache.folder.root_id,
                layers=[str(root) for root in cache.roots[1:]],
                limit_bytes=cache.limit_bytes,
                cache_bytes=cache.space.whole_limit_bytes,
                overhead_bytes=cache.space.overhead_bytes,
            )
        )

    async def finish(self, seconds: float) -> None:
        """Waits at most `seconds` for the answers of running requests, then cancels them."""
        await self._long_requests.finish(seconds)

    def close(self) -> None:
        """Closes all connections when what was sent is out."""
        for client in list(self._clients):
            client.close()

    # ------------------------------------------------------------ requests

    def take(self, client: ClientConnection, request: Request) -> None:
        """Handles one message of a greeted client. Errors of a session or a request are sent to it.

        Raises:
            StreamerError: the connection has to end, since the message is not allowed or exceeds a limit.
        """
        state = self._clients[client]
        match request:
            case OpenSession():
                self._open(client, state, request)
            case Extend() | Advance() | Reject():
                self._step(client, state, request)
            case CloseSession():
                self._proofs.drop(client, request.session)
                if (session := state.sessions.pop(request.session, None)) is not None:
                    session.close()
            case GetManifest() | Read() | ShareCache():
                self._long_requests.start(client, state.requests, request)
            case GetStatistics():
                client.send(Statistics(request.request, self.statistics()))
            case ReportFinding():
                bottleneck = request.bottleneck if request.bottleneck in BOTTLENECKS else BOTTLENECKS[-1]
                report = msgspec.structs.replace(request, bottleneck=bottleneck, advice=one_line(request.advice))
                for reported in self._sessions_of(client, request):
                    reported.keep_report(report)
            case ReportError():
                if any(self._sessions_of(client, request)):
                    self._errors.log(one_line(request.job), one_line(request.consumer), one_line(request.error))
            case _:
                raise ProtocolError(f"{type(request).__name__} out of turn")

    def _open(self, client: ClientConnection, state: _ClientState, request: OpenSession) -> None:
        """Opens a session once access to its parts is proved; ProtocolError if its number is taken, or too many are."""
        number = request.session
        consumer = one_line(request.consumer)
        is_open = number in state.sessions or self._proofs.waits(client, number)
        if is_open or len(state.sessions) + self._proofs.count(client) >= MAX_SESSIONS_PER_PEER:
            raise ProtocolError(f"session {number} is open already, or there are too many")
        try:
            _check_numbers(request)
            # Parts of equal options share one object, which is read once.
            distinct = {part.options: part.options for part in request.parts}
            options_bytes = sum(len(options.encoded) for options in distinct)
            if options_bytes > _MAX_OPTIONS_BYTES:
                raise ConfigError(
                    f"the storage_options of the parts of one session have {options_bytes:,} bytes; at most "
                    f"{_MAX_OPTIONS_BYTES:,} are possible, where equal ones count once: give members of one bucket the "
                    "same options",
                    field="storage_options",
                )
            wanted = msgspec.structs.replace(
                request,
                consumer=consumer,
                options=self._long_requests.choose_options(client, state.requests, request.options),
                parts=tuple(self._part(client, state, part, distinct[part.options]) for part in request.parts),
            )
        except StreamerError as error:
            self._fail(client, error, session=number, consumer=consumer)
            return
        if all(map(self._engine.preparation.is_done, wanted.all_parts)):
            self._begin_session(client, state, number, wanted)
            return
        self._proofs.start(
            client,
            number,
            wanted.all_parts,
            opened=lambda steps: self._begin_session(
                client=client, state=state, number=number, wanted=wanted, steps=steps
            ),
            failed=lambda error: self._fail(client, error, session=number, consumer=consumer),
        )

    def _begin_session(
        self,
        client: ClientConnection,
        state: _ClientState,
        number: int,
        wanted: OpenSession,
        steps: Sequence[Extend | Advance | Reject] = (),
    ) -> None:
        """Opens a session, and handles `steps`, the messages for it that came before it was open."""
        try:
            state.sessions[number] = self._engine.open_session(
                wanted,
                on_ready=lambda through, rejects: client.send(Ready(number, through, rejects)),
                on_error=lambda error: self._fail(client, error, session=number, consumer=wanted.consumer),
            )
            client.send(Opened(number))
            for notice in self._cache_notices:
                client.send(notice)
            for step in steps:
                self._step(client, state, step)
        except StreamerError as error:
            self._fail(client, error, session=number, consumer=wanted.consumer)

    def _fail(
        self,
        client: ClientConnection,
        error: StreamerError,
        request: int = -1,
        *,
        session: int = -1,
        consumer: str = "",
    ) -> None:
        """Logs an error for the job, and sends it to the client as that of a request or a session; -1 means of none."""
        state = self._clients.get(client)
        self._errors.log(one_line(state.job if state else ""), consumer, f"{type(error).__name__}: {error}")
        client.fail(error, request, session)

    def _part(self, client: ClientConnection, state: _ClientState, part: Part, sent: StoreOptions) -> Part:
        """Returns a part with a name that can be logged and the storage options to use; its errors name the part."""
        name = one_line(part.name)
        try:
            options = self._long_requests.choose_options(client, state.requests, sent)
        except StreamerError as error:
            raise error.of_member(name) from error
        return msgspec.structs.replace(part, name=name, options=options)

    def _step(self, client: ClientConnection, state: _ClientState, request: Extend | Advance | Reject) -> None:
        """Passes a message on to its session, or keeps it until that is open; ignores it for unknown sessions."""
        if self._proofs.waits(client, request.session):
            self._proofs.keep(client, request)
            return
        session = state.sessions.get(request.session)
        if session is None:  # refused or closed, which the client has not read yet
            return
        match request:
            case Advance():
                session.advance(request.done, request.want)
            case Reject():
                session.reject(request.chunk, one_line(request.reason))
            case Extend():
                held = sum(one.progress.schedule_bytes() for one in self._engine.sessions.values())
                wanted = sum(map(len, (request.chunk, request.first, request.last, request.passes)))
                if held + wanted > self._limits.schedule_bytes:
                    raise ServiceError(
                        f"the schedules of all sessions take {held} bytes, {wanted} more exceed the "
                        f"{self._limits.schedule_bytes} that this service allows for them; give it more memory",
                        limit=self._limits.schedule_bytes,
                    )
                session.extend(EpochSchedule.read(request), request.complete)

    def _sessions_of(self, sender: ClientConnection, request: ReportFinding | ReportError) -> Iterator[EngineSession]:
        """Yields the sessions of the sender's user that have the job, dataset and consumer that a report names."""
        user = sender.credentials and sender.credentials.uid
        consumer = (request.job, request.dataset, one_line(request.consumer))
        for client, state in self._clients.items():
            if (client.credentials and client.credentials.uid) != user:
                continue
            for session in state.sessions.values():
                if (session.request.job, session.request.dataset, session.request.consumer) == consumer:
                    yield session

    # ------------------------------------------------------------ inside

    def _notice(self, key: str, text: str) -> None:
        """Sends a text about a store to clients that may wait for it, or one about the cache to all with sessions.

        `key` is that of the store's options (`options_key`), or "" for the cache.
        """
        self._count["notices"] += 1
        notice = Notice(self._count["notices"], one_line(text))
        for client, state in self._clients.items():
            datasets = (dataset for one in state.sessions.values() for dataset in one.collection.datasets)
            keys = {options_key(dataset.options) for dataset in datasets}
            if (key and state.requests.tasks) or key in keys or (not key and keys):
                client.send(notice)

    def _watch_grace(self) -> None:
        """Begins the grace time if no client is connected; the engine leaves at its end unless a client connects."""
        if self._config.grace_seconds is not None and not self._clients and self._grace is None:
            self._grace = asyncio.get_running_loop().call_later(self._config.grace_seconds, self._leave)


def one_line(text: str) -> str:
    """Returns a client's text for the log: cut, with a question mark for each character that cannot be printed."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MAX_LETTERS])


def _check_numbers(request: OpenSession) -> None:
    """Checks names and numbers of a session that is to be opened, before anything is computed with them.

    Raises:
        ProtocolError: names the field.
    """
    numbers = {
        name: getattr(request, name) for name in ("global_batch", "world_size", "start", "open_bytes", "sharers")
    }
    numbers |= {f"open_bytes of part {place}": part.open_bytes for place, part in enumerate(request.parts)}
    for name, number in numbers.items():
        if not 0 <= number < _MAX_NUMBER:
            raise ProtocolError(f"a session with {name}={number}; it is 0 to {_MAX_NUMBER - 1}")
    letters = sum(map(len, (request.job, request.order_id, request.stream, request.dataset)))
    if letters > _MAX_NAME_LETTERS:
        raise ProtocolError(f"a session whose names have {letters} letters; at most {_MAX_NAME_LETTERS}")
