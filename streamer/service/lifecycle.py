"""How an engine comes to life: one per cache folder, a socket that never points at nothing, a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from streamer.config import EngineConfig
from streamer.engine.engine import Engine
from streamer.errors import CacheError, ConfigError
from streamer.service.peer import Peer
from streamer.service.server import Server

logger = logging.getLogger(__name__)

# How long a starting engine waits for the one that is leaving the same folder.
LOCK_SECONDS = 10.0


async def run(config: EngineConfig, listening: Callable[[], None]) -> None:
    """Runs an engine until its last connection has been gone for the grace time, or SIGTERM or SIGINT comes.

    Args:
        config: complete, with a socket path.
        listening: called once when clients can connect.

    Raises:
        ConfigError, CacheError: the folder or the socket cannot be used.
    """
    if config.socket_path is None:
        raise ConfigError("an engine needs a socket path", field="socket_path")
    _make_cache_dir(config.cache.directory)
    leave = asyncio.Event()
    with _only_engine(config.cache.directory):
        async with Engine(config) as engine, asyncio.TaskGroup() as tasks:
            server = Server(config, engine, tasks, leave.set)
            async with _listening(config.socket_path, server, 0o660 if config.cache.group else 0o600):
                _leave_on_signals(leave)
                listening()
                await leave.wait()
            server.close()


def _make_cache_dir(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CacheError(f"cache folder {directory}: {error.strerror}; choose another cache_dir") from error


@contextlib.contextmanager
def _only_engine(directory: Path) -> Iterator[None]:
    """Holds a lock on the cache folder itself for life: the kernel frees it with the process.

    Raises:
        CacheError: another engine keeps it.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor, directory)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise CacheError(
                    f"{directory} is in use by another engine; one engine per cache folder: connect to that one "
                    "(STREAMER_ENGINE=unix:/its/socket) or choose another cache_dir",
                    where=str(directory),
                ) from None
        # flock has no time-out of its own, and a thread that waits for it could not be ended.
        time.sleep(0.05)


@contextlib.asynccontextmanager
async def _listening(path: Path, server: Server, mode: int) -> AsyncIterator[None]:
    """Binds to a temporary name and renames: a dead socket file does no harm, a live one always answers."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        listener = await asyncio.get_running_loop().create_unix_server(
            lambda: Peer(server), str(temporary), backlog=1024
        )
        os.chmod(temporary, mode)
        identity = os.stat(temporary).st_ino
        os.rename(temporary, path)
    except OSError as error:
        raise ConfigError(f"cannot listen at {path}: {error.strerror}", field="socket_path") from error
    try:
        yield
    finally:
        listener.close()
        _remove_socket(path, identity)


def _remove_socket(path: Path, identity: int) -> None:
    """Removes the socket unless another engine has taken the name over."""
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path).st_ino == identity:
            path.unlink()


def _leave_on_signals(leave: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave.set)
