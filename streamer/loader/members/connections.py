"""Keeps the connections of a dataset, or of a mix, to the engine, in one process; each has one user at a time.

`member.py` and `loader/kinds/kind.py` hold them. `loader/rank/` and `loader/scan_reader.py` take one for each session,
and each reader of single samples one. `streamer index` and `streamer show` make their own.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator

from streamer.client.engine_client import EngineClient
from streamer.client.in_process import end_idle_engines


class EngineConnections:
    """Keeps a pool of connections: one for each open session, one for each user of requests.

    Two threads on one connection receive each other's replies: with a refresh beside workers, two of five runs hung
    (2026-11-20). Any thread may take one and give it back. There is no lock, because a fork would copy a held one; each
    change of a list is atomic under the GIL.

    Args:
        make: Makes a further connection; it is called while all others are taken.
    """

    def __init__(self, make: Callable[[], EngineClient]) -> None:
        self._make = make
        self._all: list[EngineClient] = []
        self._free: list[EngineClient] = []
        weakref.finalize(self, _close_all, self._all, self._free)

    def __repr__(self) -> str:
        return f"EngineConnections({len(self._all)}, {len(self._free)} free)"

    def take(self, last: EngineClient | None = None) -> EngineClient:
        """Returns a connection for the caller only, until `give_back`.

        Args:
            last: Previous connection of the caller, which is used again if it is free, so that the engine receives the
                end of a session before the start of the next.
        """
        if last is not None:
            with contextlib.suppress(ValueError):
                self._free.remove(last)
                return last
        with contextlib.suppress(IndexError):
            # The one that was returned last is left to its loader, which opens its next session soon.
            return self._free.pop(0)
        made = self._make()
        self._all.append(made)
        return made

    @property
    def connected(self) -> bool:
        """Whether an engine has answered on one of them; any thread."""
        return any(connection.connected for connection in list(self._all))

    def give_back(self, connection: EngineClient) -> None:
        """Takes a connection back from its user; one that was closed meanwhile is dropped."""
        # The order counts: `close` on another thread empties `free` after it has shut the connections down.
        self._free.append(connection)
        if connection.closed:
            with contextlib.suppress(ValueError):
                self._free.remove(connection)
            connection.close()

    @contextlib.contextmanager
    def for_requests(self) -> Iterator[EngineClient]:
        """Takes a connection for the requests of a `with` block, and gives it back."""
        connection = self.take()
        try:
            yield connection
        finally:
            self.give_back(connection)

    def close_idle(self) -> None:
        """Closes the connections that no caller has taken."""
        while self._free:
            connection = self._free.pop()
            with contextlib.suppress(ValueError):
                self._all.remove(connection)
            connection.close()

    def close(self) -> None:
        """Closes all connections; threads that wait on one get a ClosedError. Later uses make new ones. Idempotent.

        An engine in this process that has no other user has ended then.
        """
        _close_all(self._all, self._free)
        end_idle_engines()


def _close_all(connections: list[EngineClient], free: list[EngineClient]) -> None:
    while connections:
        connections.pop().shut_down()
    while free:
        free.pop().close()
