"""The sockets of an engine: the one that clients are told of, and one in the cache folder of an embedded engine.

A process with a /tmp of its own (a job of SLURM or systemd), or after a cleaner removed the runtime folder, finds the
engine of its cache folder by the second one. So does one that reaches the folder through a link that led somewhere else
before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from streamer.base import linux
from streamer.cache.folder import ROOT_ID, group_id
from streamer.config import CACHE_SOCKET_NAME, EngineConfig
from streamer.errors import ConfigError

logger = logging.getLogger(__name__)

MakeConnection = Callable[[], asyncio.BaseProtocol]

_BACKLOG = 1024
# A look is one stat(2); who connects meanwhile finds the socket of the cache folder.
_LOOK_SECONDS = 2.0


class Listener:
    """One listening socket at a path. Lives on the loop that opens it.

    Args:
        path: path of its file.
        config: says who may connect.
        connect: makes the protocol of each connection.
    """

    def __init__(self, path: Path, config: EngineConfig, connect: MakeConnection) -> None:
        self.path = path
        self._config = config
        self._connect = connect
        self._server: asyncio.Server | None = None
        self._identity = 0

    def __repr__(self) -> str:
        return f"Listener({str(self.path)!r})"

    async def open(self) -> None:
        """Listens; replaces what is at the path.

        Raises:
            OSError: the path cannot be bound.
        """
        listener, self._identity = bind_socket(self.path, self._config)
        self._server = await asyncio.get_running_loop().create_unix_server(
            self._connect, sock=listener, backlog=_BACKLOG
        )

    def descriptors(self) -> list[int]:
        """Returns the descriptor of the socket while it listens."""
        return [] if self._server is None else [one.fileno() for one in self._server.sockets]

    async def open_again(self) -> None:
        """Listens again if another program has removed the file; connections stay."""
        if self._server is None or self.path.exists():
            return
        former = self._server
        try:
            await self.open()
        except OSError as error:
            logger.debug("the socket %s was removed, and cannot be made again: %s", self.path, error)
            return
        former.close()
        logger.warning("the socket %s was removed by another program, and made again", self.path)

    def close(self) -> None:
        """Removes the file, unless another engine has taken the name over, and accepts no more connections."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self.path).st_ino == self._identity:
                self.path.unlink()


class Listeners:
    """The sockets of one engine, which appear again where another program removes them."""

    def __init__(self, config: EngineConfig, connect: MakeConnection) -> None:
        assert config.socket_path is not None, "checked before the engine starts"
        self._main = Listener(config.socket_path, config, connect)
        self._second: Listener | None = None
        self._cache = config.cache.directory
        self._root_id = ""
        if config.grace_seconds is not None:  # an embedded engine; the path of a service is configured
            self._second = Listener(config.cache.directory / CACHE_SOCKET_NAME, config, connect)

    async def open(self) -> None:
        """Listens.

        Raises:
            ConfigError: the configured path cannot be bound.
        """
        try:
            await self._main.open()
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {self._main.path}: {error.strerror or error}", field="socket_path"
            ) from error
        self._root_id = self._read_root_id()
        try:
            if self._second is not None:
                await self._second.open()
        except OSError as error:  # a file system without sockets, or a path that is too long here
            logger.debug("no socket in the cache folder: %s", error)
            self._second = None

    async def watch(self) -> None:
        """Makes the sockets again where they were removed, that of the cache folder once the folder is there again."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self._main.open_again()
            if self._second is not None and self._cache.is_dir() and self._read_root_id() == self._root_id:
                await self._second.open_again()

    def descriptors(self) -> list[int]:
        """Returns descriptors that a fork must not keep open."""
        return [one for listener in self._all() for one in listener.descriptors()]

    def close(self) -> None:
        """Ends both; idempotent."""
        for listener in self._all():
            listener.close()

    def _read_root_id(self) -> str:
        """Returns the id of the cache folder, which tells it from one that another engine has put in its place."""
        try:
            return (self._cache / ROOT_ID).read_text()
        except OSError:
            return ""

    def _all(self) -> list[Listener]:
        return [self._main] if self._second is None else [self._main, self._second]


@contextlib.asynccontextmanager
async def listen(config: EngineConfig, connect: MakeConnection) -> AsyncIterator[Listeners]:
    """Listens at the sockets of an engine until the block ends."""
    listeners = Listeners(config, connect)
    try:
        await listeners.open()
        yield listeners
    finally:
        listeners.close()


def bind_socket(path: Path, config: EngineConfig) -> tuple[socket.socket, int]:
    """Binds to a temporary name and renames: replaces the file of an ended engine, and answers from the first moment.

    The temporary name may be longer than the 107 bytes that the kernel takes.

    Returns:
        The socket, and the number of its file.
    """
    _make_socket_folder(path.parent, config)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with contextlib.ExitStack() as on_exit, contextlib.ExitStack() as on_error:
        listener = on_error.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.setblocking(False)
        listener.bind(linux.address_of(temporary, on_exit))
        on_error.callback(temporary.unlink, missing_ok=True)
        # It listens before it has its name: who connects then waits for the loop, and is not refused.
        listener.listen(_BACKLOG)
        # The mode refuses other users before they connect; `Admission` checks every connection.
        if config.cache.group is not None:
            os.chown(temporary, -1, group_id(config.cache.group))
        mode = 0o660 if config.cache.group is not None else 0o600
        os.chmod(temporary, 0o666 if config.service.allow_uids else mode)
        identity = os.stat(temporary).st_ino
        os.rename(temporary, path)
        on_error.pop_all()
    return listener, identity


def _make_socket_folder(folder: Path, config: EngineConfig) -> None:
    """Leaves an existing folder as its owner made it; makes a new one that appears with its rights.

    A trainer that waits for it takes a folder that it may not enter for a refusal, and waits no longer.
    """
    if folder.is_dir():
        return
    folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as outer:
        made = Path(outer, folder.name)
        made.mkdir(mode=0o700)
        if config.cache.group is not None:
            os.chown(made, -1, group_id(config.cache.group))
            made.chmod(0o750)
        if config.service.allow_uids:
            made.chmod(0o755)
        os.rename(made, folder)
