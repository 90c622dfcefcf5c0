"""The messages between rank and workers."""

from __future__ import annotations

import os

import pytest

from streamer.loader.control import Channel, Kind, Made, Note, Payload, RingShape, Stages, Task, decode

MESSAGES = [
    Task(7, 3, 1 << 40, 2, -1, (5, 1 << 40)),
    Task(1, 0, 0, 0, 4),
    RingShape(3, 11, 1 << 30),
    Made(9, 1 << 33, (1 << 32, 150), Stages(1, 2, 3, 4, 5, 6), 7, 8, b"\x00\x01", spilled=True, slowest=(1 << 40, 9)),
    Made(9, 10, (0, 150), Stages(), 0, 8),
    Note(Kind.READY),
    Payload(),
    Note(Kind.FAILED, 3, -1, b"pickled"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_round_trip(message):
    """Every message is read as it was written."""
    assert decode(message.encode()) == message


def test_a_result_is_a_hundred_bytes():
    """What a finished batch costs on the socket; the slowest sample is 16 bytes of it."""
    assert len(MESSAGES[4].encode()) <= 104
    assert len(MESSAGES[1].encode()) <= 48


def test_channel_carries_memory_and_ends():
    """A descriptor travels along; a closed end is None, and nobody hears what is said to it."""
    ours, theirs = Channel.pair()
    read, write = os.pipe()
    assert ours.send(MESSAGES[2], read)
    os.close(read)
    message, received = theirs.receive()
    assert message == MESSAGES[2]
    os.write(write, b"x")
    assert os.read(received, 1) == b"x"
    os.close(received)
    os.close(write)
    theirs.close()
    assert ours.receive() is None
    assert not ours.send(MESSAGES[2])
    ours.close()
