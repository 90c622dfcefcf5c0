"""Finds the engine of a cache folder, or starts it: one engine, however many ranks start at once.

Connect; else take `spawn.lock`, connect again (another rank may have been faster), start the engine, wait for its ready
line on a pipe. The engine is a process of its own, in its own session, ended by its last connection.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from streamer import errors
from streamer.client.connection import Connection, DisconnectedError
from streamer.client.settings import ClientSettings
from streamer.errors import ConfigError, EngineUnavailableError
from streamer.forks import unforked

logger = logging.getLogger(__name__)

_READY_LINE_BYTES = 65536
_RETRY_SECONDS = 0.2


def connect(settings: ClientSettings) -> Connection:
    """Returns a connection to the engine that `settings` names, starting the embedded one if need be.

    Raises:
        EngineUnavailableError: nobody answered in `connect_seconds`, or the engine ended at once.
        StreamerError: what the engine said when it could not start (cache folder, limit, version).
    """
    if settings.external:
        return _connect_patiently(settings)
    if sys.platform == "win32":
        raise ConfigError("streamer runs on Linux; on Windows use WSL2", field="platform")
    _make_runtime_dir(settings.runtime_dir)
    deadline = time.monotonic() + settings.connect_seconds
    while True:
        # Tried once more when the time is over: a process that was stopped has not seen that the engine is ready.
        with contextlib.suppress(DisconnectedError):
            return Connection(settings.socket_path, settings.job, settings.token())
        if time.monotonic() > deadline:
            break
        _start_if_nobody_did(settings)
    raise EngineUnavailableError(
        f"the engine of {settings.cache_dir} starts and does not stay ({settings.connect_seconds:.0f} s); "
        f"its log is {log_path(settings)}",
        log=str(log_path(settings)),
    )


def log_path(settings: ClientSettings) -> Path:
    """Where the embedded engine writes its log."""
    return settings.runtime_dir / f"{settings.engine_id}.log"


def _start_if_nobody_did(settings: ClientSettings) -> None:
    with _spawn_lock(settings):
        with contextlib.suppress(DisconnectedError):
            Connection(settings.socket_path, settings.job, settings.token()).close()
            return
        _start(settings)


def _connect_patiently(settings: ClientSettings) -> Connection:
    """Waits for a sidecar that starts late or is being upgraded."""
    deadline = time.monotonic() + settings.connect_seconds
    while True:
        try:
            return Connection(settings.socket_path, settings.job, settings.token())
        except DisconnectedError as error:
            if time.monotonic() > deadline:
                raise EngineUnavailableError(
                    f"no engine answers at {settings.socket_path} after {settings.connect_seconds:.0f} s ({error}); "
                    "is `streamer serve` running? does STREAMER_ENGINE name its socket, is the folder mounted?",
                    path=str(settings.socket_path),
                ) from error
        # Another container's socket can only be tried: no event tells that it appeared.
        time.sleep(_RETRY_SECONDS)


def _make_runtime_dir(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
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
def _spawn_lock(settings: ClientSettings) -> Iterator[None]:
    descriptor = os.open(
        settings.runtime_dir / f"{settings.engine_id}.spawn.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # To close it is not enough: somebody forked meanwhile would keep it locked.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _start(settings: ClientSettings) -> None:
    """Starts an engine and waits until it listens."""
    with contextlib.ExitStack() as on_exit:
        with unforked():
            ready_read, ready_write = os.pipe()
            on_exit.callback(os.close, ready_read)
            try:
                process = _spawn(settings, ready_write)
            finally:
                os.close(ready_write)
        _await_ready(ready_read, process, settings)


def _spawn(settings: ClientSettings, ready: int) -> subprocess.Popen[bytes]:
    """An engine with its configuration, which goes by stdin: nothing secret in `ps`."""
    with open(log_path(settings), "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "streamer.service", str(ready)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(ready,),
            start_new_session=True,
            cwd="/",
            env=_engine_environment(),
        )
    configuration = {
        "cache_dir": str(settings.cache_dir),
        "cache_bytes": settings.cache_bytes,
        "eviction": settings.eviction,
        "socket": str(settings.socket_path),
        "grace_seconds": settings.grace_seconds,
    }
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(json.dumps(configuration).encode())
    return process


def _engine_environment() -> dict[str, str]:
    # The engine imports the same streamer as the trainer, also when it was found through sys.path only.
    paths = [path or os.getcwd() for path in sys.path]
    # The engine does no algebra; OpenBLAS would start a thread per core, which spin: 26 ticks of CPU until the engine
    # listens instead of 13, while the workers start beside it on the same two cores (2026-11-20).
    return {"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _await_ready(descriptor: int, process: subprocess.Popen[bytes], settings: ClientSettings) -> None:
    line = _read_line(descriptor)
    # The process forks and its parent half leaves at once: an engine is nobody's child, so never a zombie.
    process.wait()
    if line == {"ready": True}:
        logger.info("engine started for %s, log %s", settings.cache_dir, log_path(settings))
        return
    if "kind" in line:
        raise errors.from_wire(str(line["kind"]), str(line["message"]), _details(line.get("details")))
    raise EngineUnavailableError(
        f"the engine of {settings.cache_dir} ended before it listened; its log is {log_path(settings)}",
        log=str(log_path(settings)),
    )


def _details(found: object) -> dict[str, errors.Detail]:
    return {str(k): v for k, v in found.items()} if isinstance(found, dict) else {}


def _read_line(descriptor: int) -> dict[str, object]:
    """Reads until the engine closes the pipe or ends."""
    received = b""
    while len(received) < _READY_LINE_BYTES and not received.endswith(b"\n"):
        if not (piece := os.read(descriptor, 4096)):
            break
        received += piece
    try:
        line = json.loads(received or b"{}")
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}
