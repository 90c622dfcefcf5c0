"""Opens the unix sockets of an engine, and makes them again where another program removes their files.

Used by `lifecycle.py`. Every engine listens at its configured path. An embedded engine, one that a client has started,
has a second socket in its cache folder, for processes that do not find the first one: they have a /tmp of their own
(jobs of SLURM or systemd), a cleaner has removed the runtime folder, or they know the cache folder by another path.
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
# Pause between two looks whether the files are there, one stat(2) each.
_LOOK_SECONDS = 2.0


class Listener:
    """One listening socket at a path. Lives on the loop that opens it.

    Args:
        path: path of its file.
        config: says which users may connect.
        connect: makes the protocol of each connection.
    """

    def __init__(self, path: Path, config: EngineConfig, connect: MakeConnection) -> None:
        self.path = path
        self._config = config
        self._connect = connect
        self._server: asyncio.Server | None = None
        self._identity = 0
        # Whether the file was removed and could not be made again, which was logged.
        self._is_missing = False

    def __repr__(self) -> str:
        return f"Listener({str(self.path)!r})"

    async def open(self) -> None:
        """Begins to listen; a file at the path is replaced.

        Raises:
            OSError: the path cannot be bound.
            ConfigError: the group of the cache does not exist.
        """
        listener, self._identity = bind_socket(self.path, self._config)
        self._server = await asyncio.get_running_loop().create_unix_server(
            self._connect, sock=listener, backlog=_BACKLOG
        )

    def descriptors(self) -> list[int]:
        """Returns the descriptor of the socket; an empty list while it does not listen."""
        return [] if self._server is None else [one.fileno() for one in self._server.sockets]

    async def open_again(self) -> None:
        """Makes the socket again if another program has removed its file; connections stay.

        A failure is logged: the path cannot be bound, or the group of the cache does not exist any more.
        """
        if self._server is None or self.path.exists():
            return
        former = self._server
        try:
            await self.open()
        except (OSError, ConfigError) as error:
            # It is tried again every two seconds.
            log = logger.debug if self._is_missing else logger.warning
            log("the socket %s was removed, and cannot be made again: %s; open connections stay", self.path, error)
            self._is_missing = True
            return
        self._is_missing = False
        former.close()
        logger.warning("the socket %s was removed by another program, and made again", self.path)

    def reload(self, config: EngineConfig) -> None:
        """Takes over who may connect, by the rights of the file.

        Raises:
            ConfigError: the group does not exist, or this user may not give it the file.
        """
        try:
            if self._server is not None and os.stat(self.path).st_ino == self._identity:
                _set_rights(self.path, config)
        except FileNotFoundError:
            pass  # `open_again` makes it with these rights
        except OSError as error:
            raise ConfigError(f"cannot change the rights of {self.path}: {error.strerror}", field="group") from error
        self._config = config

    def close(self) -> None:
        """Accepts no more connections, and removes the file, unless it is another engine's by now. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self.path).st_ino == self._identity:
                self.path.unlink()


class Listeners:
    """The one or two sockets of an engine.

    Args:
        config: configuration of the engine, with a socket path.
        connect: makes the protocol of each connection.
    """

    def __init__(self, config: EngineConfig, connect: MakeConnection) -> None:
        assert config.socket_path is not None, "checked before the engine starts"
        self._main = Listener(config.socket_path, config, connect)
        self._second: Listener | None = None
        self._cache = config.cache.directory
        self._root_id = ""
        if config.grace_seconds is not None:  # an embedded engine; the path of a service is configured
            self._second = Listener(config.cache.directory / CACHE_SOCKET_NAME, config, connect)

    async def open(self) -> None:
        """Begins to listen at both sockets; goes without the second one if the cache folder cannot have it.

        Raises:
            ConfigError: the configured path cannot be bound, or the group of the cache does not exist.
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
        """Makes removed sockets again until it is cancelled; the second one only in the cache folder of the start."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self._main.open_again()
            if self._second is not None and self._cache.is_dir() and self._read_root_id() == self._root_id:
                await self._second.open_again()

    def descriptors(self) -> list[int]:
        """Returns descriptors that a fork must not keep open."""
        return [one for listener in self._all() for one in listener.descriptors()]

    def reload(self, config: EngineConfig) -> None:
        """Takes over who may connect; raises ConfigError as `Listener.reload`."""
        for listener in self._all():
            listener.reload(config)

    def close(self) -> None:
        """Closes the sockets; idempotent."""
        with contextlib.ExitStack() as on_exit:
            for listener in self._all():
                on_exit.callback(listener.close)

    def _read_root_id(self) -> str:
        """Returns the id of the folder at the cache's path, which tells whether it was replaced; "" without one."""
        try:
            return (self._cache / ROOT_ID).read_text(errors="replace")
        except OSError:
            return ""

    def _all(self) -> list[Listener]:
        return [self._main] if self._second is None else [self._main, self._second]


@contextlib.asynccontextmanager
async def listen(config: EngineConfig, connect: MakeConnection) -> AsyncIterator[Listeners]:
    """Listens at the sockets of an engine until the block ends; see `Listeners` for args, its `open` for errors."""
    listeners = Listeners(config, connect)
    try:
        await listeners.open()
        yield listeners
    finally:
        listeners.close()


def bind_socket(path: Path, config: EngineConfig) -> tuple[socket.socket, int]:
    """Makes a listening unix socket, with rights that let in all that may connect, and its folder if it is missing.

    The socket is bound to a temporary name, which is then renamed: this replaces the file of an ended engine, and the
    path never leads to a socket that does not listen.

    Returns:
        The socket, and the inode of its file.

    Raises:
        OSError: the folder cannot be made, the path not bound, or its rights not set.
        ConfigError: the group of the cache does not exist.
    """
    _make_socket_folder(path.parent, config)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with contextlib.ExitStack() as on_exit, contextlib.ExitStack() as on_error:
        listener = on_error.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.setblocking(False)
        # The temporary name may be longer than the 107 bytes that the kernel takes.
        listener.bind(linux.address_of(temporary, on_exit))
        on_error.callback(temporary.unlink, missing_ok=True)
        # It listens before it has its name: a client that connects then waits for the loop, and is not refused.
        listener.listen(_BACKLOG)
        _set_rights(temporary, config)
        identity = os.stat(temporary).st_ino
        os.rename(temporary, path)
        on_error.pop_all()
    return listener, identity


def _set_rights(path: Path, config: EngineConfig) -> None:
    """Sets group and mode of a socket's file, which refuse other users before `Admission` checks their connection."""
    if config.cache.group is not None:
        os.chown(path, -1, group_id(config.cache.group))
    mode = 0o660 if config.cache.group is not None else 0o600
    os.chmod(path, 0o666 if config.service.allow_uids else mode)


def _make_socket_folder(folder: Path, config: EngineConfig) -> None:
    """Makes the folder of a socket, with rights that let in all that may connect; leaves an existing one as it is.

    The folder appears with its rights: a trainer that waits for the socket gives up at a folder that it may not enter.
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
