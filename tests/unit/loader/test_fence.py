"""Points in the work of a device."""

from __future__ import annotations

from streamer.loader.fence import EventFence


class FakeEvent:
    """Passed once somebody waited for it."""

    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.passed = True


def test_event_fence():
    """An event answers for the copies before it."""
    event = FakeEvent()
    fence = EventFence(event)
    assert not fence.done()
    fence.wait()
    assert fence.done()
