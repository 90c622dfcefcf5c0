"""Tests of the registration of slots with CUDA, against a fake runtime that does what it is told."""

from __future__ import annotations

import pytest

from streamer.batches.ring import shared_memory as memory
from streamer.batches.ring.pinning import Pinner
from streamer.batches.ring.ring import Limits, Ring, Slot
from streamer.errors import ConfigError
from tests.unit.loader.fake_event import FakeEvent


class FakeCuda:
    """Stands for the CUDA runtime: remembers registrations, and fails at the n-th with a code.

    It keeps the last error until it is cleared, like the real one; it registers and copies nothing.
    """

    def __init__(self, fail_at: int = -1, code: int = 2) -> None:
        self.registered: dict[int, int] = {}
        self.calls = 0
        self.fail_at, self.code = fail_at, code
        self.sticky = 0
        self.events: list[FakeEvent] = []

    def host_register(self, address: int, nbytes: int, flags: int) -> int:
        self.calls += 1
        if self.calls - 1 == self.fail_at:
            self.sticky = self.code
            return self.code
        self.registered[address] = nbytes
        return 0

    def host_unregister(self, address: int) -> int:
        del self.registered[address]
        return 0

    def clear_error(self) -> None:
        self.sticky = 0

    def fence(self) -> FakeEvent:
        self.events.append(FakeEvent())
        return self.events[-1]


def with_slots(pinner: Pinner, count: int = 4) -> tuple[Ring, list[Slot]]:
    """Makes a ring whose slots have memory and are taken."""
    ring = Ring(Limits(count, count, 1 << 20), lambda: None, pinner)
    return ring, [filled(ring) for _ in range(count)]


def filled(ring: Ring, nbytes: int = 8192) -> Slot:
    slot = ring.take(late=False)
    ring.adopt(slot, memory.create_memfd("test-slot", nbytes), nbytes)
    return slot


def test_registered_and_fenced():
    """Registered slots are pinned, and free only after an event of the trainer's stream.

    `close` waits for it and unregisters them.
    """
    cuda = FakeCuda()
    pinner = Pinner(cuda, required=False)
    made, slots = with_slots(pinner)
    assert pinner.pinned
    assert sorted(cuda.registered.values()) == [8192] * 4
    held = made.hold(slots.pop())
    del held
    made.reclaim()
    assert made.free == 0
    made.fence(pinner.fence)
    made.reclaim()
    assert made.free == 0
    cuda.events[0].passed = True
    made.reclaim()
    assert made.free == 1
    held = made.hold(slots.pop())
    del held
    made.fence(pinner.fence)
    made.wait_for_fences()
    pinner.close()
    assert cuda.events[1].passed
    assert cuda.registered == {}
    made.close()


def test_replaced_memory_is_unregistered():
    """The memory of a slot that its batch outgrew is unregistered, and the new memory registered."""
    cuda = FakeCuda()
    pinner = Pinner(cuda, required=False)
    made, slots = with_slots(pinner, 1)
    made.adopt(slots[0], memory.create_memfd("test-slot", 16384), 16384)
    assert list(cuda.registered.values()) == [16384]
    made.wait_for_fences()
    pinner.close()
    made.close()


@pytest.mark.parametrize("code", [1, 2, 712])
def test_failure_is_one_warning(code, caplog):
    """A failed registration clears the error of CUDA, warns once for all slots and tries no further."""
    cuda = FakeCuda(fail_at=0, code=code)
    pinner = Pinner(cuda, required=False)
    made, _ = with_slots(pinner)
    assert not made.fencing
    assert not pinner.pinned
    assert (cuda.calls, cuda.sticky, cuda.registered) == (1, 0, {})
    assert caplog.text.count(f"code {code}") == 1
    made.close()


def test_failure_at_a_later_slot():
    """Slots that are registered when a later one fails stay so until the end, and stay fenced."""
    cuda = FakeCuda(fail_at=1)
    pinner = Pinner(cuda, required=False)
    made, _ = with_slots(pinner)
    assert made.fencing
    assert len(cuda.registered) == 1
    made.wait_for_fences()
    pinner.close()
    assert cuda.registered == {}
    made.close()


def test_required():
    """With `pin_memory="required"` a failed registration is a `ConfigError` that names the argument."""
    ring = Ring(Limits(1, 1, 1 << 20), lambda: None, Pinner(FakeCuda(fail_at=0), required=True))
    with pytest.raises(ConfigError, match="pin_memory='required'") as caught:
        filled(ring)
    assert caught.value.details["field"] == "pin_memory"
    ring.close()


def test_modes_without_cuda():
    """Without CUDA nothing is pinned, and `required` is an error."""
    assert Pinner.from_mode("auto") is None
    assert Pinner.from_mode("off") is None
    with pytest.raises(ConfigError, match="no CUDA device"):
        Pinner.from_mode("required")
