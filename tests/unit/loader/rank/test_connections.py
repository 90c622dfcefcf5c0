"""Lines to the engine: nobody shares one, none is lost, and a closed one is an error for whoever is on it."""

from __future__ import annotations

import os
import threading

import pytest

from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.errors import ClosedError
from streamer.loader.rank.connections import Lines


@pytest.fixture
def lines(tmp_path):
    """To an engine that is started by the first who needs it."""
    settings = ClientSettings(
        cache_dir=tmp_path / "cache", runtime_dir=tmp_path / "run", cache_bytes=8 << 20, grace_seconds=0.1
    )
    made = Lines(lambda: EngineClient(settings))
    yield made
    made.close()


def test_nobody_gets_a_line_that_somebody_has(lines):
    """Not even many threads at once; a line that comes back serves again."""
    taken = [lines.take() for _ in range(3)]
    assert len(set(map(id, taken))) == 3
    lines.give_back(taken[1])
    assert lines.take() is taken[1]
    with lines.asking() as fourth:
        assert fourth not in taken
    with lines.asking() as again:
        assert again is fourth
    assert repr(lines) == "Lines(4, 1 of them free)"


def test_a_session_comes_back_to_its_line(lines):
    """The engine hears of the end of one session of a loader before the beginning of the next."""
    one, other = lines.take(), lines.take()
    lines.give_back(other)
    lines.give_back(one)
    assert lines.take(one) is one
    assert lines.take(one) is other, "somebody is on it"
    assert lines.take(None) not in (one, other)


def test_questions_leave_the_line_of_the_last_session(lines):
    """Its loader opens the next one at once: the line that has been free for longest is asked on."""
    asked, session = lines.take(), lines.take()
    lines.give_back(asked)
    lines.give_back(session)
    assert lines.take() is asked


def test_threads_never_share_a_line(lines):
    """Eight threads that take and give back: each line is in one hand at a time."""
    hands: dict[int, int] = {}
    shared = []

    def work(number: int) -> None:
        line = None
        for _ in range(300):
            line = lines.take(line)
            if hands.setdefault(id(line), number) != number:
                shared.append(line)
            hands.pop(id(line), None)
            lines.give_back(line)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not shared
    assert len(lines._all) == len(lines._free) <= 8


def test_close_reaches_a_thread_that_waits(lines):
    """It gets a ClosedError, its line ends when it gives it back, and the next use makes a new one."""
    line = lines.take()
    line.roots()
    waits, heard = threading.Event(), []

    def wait() -> None:
        waits.set()
        try:
            line.pump_until(lambda: False, None, "for ever")
        except ClosedError as error:
            heard.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    waits.wait()
    lines.close()
    thread.join(30)
    assert not thread.is_alive()
    assert "closed while it was in use" in heard[0]
    lines.give_back(line)
    assert line._poll is None, "its descriptors are gone"
    assert lines.take() is not line


def test_a_line_that_is_closed_meanwhile_is_not_lent_again(lines):
    """Neither the one that comes back after the end, nor the one that was free."""
    free, taken = lines.take(), lines.take()
    lines.give_back(free)
    lines.close()
    lines.give_back(taken)
    assert free.closed
    assert taken.closed
    assert lines.take(taken) not in (free, taken)
    lines.close()
    lines.close()


def test_the_lines_of_an_opening_that_is_gone_are_closed(tmp_path):
    """Garbage collection ends them."""
    made = Lines(lambda: EngineClient(ClientSettings(cache_dir=tmp_path, runtime_dir=tmp_path)))
    line = made.take()
    del made
    assert line.closed


def test_a_child_of_a_fork_has_lines_of_its_own(lines):
    """It leaves the parent's session alone, and what is free serves it over a connection of its own."""
    free, parents = lines.take(), lines.take()
    for line in (free, parents):
        line.roots()
    lines.give_back(free)
    child = os.fork()
    if child == 0:
        with lines.asking() as childs:
            os._exit(0 if childs is free and childs.roots() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert parents.statistics()["connections_total"] == 3
    lines.give_back(parents)
