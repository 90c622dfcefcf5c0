"""The connections of one data set in one process: whoever talks to the engine has one to himself."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator

from streamer.client.engine_client import EngineClient


class EngineConnections:
    """Lends connections to the engine: one for each session that lives, one for each question while it is asked.

    On one connection two threads take each other's answers: with a refresh beside workers, two of five runs hung
    (2026-11-20). Any thread may take and give back. There is no lock, for a fork would copy a held one: each change of
    a list is one step of the interpreter.

    Args:
        make: a connection that nobody has used.
    """

    def __init__(self, make: Callable[[], EngineClient]) -> None:
        self._make = make
        self._all: list[EngineClient] = []
        self._free: list[EngineClient] = []
        weakref.finalize(self, _close_all, self._all, self._free)

    def __repr__(self) -> str:
        return f"EngineConnections({len(self._all)}, {len(self._free)} of them free)"

    def take(self, last: EngineClient | None = None) -> EngineClient:
        """A connection for the caller alone, until `give_back`.

        Args:
            last: the one it had before; had again if it is free, so that the engine hears of the end of a session
                before the beginning of the next.
        """
        if last is not None:
            with contextlib.suppress(ValueError):
                self._free.remove(last)
                return last
        with contextlib.suppress(IndexError):
            # Not the one that came back last: its loader opens its next session at once.
            return self._free.pop(0)
        made = self._make()
        self._all.append(made)
        return made

    def give_back(self, connection: EngineClient) -> None:
        """Nobody uses it any more."""
        # In this order: `close` on another thread empties `free` after it has closed the connections.
        self._free.append(connection)
        if connection.closed:
            with contextlib.suppress(ValueError):
                self._free.remove(connection)
            connection.close()

    @contextlib.contextmanager
    def asking(self) -> Iterator[EngineClient]:
        """A connection for some questions."""
        connection = self.take()
        try:
            yield connection
        finally:
            self.give_back(connection)

    def close(self) -> None:
        """Ends all of them: whoever waits on one gets a ClosedError. Later uses make new ones. Idempotent."""
        _close_all(self._all, self._free)


def _close_all(connections: list[EngineClient], free: list[EngineClient]) -> None:
    while connections:
        connections.pop().shut_down()
    while free:
        free.pop().close()
