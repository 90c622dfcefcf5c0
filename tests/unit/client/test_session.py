"""What a session sends to the engine, and when, on a line without an engine."""

import numpy as np
import pytest

from streamer.client.session import Session
from streamer.errors import ProtocolError
from streamer.wire.frames import encode, request_decoder
from streamer.wire.messages import Advance, Extend, OpenSession, Part
from streamer.wire.schedule import EpochSchedule
from streamer.wire.store_options import StoreOptions


class Line:
    """Stands for the client's line to the engine: it keeps what is posted and sends nothing."""

    def __init__(self):
        self.posted = []

    def post(self, message, quietly=False):
        self.posted.append(message)

    def post_all(self, messages):
        self.posted += messages


@pytest.fixture
def line():
    """A line without an engine."""
    return Line()


@pytest.fixture
def session(line):
    """A session on that line."""
    return Session(line, OpenSession(7, "job", dataset="d", consumer="rank 0"))


def test_what_may_wait_travels_with_the_next_question(session, line):
    """A batch that was read may wait and travels in one message with the next one that is wanted."""
    session.want(3)
    session.done(1, flush=False)
    session.want(4)
    session.done(1)
    assert line.posted == [Advance(7, 0, 3), Advance(7, 1, 4)]


def test_what_may_wait_is_said_when_nothing_is_asked(session, line):
    """A batch that may wait is sent when the next is done without that, and nothing is sent twice."""
    session.done(2, flush=False)
    assert line.posted == []
    session.done(2)
    session.done(1)
    assert line.posted == [Advance(7, 2, -1)]


def test_a_new_engine_has_received_it(session, line):
    """The state with which a session is reopened at a new engine counts as sent."""
    session.done(2, flush=False)
    *_, last = session.reopen_messages()
    session.done(2)
    assert last == Advance(7, 2, -1)
    assert line.posted == []


def epoch_of(epoch, first_step, values=()):
    """Makes the schedule of an epoch of four chunks."""
    steps = np.arange(first_step, first_step + 4)
    return EpochSchedule(epoch, np.arange(4, dtype=np.uint32), steps, steps, np.arange(4, dtype=np.uint32), values)


def test_a_mix_is_opened_with_its_parts(line):
    """A session of a mix is opened with its parts and their credentials, which are in no repr."""
    parts = (
        Part(dataset="w", name="web", options=StoreOptions.make({"key": "hunter2"}), value=0.7, open_bytes=9),
        Part(dataset="b", name="books", value=4.0),
    )
    assert "hunter2" not in repr(parts)
    session = Session(line, OpenSession(7, "job", dataset="mix", consumer="rank 0", parts=parts))
    (opened,) = session.reopen_messages()
    assert isinstance(opened, OpenSession)
    assert opened.parts == parts
    assert "hunter2" not in repr(opened)
    assert list(request_decoder().feed(encode(opened))) == [opened]


def test_passes_and_values_go_with_the_rest_of_an_epoch(session, line):
    """A new engine gets the uses that are left, each with its pass, and the values of an epoch that is over."""
    session.extend(epoch_of(0, 0, (1.0, 4.0)))
    session.extend(epoch_of(1, 4))
    assert [message.values for message in line.posted] == [[1.0, 4.0], [1.0, 4.0]]
    assert [np.frombuffer(message.passes, "<u4").tolist() for message in line.posted] == [[0, 1, 2, 3]] * 2
    session.done(6)
    rest = [message for message in session.reopen_messages() if isinstance(message, Extend)]
    assert [np.frombuffer(message.passes, "<u4").tolist() for message in rest] == [[], [2, 3]]
    session.extend(epoch_of(2, 8))
    session.done(8)
    assert [m.values for m in session.reopen_messages() if isinstance(m, Extend)] == [[1.0, 4.0]] * 2


def test_one_dataset_costs_three_bytes_more_than_before_mixes(session, line):
    """A session of one dataset sends empty passes, values and parts, which take three bytes of a schedule."""
    steps = np.arange(4)
    session.extend(EpochSchedule(0, steps.astype(np.uint32), steps, steps))
    (extended,) = line.posted
    (opened, *_) = session.reopen_messages()
    assert (extended.passes, extended.values, opened.parts) == (b"", [], ())
    assert len(encode(extended)) == 4 + 1 + 1 + 1 + 1 + (2 + 16) + 2 * (2 + 32) + 1 + 3


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_value_is_a_finite_number(value):
    """A part's value that is negative, infinite or no number is a ProtocolError, since values are compared."""
    broken = encode(OpenSession(1, "job", "mix", "rank 0", parts=[Part("d", value=value)]))
    with pytest.raises(ProtocolError, match=r"Expected `float` [<>]= "):
        list(request_decoder().feed(broken))
