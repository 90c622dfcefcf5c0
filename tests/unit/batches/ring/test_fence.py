"""Tests of fences, points in the work of a device, with a fake event."""

from __future__ import annotations

from streamer.batches.ring.pinning import Fence
from tests.unit.loader.fake_event import FakeEvent


def test_fence_of_an_event():
    """A fence is done when its event has passed, and a wait for the fence waits for the event."""
    event = FakeEvent()
    fence = Fence(event)
    assert not fence.is_done()
    fence.wait()
    assert fence.is_done()
