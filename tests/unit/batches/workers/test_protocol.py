"""Tests of the messages between a rank and its workers, over a real socket."""

from __future__ import annotations

import os

import msgspec
import pytest

from streamer.batches.causes import Stages
from streamer.batches.workers.protocol import (
    Channel,
    FailedTask,
    Forget,
    Made,
    NotOpened,
    Open,
    SkippedSample,
    Task,
    Unreadable,
    WorkerReady,
)

MESSAGES = [
    Task(7, 3, 1 << 40, 2, (5, 1 << 40)),
    Task(1, 0, 0, 0),
    Open(),
    Forget(11),
    Made(9, 1 << 33, (1 << 32, 150), Stages(1, 2, 3, 4, 5, 6), 7, 8, b"\x00\x01", 1 << 40, slowest=(1 << 40, 9)),
    Made(9, 10, (0, 150), Stages(), 0, 8),
    WorkerReady(),
    NotOpened(b"pickled"),
    FailedTask(3, -1, b"pickled"),
    Unreadable(3, 17, "gone"),
    SkippedSample(3, 1 << 40, "truncated"),
]


@pytest.fixture
def ends():
    """Returns the two ends of a channel."""
    pair = Channel.pair()
    yield pair
    for end in pair:
        end.close()


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_round_trip(ends, message):
    """Every message between rank and worker arrives as it was sent."""
    assert ends[0].send(message)
    assert ends[1].receive() == (message, -1)


def test_a_result_is_a_hundred_bytes():
    """The message of a finished batch takes at most 104 bytes on the socket, and a task 48."""
    encode = msgspec.msgpack.encode
    big = Made(1 << 20, 1 << 30, (1 << 30, 150), Stages(*[1 << 31] * 6), 700, 64, slowest=(1 << 24, 1 << 31))
    assert len(encode(big)) <= 104
    assert len(encode(Task(1 << 20, 3, 1 << 20, 2))) <= 48


def test_channel_carries_memory_and_ends(ends):
    """A channel carries a descriptor; a closed end is received as None, and sending to it returns False."""
    ours, theirs = ends
    read, write = os.pipe()
    assert ours.send(Open(), read)
    os.close(read)
    message, received = theirs.receive()
    assert message == Open()
    os.write(write, b"x")
    assert os.read(received, 1) == b"x"
    os.close(received)
    os.close(write)
    theirs.close()
    assert ours.receive() is None
    assert not ours.send(Open())
