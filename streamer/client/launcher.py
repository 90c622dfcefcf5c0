"""Connects to the engine of a cache folder, and starts it if none runs: one engine, however many ranks start at once.

Used by `client/engine_client.py`; `loader/members/member.py` asks where the log is. To start an engine, a process takes
`spawn.lock` and connects once more, because another rank may have been faster. Then it starts the engine and waits
until the engine writes a ready line to a pipe. The engine is a process of its own, which ends after its last
connection; with `engine="inline"` it is a thread here. An engine that crashes is started again a few times
(`Restarts`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import select
import signal
import stat
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from streamer import errors
from streamer.base import linux
from streamer.base.child import (
    absolute_import_paths,
    find_interpreter,
    open_standard_descriptors,
    prevent_forks,
    skip_debugger,
)
from streamer.base.logs import join_trainer
from streamer.base.system_limits import limit_error
from streamer.client.connection import Connection, DisconnectedError
from streamer.client.in_process import start_engine
from streamer.client.runtime_folder import remove_leftovers
from streamer.client.settings import ClientSettings
from streamer.client.store_variables import record_engine
from streamer.config import CACHE_SOCKET_NAME, ENGINE_VARIABLES, Environment, check_variables
from streamer.errors import ConfigError, EngineUnavailableError

logger = logging.getLogger(__name__)

_READY_LINE_BYTES = 65536
_RETRY_SECONDS = 0.2
# A wait for a service that is longer than this is logged.
_QUIET_SECONDS = 1.5
# An engine must listen within this time. Most do after 0.2 to 2 s; where a thousand interpreters start from one network
# file system, after minutes.
START_SECONDS = 300.0
# An engine that was killed is replaced at once. One that crashes at each request is replaced only this often: without a
# bound a client started 69 engines in 20 s (two cores, 2026-11-23).
MAX_RESTARTS = 5
_FIRST_PAUSE_SECONDS = 0.2
# An engine that ran for this long did not crash because of its client's request.
STEADY_SECONDS = 600.0


class Restarts:
    """Limits how often one client starts an engine again: counts the crashes since an engine last made progress.

    Progress is an answer, or a step that is ready for the first time. A connection alone is not progress: an engine
    that crashes when a session is opened has accepted the connection before. The class has no clock of its own.

    Attributes:
        crashes: number of engines since the last progress that ended, or refused connections after their start.
    """

    def __init__(self) -> None:
        self.crashes = 0
        self._connected_at: float | None = None

    def __repr__(self) -> str:
        return f"Restarts(crashes={self.crashes})"

    def record_connection(self, now: float) -> None:
        """Records that an engine accepted the connection at `now`, in seconds of a monotonic clock."""
        self._connected_at = now

    def record_progress(self) -> None:
        """Records progress: sets the number of crashes to 0."""
        self.crashes = 0

    def count_crash(self, now: float) -> float | None:
        """Counts a crash at `now`, in seconds of a monotonic clock.

        Earlier crashes are forgotten if the engine was connected for `STEADY_SECONDS`.

        Returns:
            Seconds to wait before the next start: 0 at the first crash, 0.2 at the second, then twice as many. None if
            `MAX_RESTARTS` is exceeded and no engine is to be started.
        """
        if self._connected_at is not None and now - self._connected_at >= STEADY_SECONDS:
            self.crashes = 0
        self._connected_at = None
        self.crashes += 1
        if self.crashes > MAX_RESTARTS:
            return None
        return 0.0 if self.crashes == 1 else _FIRST_PAUSE_SECONDS * 2 ** (self.crashes - 2)


# Keys of the last warnings of `warn_once`: a rank has several connections, and one line suffices for all of them.
_warned: deque[str] = deque(maxlen=64)


def warn_once(key: str, text: str) -> None:
    """Logs `text` as a warning unless one of the last 64 such warnings of this process had the same key."""
    if key not in _warned:
        _warned.append(key)
        logger.warning("%s", text)


def connect(settings: ClientSettings, restarts: Restarts | None = None) -> Connection:
    """Returns a connection to the engine that `settings` name; starts an embedded engine if none runs.

    It blocks until an engine answers, and logs a warning about variables of the environment that have no effect. It
    also opens closed standard descriptors, and sets up a trainer's log (`logs.join_trainer`).

    Args:
        settings: which engine.
        restarts: crashes counted so far, to which this call adds. None means that there were none.

    Raises:
        EngineUnavailableError: a service does not answer within `connect_seconds`, embedded engines crash again and
            again or do not start within `START_SECONDS`, or another user listens at the socket.
        ConfigError: this process cannot have such an engine: a variable, the runtime folder, the token or the
            platform is wrong, or no further thread may start for an engine in this process.
        StreamerError: the engine's own reason for not starting or not admitting this process, such as another version.
        OSError: the system takes no further process or descriptor, or the runtime folder cannot be read.
    """
    open_standard_descriptors()
    environment = Environment.read()
    join_trainer(environment)
    # Variables that an embedded engine cannot have are refused (`engine_settings`). A service has its own settings: the
    # variables that have no effect on it are named once.
    if not settings.external:
        environment.engine_settings()
    elif without_effect := [name.upper() for name in environment.settings if name.upper() in ENGINE_VARIABLES]:
        names = ", ".join(f"STREAMER_{name}" for name in without_effect)
        warn_once(
            names,
            f"{names} has no effect here: the engine at {settings.socket_path} is a service, which has the settings "
            "that it was started with",
        )
    try:
        check_variables()
    except ConfigError as error:
        warn_once(error.message, error.message)
    restarts = Restarts() if restarts is None else restarts
    if settings.external:
        connection = _connect_when_up(settings)
    else:
        connection = _connect_or_start(settings, restarts)
        if connection.welcome.pid != os.getpid():
            record_engine(connection.welcome.pid)
    restarts.record_connection(time.monotonic())
    return connection


def pause_before_restart(settings: ClientSettings, restarts: Restarts) -> None:
    """Counts a crash of the engine in `restarts`, and sleeps until the next start may be tried (up to 1.6 s).

    Raises:
        EngineUnavailableError: more than `MAX_RESTARTS` engines have crashed since the last progress.
    """
    pause = restarts.count_crash(time.monotonic())
    if pause is None:
        where = f"it serves at {settings.socket_path}" if settings.external else f"its log is {find_log(settings)}"
        raise EngineUnavailableError(
            f"the engine of {settings.cache_dir} crashed {restarts.crashes} times in a row without progress and is not "
            f"started again; {where}",
            log="" if settings.external or settings.inline else find_log(settings),
            crashes=restarts.crashes,
        )
    time.sleep(pause)


def find_log(settings: ClientSettings) -> str:
    """Returns where an engine of these settings logs: a path, or "that of this process" for one in this process."""
    return "that of this process" if settings.inline else str(settings.runtime_dir / f"{settings.engine_id}.log")


def _connect_or_start(settings: ClientSettings, restarts: Restarts) -> Connection:
    """Connects to the embedded engine; starts one under the lock while none answers. Raises as `connect`."""
    if sys.platform == "win32":
        raise ConfigError("streamer runs on Linux; on Windows use WSL2", field="platform")
    linux.require_proc()
    linux.require_own_files()
    _make_runtime_dir(settings.runtime_dir)
    while True:
        with contextlib.suppress(DisconnectedError):
            return _connect_once(settings)
        with _spawn_lock(settings):
            with contextlib.suppress(DisconnectedError):
                return _connect_once(settings)
            remove_leftovers(settings.runtime_dir)
            if settings.inline:
                start_engine(_make_configuration(settings))
                logger.info("engine started for %s in this process", settings.cache_dir)
                started = True
            else:
                started = _start_process(settings)
        if started:
            with contextlib.suppress(DisconnectedError):
                return _connect_once(settings)
        pause_before_restart(settings, restarts)


def _connect_once(settings: ClientSettings) -> Connection:
    """Connects to the engine at its socket in the runtime folder, or else at the second one in its cache folder.

    An engine is found only by the second one if another job of this user, with a /tmp of its own, has started it, or a
    cleaner has removed the runtime folder. A service has no second one.

    Raises:
        DisconnectedError: no engine answers at either.
        StreamerError: as `Connection`.
    """
    token = settings.token()
    try:
        return Connection(
            settings.socket_path,
            settings.job,
            token,
            protocol=settings.protocol,
            external=settings.external and settings.is_configured,
        )
    except DisconnectedError:
        # The links in the path are resolved here; `Connection` follows none.
        path = Path(os.path.realpath(settings.cache_dir)) / CACHE_SOCKET_NAME
        if settings.external or not _is_own_socket(path):
            raise
        return Connection(path, settings.job, token, protocol=settings.protocol)


def _is_own_socket(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()


def _connect_when_up(settings: ClientSettings) -> Connection:
    """Connects to a service; tries again for `connect_seconds`, because it may start late or be being upgraded."""
    begun = time.monotonic()
    announced = False
    while True:
        try:
            return _connect_once(settings)
        except DisconnectedError as error:
            waited = time.monotonic() - begun
            if not announced and waited >= _QUIET_SECONDS:
                announced = True
                logger.warning(
                    "waiting for the engine at %s, which has not answered for %.1f s (%s); is `streamer serve` "
                    "running? After %.0f s this is an error",
                    *(settings.socket_path, waited, error, settings.connect_seconds),
                )
            if waited > settings.connect_seconds:
                raise EngineUnavailableError(
                    f"no engine answers at {settings.socket_path} after {settings.connect_seconds:.0f} s ({error}); "
                    "is `streamer serve` running? does STREAMER_ENGINE name its socket, is the folder mounted?",
                    path=str(settings.socket_path),
                ) from error
        # Another container's socket can only be polled: no event reports its appearance.
        time.sleep(_RETRY_SECONDS)


def _make_runtime_dir(path: Path) -> None:
    """Makes the runtime folder if it is missing; ConfigError if that fails, or it is a link or another user's."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The owner is asked of the open folder, because a path through a link may lead somewhere else at each look.
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        status = os.fstat(descriptor)
        os.close(descriptor)
    except OSError as error:
        raise ConfigError(
            f"runtime folder {path}: {error.strerror}; set STREAMER_RUNTIME_DIR", field="runtime_dir"
        ) from error
    if status.st_uid != os.getuid():
        raise ConfigError(
            f"runtime folder {path} belongs to uid {status.st_uid}, not {os.getuid()}; set STREAMER_RUNTIME_DIR",
            field="runtime_dir",
        )


@contextlib.contextmanager
def _name_folder_in_errors(path: Path) -> Iterator[None]:
    """Turns an OSError inside its `with` into a ConfigError that names the runtime folder, or the limit reached."""
    try:
        yield
    except OSError as error:
        if (limit := limit_error(error)) is not None:
            raise limit from error
        raise ConfigError(
            f"runtime folder {path}: {error.strerror}; set STREAMER_RUNTIME_DIR to a folder that can be written",
            field="runtime_dir",
        ) from error


@contextlib.contextmanager
def _spawn_lock(settings: ClientSettings) -> Iterator[None]:
    """Holds the lock of this cache folder's engine inside its `with`: one process starts the engine, others wait."""
    path = settings.runtime_dir / f"{settings.engine_id}.spawn.lock"
    with _name_folder_in_errors(settings.runtime_dir):
        descriptor = _open_lock(path)
    try:
        yield
    finally:
        # The file is removed before the lock is released: a process that waits for the lock finds the file gone, and
        # makes another one.
        path.unlink(missing_ok=True)
        # Closing is not enough: a child forked meanwhile would keep it locked.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    """Makes and locks the file at `path`, again if it was removed meanwhile. Returns its descriptor."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _start_process(settings: ClientSettings) -> bool:
    """Starts an engine process and waits until it listens; returns False if it ended before and gave no reason.

    Raises:
        StreamerError: the reason that the engine gave, or it did not start within `START_SECONDS`.
        ConfigError: its log cannot be written, or there is no Python to run it.
    """
    with contextlib.ExitStack() as on_exit:
        with prevent_forks():
            ready_read, ready_write = os.pipe()
            on_exit.callback(os.close, ready_read)
            try:
                process = _spawn(settings, ready_write)
            finally:
                os.close(ready_write)
        line = _read_line(ready_read, process, settings)
        # The process forks and its parent half exits at once: the engine is a child of init, so never a zombie.
        process.wait()
        if line == {"ready": True}:
            logger.info("engine started for %s, log %s", settings.cache_dir, find_log(settings))
            return True
        if "kind" in line:
            details = line.get("details")
            raise errors.from_wire(
                str(line["kind"]), str(line["message"]), dict(details) if isinstance(details, dict) else {}
            )
        logger.warning("the engine of %s ended before it listened; log %s", settings.cache_dir, find_log(settings))
        return False


def _spawn(settings: ClientSettings, ready: int) -> subprocess.Popen[bytes]:
    """Starts an engine process. Its configuration is sent over stdin, so that `ps` does not show it.

    Args:
        settings: which engine, and its settings.
        ready: descriptor of the pipe to which the engine writes its ready line.
    """
    with _name_folder_in_errors(settings.runtime_dir):
        log = os.open(find_log(settings), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    # The engine imports the same streamer as the trainer, even if that was found only through sys.path.
    paths = absolute_import_paths()
    try:
        with skip_debugger():
            process = subprocess.Popen(
                [find_interpreter(), "-m", "streamer.service", str(ready)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(ready,),
                start_new_session=True,
                cwd="/",
                # The engine does no linear algebra, for which OpenBLAS would start a spinning thread per core. These
                # took 26 instead of 13 ticks of CPU until the engine listened, while the workers started on the same
                # two cores (2026-11-20).
                env={
                    "OPENBLAS_NUM_THREADS": "1",
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
                },
            )
    finally:
        os.close(log)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(json.dumps(_make_configuration(settings)).encode())
    return process


def _make_configuration(settings: ClientSettings) -> dict[str, object]:
    return {
        "cache_dir": str(settings.cache_dir),
        "cache_bytes": settings.cache_bytes,
        "socket": str(settings.socket_path),
        "grace_seconds": settings.grace_seconds,
        "config": settings.config and str(settings.config),
    }


def _read_line(descriptor: int, process: subprocess.Popen[bytes], settings: ClientSettings) -> dict[str, object]:
    """Reads the line of JSON in which a starting engine says that it listens, or why it does not.

    Returns:
        The line as a dict, which is empty if the engine ended without one.

    Raises:
        EngineUnavailableError: no line came within `START_SECONDS`. The engine has been killed then.
    """
    received = b""
    deadline = time.monotonic() + START_SECONDS
    # select(2) knows descriptors below 1,024 only.
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while len(received) < _READY_LINE_BYTES and not received.endswith(b"\n"):
        if not poll.poll(1000 * max(0.0, deadline - time.monotonic())):
            # The signal reaches its fork as well, which has the same process group.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise EngineUnavailableError(
                f"the engine of {settings.cache_dir} did not start within {START_SECONDS:.0f} s: "
                f"`{sys.executable} -m streamer.service` neither listens nor ends. Is {sys.executable} a Python with "
                f'streamer? Its log is {find_log(settings)}; engine="inline" needs no process',
                log=find_log(settings),
            )
        if not (piece := os.read(descriptor, 4096)):
            break
        received += piece
    try:
        line = json.loads(received or b"{}")
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}
