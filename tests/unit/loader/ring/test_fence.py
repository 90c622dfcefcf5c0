"""Points in the work of a device."""

from __future__ import annotations

from streamer.loader.ring.fence import EventFence
from tests.unit.loader.fake_event import FakeEvent


def test_event_fence():
    """An event answers for the copies before it."""
    event = FakeEvent()
    fence = EventFence(event)
    assert not fence.done()
    fence.wait()
    assert fence.done()
