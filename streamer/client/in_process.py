"""The clients of this process, and the engine in it that `engine="inline"` asks for.

Before the interpreter stops, clients and engine end in this order: otherwise the clients would start another engine.
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

# It is imported by name: the trainer's packages import nothing of the engine's side unless the user wants the engine in
# their process.
_ENGINE = "streamer.service.inline"


class Client(Protocol):
    """A client of an engine; a protocol, because `engine_client` imports this."""

    settings: ClientSettings

    @property
    def in_use(self) -> bool:
        """Whether it has a connection, and has not been closed."""

    def shut_down(self) -> None:
        """Shuts it down; may be called from any thread."""

    def after_fork(self) -> None:
        """Forgets what belongs to the parent; called in the child of a fork."""


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def register(client: Client) -> None:
    """Tells a client about forks and the end of this process, for as long as the client exists."""
    _clients.add(client)


def start_engine(configuration: Mapping[str, object]) -> None:
    """Starts an engine in this process, and returns when it listens.

    Raises:
        StreamerError: the reason why it did not start.
    """
    engines = importlib.import_module(_ENGINE)
    _end_with_interpreter()
    # A child forked meanwhile would have a lock and a socket that no list contains yet.
    with prevent_forks():
        engines.start(configuration)


def end_idle_engines() -> None:
    """Ends the engines in this process that neither its clients nor other processes use, and waits for their end.

    They would end by themselves after their grace time. Not for finalizers: an engine waits for threads in which a
    finalizer may run.
    """
    if (engines := sys.modules.get(_ENGINE)) is not None:
        engines.end({client.settings.socket_path for client in list(_clients) if client.in_use}, shared=False)


@functools.cache
def _end_with_interpreter() -> None:
    """Ends the engines before the interpreter's thread pools refuse work, which `atexit` would be too late for."""
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
