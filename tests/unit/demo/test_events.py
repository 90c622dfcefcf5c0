"""The datagrams from ranks to demo."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamer.demo.events import EpochEnd, Event, Indexed, Receiver, Sender, Step

EVENTS: list[Event] = [
    Indexed(rank=1, batches=32, samples=1000),
    Step(rank=0, epoch=2, batch=7, samples=32, loss=0.125, wait_seconds=0.5, at_seconds=1e6),
    EpochEnd(
        rank=0, epoch=3, samples=1000, loss=0.25, right=500, seconds=2.0, wait_seconds=1.0,
        longest_wait_seconds=0.5, keys="ab",
    ),
]  # fmt: skip


def test_events_arrive_whole_and_in_order(tmp_path: Path) -> None:
    """What was sent is what comes out; then there is nothing."""
    with Receiver(tmp_path / "s") as receiver:
        sender = Sender(tmp_path / "s")
        for event in EVENTS:
            sender.send(event)
        assert [receiver.receive() for _ in EVENTS] == EVENTS
        assert receiver.receive() is None
        sender.close()


def test_a_rank_without_a_listener_fails_at_once(tmp_path: Path) -> None:
    """No demo, no training for it."""
    with pytest.raises(FileNotFoundError):
        Sender(tmp_path / "nobody")
