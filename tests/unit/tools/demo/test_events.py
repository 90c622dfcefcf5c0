"""The datagrams from ranks to demo."""

from __future__ import annotations

import socket

from streamer.tools.demo.events import EpochEnd, Event, Indexed, Step, receive, send

EVENTS: list[Event] = [
    Indexed(rank=1, batches=32),
    Step(rank=0, epoch=2, batch=7, samples=32, loss=0.125, wait_seconds=0.5, at_seconds=1e6),
    EpochEnd(
        rank=0, epoch=3, samples=1000, loss=0.25, right=500, seconds=2.0, wait_seconds=1.0,
        longest_wait_seconds=0.5, keys="ab",
    ),
]  # fmt: skip


def test_events_arrive_whole_and_in_order() -> None:
    """What was sent is what comes out; then there is nothing."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.setblocking(False)
        for event in EVENTS:
            send(theirs, event)
        assert [receive(ours) for _ in EVENTS] == EVENTS
        assert receive(ours) is None
