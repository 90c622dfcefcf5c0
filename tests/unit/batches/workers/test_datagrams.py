"""Waiting for descriptors between the processes of one rank."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from streamer.batches.workers.datagrams import pair, readable, receive, send
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
        assert not readable(high, 0.0)
        assert not readable(high, 0.01)
        os.write(writer, b"x")
        assert readable(high, 20.0)
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
def sent() -> Iterator[socket.socket]:
    """The end to which a message with a descriptor is on its way."""
    ours, theirs = pair()
    assert send(ours, b"a batch", [ours.fileno()])
    yield theirs
    ours.close()
    theirs.close()


def test_a_descriptor_that_is_lost_is_an_error(sent: socket.socket, full_table: None) -> None:
    """The kernel drops it where the table is full; the message without it was read as a batch without bytes."""
    with pytest.raises(ConfigError, match="raise RLIMIT_NOFILE"):
        receive(sent, 1)
