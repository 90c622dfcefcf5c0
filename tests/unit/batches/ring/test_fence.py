"""Points in the work of a device."""

from __future__ import annotations

from streamer.batches.ring.pinning import Fence
from tests.unit.loader.fake_event import FakeEvent


def test_fence_of_an_event():
    """An event answers for the copies before it."""
    event = FakeEvent()
    fence = Fence(event)
    assert not fence.is_done()
    fence.wait()
    assert fence.is_done()
