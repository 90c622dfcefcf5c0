"""Connects to an engine's socket, checks which user listens there, and sends and receives messages.

`client/launcher.py` makes the connections of clients, `client/runtime_folder.py` one to each engine that it lists.
`loader/kinds/step_session.py` calls `read_statistics` and `report`, which make one of their own for a single request:
they open no session, start no engine, and may be called from any thread, while the job's client waits.

The usual folder of sockets, `/tmp/streamer-UID`, has a name that every user knows, in a folder that all may write to.
Without the check, a user who makes it first, or puts a link there, would be told a job's keys and the engine's token.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from streamer import errors
from streamer.base import linux
from streamer.base.system_limits import limit_error
from streamer.client.settings import ClientSettings
from streamer.errors import EngineUnavailableError, ServiceError, StreamerError
from streamer.version import VERSION
from streamer.wire.frames import Side, encode, event_decoder, version_error
from streamer.wire.messages import (
    PROTOCOL,
    Event,
    Failed,
    GetStatistics,
    Hello,
    Message,
    OpenSession,
    ReportError,
    ReportFinding,
    Statistics,
    Welcome,
)

logger = logging.getLogger(__name__)

_RECEIVE_BYTES = 256 * 1024
# A send fails after this time. A running engine always reads, so only a stopped one blocks a send.
_SEND_SECONDS = 30.0
_HELLO_SECONDS = 10.0
# A full queue of connections is tried again after this pause: no event tells that it has room.
_QUEUE_SECONDS = 0.01


class DisconnectedError(Exception):
    """Is raised if the engine does not answer or is gone. The caller connects again."""


class Connection:
    """Holds a socket over which the greeting has been exchanged. Making one connects. Used by one thread at a time.

    Args:
        path: path of the engine's socket.
        job: text that all ranks of the job share, or "".
        token: token that the engine may ask for, or "".
        timeout_seconds: time within which a send must make progress, the engine's queue of connections have room, and
            the greeting be answered. None means 30 s for a send and 10 s for each of the others.
        protocol: version of the protocol that the client speaks.
        external: whether the user named the path, so that other users may listen there, too (see `check_server`).

    Attributes:
        pid: id of the process that made the connection.
        welcome: the engine's answer to the greeting.

    Raises:
        DisconnectedError: no engine answers at `path`, or its queue of connections stays full.
        EngineUnavailableError: another user answers there, or the engine does not admit this one.
        ProtocolVersionError: the engine speaks another version.
        ConfigError: this process cannot wait for descriptors, or has none left, or `job` is not UTF-8.
        StreamerError: another reason for which the engine refuses, or what answers is no engine.
    """

    def __init__(
        self,
        path: Path,
        job: str,
        token: str = "",
        timeout_seconds: float | None = None,
        *,
        protocol: int = PROTOCOL,
        external: bool = False,
    ) -> None:
        linux.require_poll()
        self.pid = os.getpid()
        self._protocol = protocol
        self._decoder = event_decoder()
        self._pending: list[Event] = []
        self._timeout_seconds = timeout_seconds or _SEND_SECONDS
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise limit_error(error) or DisconnectedError(f"{path}: {error}") from error
        try:
            # Timeouts are this class's own: with those of the socket, Python would call poll(2) before each call.
            self._socket.setblocking(False)
            answer_seconds = timeout_seconds or _HELLO_SECONDS
            with contextlib.ExitStack() as on_exit:
                folder = open_socket_folder(path.parent, on_exit, external=external)
                self._enter_queue(linux.address_in(folder, path), answer_seconds)
                check_server(self._socket, folder, path, external=external)
            self.welcome = self._hello(job, token, answer_seconds)
        except StreamerError:
            # The engine answered with a refusal, so trying again does not help. Some of our errors are OSErrors, too.
            self.close()
            raise
        except PermissionError as error:
            self.close()
            raise EngineUnavailableError(
                f"no permission to connect to the engine at {path}; is this user in its group?", path=str(path)
            ) from error
        except OSError as error:
            self.close()
            raise DisconnectedError(f"{path}: {error}") from error
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"Connection(fd={self._socket.fileno()}, pending={len(self._pending)})"

    def fileno(self) -> int:
        """Returns the descriptor of the socket; -1 after `close`."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Sends a whole message; blocks while the engine does not read.

        Raises:
            DisconnectedError: the engine is gone, or reads nothing for the timeout.
            ConfigError: a text of the message is not UTF-8.
        """
        rest = memoryview(encode(message))
        try:
            while rest:
                try:
                    rest = rest[self._socket.send(rest) :]
                except BlockingIOError:
                    if not self._wait(select.POLLOUT, self._timeout_seconds):
                        raise DisconnectedError(f"takes nothing for {self._timeout_seconds:g} s") from None
        except OSError as error:
            raise DisconnectedError(str(error)) from error

    def receive(self, timeout_seconds: float | None) -> list[Event]:
        """Returns the engine's messages that have arrived, after waiting at most `timeout_seconds` for some bytes.

        None means no limit. The list is empty after the timeout, or if only a part of a message has arrived.

        Raises:
            DisconnectedError: the engine is gone.
            ProtocolError: the engine sent something that is not a message.
        """
        if self._pending:
            events, self._pending = self._pending, []
            return events
        while True:
            try:
                received = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                if not self._wait(select.POLLIN, timeout_seconds):
                    return []
            except OSError as error:
                raise DisconnectedError(str(error)) from error
            else:
                break
        if not received:
            raise DisconnectedError("the engine closed the connection")
        return list(self._decoder.feed(received))

    def shut_down(self) -> None:
        """Shuts the connection down, from any thread: a thread that waits for an event gets a DisconnectedError."""
        with contextlib.suppress(OSError):  # it is already closed
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection; idempotent."""
        self._socket.close()

    def _wait(self, event: int, timeout_seconds: float | None) -> bool:
        """Waits until the socket can be read or written; returns False after the timeout (None means no limit)."""
        # select(2) fails for descriptors above 1023, and a trainer may have that many.
        poll = select.poll()
        poll.register(self._socket, event)
        return bool(poll.poll(None if timeout_seconds is None else timeout_seconds * 1000))

    def _enter_queue(self, address: str, timeout_seconds: float) -> None:
        """Connects the socket; waits while the queue of the engine, which is busy then, is full. Raises as the class.

        Otherwise a client that is one of very many would take a running engine for a dead one, and start another.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                self._socket.connect(address)
            except BlockingIOError:  # a unix socket does not wait, whatever its timeout is: connect(2), EAGAIN
                if time.monotonic() >= deadline:
                    raise DisconnectedError(
                        f"takes no further connection for {timeout_seconds:g} s: its queue is full"
                    ) from None
                time.sleep(_QUEUE_SECONDS)
            else:
                return

    def _hello(self, job: str, token: str, timeout_seconds: float) -> Welcome:
        """Exchanges the greeting; keeps messages that came with the answer. Raises as the class, or ServiceError."""
        self.send(Hello(protocol=self._protocol, version=VERSION, pid=self.pid, job=job, token=token))
        if not (events := self.receive(timeout_seconds)):
            raise DisconnectedError(f"no answer to hello in {timeout_seconds:g} s")
        first = events[0]
        self._pending = events[1:]
        if isinstance(first, Failed):
            raise errors.from_wire(first.kind, first.message, first.details)
        if not isinstance(first, Welcome):
            raise ServiceError(f"the engine answered hello with {type(first).__name__}")
        if first.protocol != self._protocol:
            raise version_error(Side(first.protocol, first.version), Side(self._protocol, VERSION))
        return first


def open_socket_folder(folder: Path, on_exit: contextlib.ExitStack, *, external: bool) -> int:
    """Opens the folder of a socket; returns its descriptor, which `on_exit` closes.

    Args:
        folder: path of the folder.
        on_exit: closes it.
        external: whether the user named the path. Then it may be a link, and belong to any user.

    Raises:
        EngineUnavailableError: it is a link, or belongs to another user than this one and root.
        OSError: it does not exist, or cannot be opened.
    """
    flags = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", 0) | (0 if external else os.O_NOFOLLOW)
    try:
        descriptor = os.open(folder, flags)
    except OSError as error:
        if not external and error.errno in (errno.ELOOP, errno.ENOTDIR) and folder.is_symlink():
            raise EngineUnavailableError(
                f"runtime folder {folder} is a link, which another user may turn; set STREAMER_RUNTIME_DIR to a folder",
                path=str(folder),
            ) from error
        raise
    on_exit.callback(os.close, descriptor)
    owner = os.fstat(descriptor).st_uid
    if not external and owner not in (os.geteuid(), 0):
        raise EngineUnavailableError(
            f"runtime folder {folder} belongs to uid {owner}, not {os.geteuid()}; set STREAMER_RUNTIME_DIR",
            path=str(folder),
            uid=owner,
        )
    return descriptor


def check_server(connection: socket.socket, folder: int, path: Path, *, external: bool) -> None:
    """Checks that this user or root listens at the other end of a socket, where the kernel tells who does.

    If the user named the path (unix:), the owner of the socket's folder may listen as well. So may the owner of the
    socket's file, unless the folder is one like /tmp, in which all users may make files.

    Args:
        connection: the connected socket.
        folder: descriptor of the socket's folder.
        path: path of the socket.
        external: whether the user named the path.

    Raises:
        EngineUnavailableError: another user listens.
        OSError: the user named the path, and the socket's file is gone.
    """
    found = linux.peer_credentials(connection)
    if found is None:
        return
    uid = found[1]
    trusted = {os.geteuid(), 0}
    if external:
        where = os.fstat(folder)
        trusted.add(where.st_uid)
        if not where.st_mode & stat.S_ISVTX:
            trusted.add(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_uid)
    if uid not in trusted:
        expected = " or ".join(map(str, sorted(trusted)))
        raise EngineUnavailableError(
            f"user {uid} listens at {path}, and not {expected}: nothing was sent; name the socket of your engine in "
            "STREAMER_ENGINE, in a folder that only its user may write to",
            path=str(path),
            uid=uid,
        )


def read_statistics(settings: ClientSettings, timeout_seconds: float) -> Mapping[str, object] | None:
    """Asks a running engine for its statistics, over a connection of its own.

    Args:
        settings: which engine.
        timeout_seconds: time for each step of connecting, and from the call on for the statistics.

    Returns:
        The statistics by name (`engine/statistics.py`). None if no engine answers in time, it refuses, or
            `settings` name no valid socket or token.
    """
    deadline = time.monotonic() + timeout_seconds
    try:
        with contextlib.closing(_connect(settings, timeout_seconds)) as connection:
            connection.send(GetStatistics(1))
            while (left_seconds := deadline - time.monotonic()) > 0:
                for event in connection.receive(left_seconds):
                    if isinstance(event, Statistics):
                        return dict(event.values)
    except (DisconnectedError, StreamerError) as error:
        logger.debug("no answer of the engine of %s: %s", settings.cache_dir, error)
    return None


def report(
    settings: ClientSettings, session: OpenSession, timeout_seconds: float, what: ReportFinding | Exception
) -> bool:
    """Reports to the engine why a loader waits, for `streamer top` and /metrics, or an error that the loader raises.

    It is sent over a connection of its own. A failure, wrong `settings` included, is not an error.

    Args:
        settings: which engine, and the job.
        session: session of the loader.
        timeout_seconds: time for each step of connecting and sending.
        what: the finding, without its session, or the error.

    Returns:
        Whether it was sent.
    """
    try:
        with contextlib.closing(_connect(settings, timeout_seconds)) as connection:
            if isinstance(what, Exception):
                connection.send(ReportError.make(settings.job, session.dataset, session.consumer, what))
            else:
                connection.send(what.assign_to(settings.job, session.dataset, session.consumer))
    except (DisconnectedError, StreamerError) as error:
        logger.debug("the engine of %s got no report: %s", settings.cache_dir, error)
        return False
    return True


def _connect(settings: ClientSettings, timeout_seconds: float) -> Connection:
    return Connection(
        settings.socket_path,
        settings.job,
        settings.token(),
        timeout_seconds,
        external=settings.external and settings.is_configured,
    )
