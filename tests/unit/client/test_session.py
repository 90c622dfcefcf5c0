"""What a session tells the engine, and when."""

import pytest

from streamer.client.session import Session, SessionSpec
from streamer.wire.messages import Advance


class Line:
    """Keeps what is posted."""

    def __init__(self):
        self.posted = []

    def post(self, message, quietly=False):
        self.posted.append(message)


@pytest.fixture
def line():
    return Line()


@pytest.fixture
def session(line):
    return Session(line, 7, SessionSpec(dataset="d", consumer="rank 0"))


def test_what_may_wait_travels_with_the_next_question(session, line):
    """One message for a batch that was read and the one that is asked for."""
    session.want(3)
    session.done(1, flush=False)
    session.want(4)
    session.done(1)
    assert line.posted == [Advance(7, 0, 3), Advance(7, 1, 4)]


def test_what_may_wait_is_said_when_nothing_is_asked(session, line):
    """Nothing is kept back, and nothing said twice."""
    session.done(2, flush=False)
    assert line.posted == []
    session.done(2)
    session.done(1)
    assert line.posted == [Advance(7, 2, -1)]


def test_a_new_engine_has_heard_it(session, line):
    """What the session is reopened with counts as said."""
    session.done(2, flush=False)
    *_, last = session.reopen_messages("job", b"{}")
    session.done(2)
    assert last == Advance(7, 2, -1)
    assert line.posted == []
