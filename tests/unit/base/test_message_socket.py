"""Messages and descriptors between a process and its child."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from streamer.base.message_socket import MessageSocket, wait_until_readable
from streamer.errors import ConfigError


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """The limit that a mix of many members has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_a_descriptor_may_have_any_number() -> None:
    """Also above 1023, which select(2) refuses; without bytes it is not readable."""
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
    """No further descriptor for this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest, held = max(map(int, os.listdir("/proc/self/fd"))), [os.open("/dev/null", os.O_RDONLY)]
    while held[-1] < highest:
        held.append(os.open("/dev/null", os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(highest, held[-1]) + 1, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for descriptor in held:
        os.close(descriptor)


@pytest.fixture
def sent() -> Iterator[MessageSocket]:
    """The end to which a message with a descriptor is on its way."""
    ours, theirs = MessageSocket.pair()
    assert ours.send(b"a batch", [ours.fileno()])
    yield theirs
    ours.close()
    theirs.close()


def test_a_descriptor_that_is_lost_is_an_error(sent: MessageSocket, full_table: None) -> None:
    """The kernel drops it where the table is full; the message without it was read as a batch without bytes."""
    with pytest.raises(ConfigError, match="raise RLIMIT_NOFILE"):
        sent.receive(max_descriptors=1)


def test_messages_that_have_arrived_are_read_without_waiting(sent: MessageSocket) -> None:
    """Also by an end that waits; those that were sent before the other end was closed come first."""
    [received] = sent.receive_available(100, max_descriptors=1)
    assert received is not None
    assert received[0] == b"a batch"
    os.close(received[1][0])
    assert list(sent.receive_available(100)) == []


def test_the_end_of_the_other_side_is_no_error() -> None:
    """It is None to who receives, False to who sends, and nothing follows it."""
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
    """The kernel reports a reset."""
    ours, theirs = MessageSocket.pair()
    ours.send(b"unread")
    theirs.close()
    assert ours.receive(max_descriptors=1) is None
    ours.close()
