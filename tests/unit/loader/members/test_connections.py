"""Tests of the connections of a dataset to its engine: lent to one user at a time, given back, closed, forked.

Tests marked `process` start a real engine; the others make clients that do not connect.
"""

from __future__ import annotations

import os
import threading

import pytest

from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.errors import ClosedError
from streamer.loader.members.connections import EngineConnections


@pytest.fixture
def connections(tmp_path):
    """Makes connections to an engine that the first request starts."""
    settings = ClientSettings(
        cache_dir=tmp_path / "cache", runtime_dir=tmp_path / "run", cache_bytes=8 << 20, grace_seconds=0.1
    )
    made = EngineConnections(lambda: EngineClient(settings))
    yield made
    made.close()


def test_nobody_gets_a_line_that_somebody_has(connections):
    """A connection is lent to one user at a time, and one that is given back is lent again."""
    taken = [connections.take() for _ in range(3)]
    assert len(set(map(id, taken))) == 3
    connections.give_back(taken[1])
    assert connections.take() is taken[1]
    with connections.for_requests() as fourth:
        assert fourth not in taken
    with connections.for_requests() as again:
        assert again is fourth
    assert repr(connections) == "EngineConnections(4, 1 free)"


def test_a_session_comes_back_to_its_line(connections):
    """The next session of a loader takes the connection of its last one.

    The engine so hears of the end of the one before the beginning of the other.
    """
    one, other = connections.take(), connections.take()
    connections.give_back(other)
    connections.give_back(one)
    assert connections.take(one) is one
    assert connections.take(one) is other, "somebody is on it"
    assert connections.take(None) not in (one, other)


def test_questions_leave_the_line_of_the_last_session(connections):
    """A question takes the connection that has been free for longest.

    The loader of the last session opens its next one on the other at once.
    """
    asked, session = connections.take(), connections.take()
    connections.give_back(asked)
    connections.give_back(session)
    assert connections.take() is asked


def test_threads_never_share_a_line(connections):
    """Eight threads that take and give back connections never have the same one at a time."""
    hands: dict[int, int] = {}
    shared = []

    def work(number: int) -> None:
        connection = None
        for _ in range(300):
            connection = connections.take(connection)
            if hands.setdefault(id(connection), number) != number:
                shared.append(connection)
            hands.pop(id(connection), None)
            connections.give_back(connection)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not shared
    assert len(connections._all) == len(connections._free) <= 8


@pytest.mark.process
def test_close_reaches_a_thread_that_waits(connections):
    """`close` gives a waiting thread a `ClosedError`.

    Its connection ends when it is given back, and the next use makes a new one.
    """
    connection = connections.take()
    connection.roots()
    waits, heard = threading.Event(), []

    def wait() -> None:
        waits.set()
        try:
            connection.pump_until(lambda: False, None, "for ever")
        except ClosedError as error:
            heard.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    waits.wait()
    connections.close()
    thread.join(30)
    assert not thread.is_alive()
    assert "closed while it was in use" in heard[0]
    connections.give_back(connection)
    assert connection._poll is None, "its descriptors are gone"
    assert connections.take() is not connection


def test_a_line_that_is_closed_meanwhile_is_not_lent_again(connections):
    """Connections that were free or in use at `close` are closed and not lent again."""
    free, taken = connections.take(), connections.take()
    connections.give_back(free)
    connections.close()
    connections.give_back(taken)
    assert free.closed
    assert taken.closed
    assert connections.take(taken) not in (free, taken)
    connections.close()
    connections.close()


def test_the_lines_of_an_opening_that_is_gone_are_closed(tmp_path):
    """Connections are closed when the object that owns them is dropped."""
    made = EngineConnections(lambda: EngineClient(ClientSettings(cache_dir=tmp_path, runtime_dir=tmp_path)))
    connection = made.take()
    del made
    assert connection.closed


@pytest.mark.process
def test_a_child_of_a_fork_has_lines_of_its_own(connections):
    """A forked child uses a free connection over a socket of its own and leaves the parent's connections alone."""
    free, parents = connections.take(), connections.take()
    for connection in (free, parents):
        connection.roots()
    connections.give_back(free)
    child = os.fork()
    if child == 0:
        with connections.for_requests() as childs:
            os._exit(0 if childs is free and childs.roots() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert parents.statistics()["connections_total"] == 3
    connections.give_back(parents)
