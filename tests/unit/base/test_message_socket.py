"""Messages with descriptors over a real socket pair, as between a process and its child."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from streamer.base.message_socket import MessageSocket, wait_until_readable
from streamer.errors import ConfigError
from tests import descriptors


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Raises the limit on open files to what a mix of many members needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_a_descriptor_may_have_any_number() -> None:
    """A descriptor above 1023, which select(2) refuses, can be waited for until it is readable."""
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, 1500)
    try:
        assert not wait_until_readable(high, 0.0)
        assert not wait_until_readable(high, 0.01)
        os.write(writer, b"x")
        assert wait_until_readable(high, 20.0)
    finally:
        for descriptor in (reader, writer, high):
            os.close(descriptor)


@pytest.fixture
def full_table() -> Iterator[None]:
    """Fills the table of descriptors, so that this process can get no further one."""
    with descriptors.full_table():
        yield


@pytest.fixture
def sent() -> Iterator[MessageSocket]:
    """The receiving end of a socket pair on which a message with a descriptor has been sent."""
    ours, theirs = MessageSocket.pair()
    assert ours.send(b"a batch", [ours.fileno()])
    yield theirs
    ours.close()
    theirs.close()


def test_a_descriptor_that_is_lost_is_an_error(sent: MessageSocket, full_table: None) -> None:
    """A descriptor that the kernel drops because the table is full is an error of the receiver."""
    with pytest.raises(ConfigError, match="raise RLIMIT_NOFILE"):
        sent.receive(max_descriptors=1)


def test_messages_that_have_arrived_are_read_without_waiting(sent: MessageSocket) -> None:
    """Messages that have arrived are read without waiting, with their descriptors."""
    [received] = sent.receive_available(100, max_descriptors=1)
    assert received is not None
    assert received[0] == b"a batch"
    os.close(received[1][0])
    assert list(sent.receive_available(100)) == []


def test_the_end_of_the_other_side_is_no_error() -> None:
    """After the last message, the closed other end is None to a receiver and False to a sender, and is no error."""
    ours, theirs = MessageSocket.pair()
    theirs.send(b"last")
    theirs.close()
    assert list(ours.receive_available(100)) == [(b"last", []), None]
    assert ours.receive() is None
    assert not ours.send(b"too late")
    ours.close()
    ours.close()
    assert list(ours.receive_available(100)) == []


def test_an_end_that_was_closed_with_messages_unread_has_ended() -> None:
    """An end that was closed with messages unread counts as closed, although the kernel reports a reset."""
    ours, theirs = MessageSocket.pair()
    ours.send(b"unread")
    theirs.close()
    assert ours.receive(max_descriptors=1) is None
    ours.close()


def test_an_empty_message_leaves_no_descriptor() -> None:
    """Descriptors that come with an empty message, which counts as the end, are closed."""
    ours, theirs = MessageSocket.pair()
    before = sorted(os.listdir("/proc/self/fd"))
    assert ours.send(b"", [ours.fileno(), theirs.fileno()])
    assert theirs.receive(max_descriptors=2) is None
    assert sorted(os.listdir("/proc/self/fd")) == before
    ours.close()
    theirs.close()
