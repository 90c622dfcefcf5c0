"""Tells the clients of this process about forks and its end, and starts and ends the engine of `engine="inline"` in it.

`client/engine_client.py` registers each client, `client/launcher.py` starts the engine, and
`loader/members/connections.py` ends it when the last dataset is closed. When the interpreter stops, the clients of
such an engine are shut down before it ends: otherwise they would start another one.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import Protocol

from streamer.base.child import prevent_forks
from streamer.client.settings import ClientSettings

# The module is imported by name when an engine starts here, so that other processes never load the engine's code.
_ENGINE = "streamer.service.inline"


class Client(Protocol):
    """Describes an `EngineClient` as this module uses it; a protocol, because `engine_client` imports this module.

    Attributes:
        settings: how the client finds or starts its engine.
    """

    settings: ClientSettings

    @property
    def in_use(self) -> bool:
        """Whether the client has a connection, and has not been closed."""

    def shut_down(self) -> None:
        """Closes the client: other threads that wait in it get an error. May be called from any thread."""

    def after_fork(self) -> None:
        """Drops the sockets of the parent process; called in the child of a fork."""


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def register(client: Client) -> None:
    """Adds a client to those that are told of forks and of the end of this process. It is not kept alive by this."""
    _clients.add(client)


def start_engine(configuration: Mapping[str, object]) -> None:
    """Starts an engine in a thread of this process, and returns when it listens. The interpreter's end ends it.

    Args:
        configuration: cache folder, limit, socket, grace time and file of settings, as `launcher` makes it.

    Raises:
        StreamerError: the reason why the engine did not start. A ConfigError, if no further thread may start.
    """
    engines = importlib.import_module(_ENGINE)
    _end_with_interpreter()
    # A child forked meanwhile would have a lock and a socket that no list contains yet.
    with prevent_forks():
        engines.start(configuration)


def end_idle_engines() -> None:
    """Ends the engines in this process that neither its clients nor other processes use, and waits for their end.

    Without this call they would end by themselves after their grace time. A finalizer must not call this: the engine's
    end waits for its threads, and a finalizer may run in one of them.
    """
    if (engines := sys.modules.get(_ENGINE)) is not None:
        engines.end({client.settings.socket_path for client in list(_clients) if client.in_use}, shared=False)


@functools.cache
def _end_with_interpreter() -> None:
    """Registers `_end_all` to run before the interpreter's thread pools refuse work, which is earlier than `atexit`."""
    threading._register_atexit(_end_all)  # type: ignore[attr-defined]


def _end_all() -> None:
    for client in list(_clients):
        if client.settings.inline:
            client.shut_down()
    if (engines := sys.modules.get(_ENGINE)) is not None:
        engines.end()


def _forget_parents() -> None:
    for client in list(_clients):
        client.after_fork()


os.register_at_fork(after_in_child=_forget_parents)
