"""Registering the ring with CUDA, against a runtime that does what it is told."""

from __future__ import annotations

import pytest

from streamer.errors import ConfigError
from streamer.loader.pinning import Pinner, pieces
from streamer.loader.ring import Ring, Shape
from tests.unit.loader.fake_event import FakeEvent


class FakeCuda:
    """Remembers registrations; fails at the n-th with a code."""

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


def ring() -> Ring:
    return Ring(1, Shape(4, 8192), lambda: None)


def test_pieces_end_on_slots():
    """No slot lies in two registrations; a slot larger than a piece is one piece."""
    assert list(pieces(5, 4096, 8192)) == [(0, 8192), (8192, 8192), (16384, 4096)]
    assert list(pieces(2, 16384, 8192)) == [(0, 16384), (16384, 16384)]


def test_registered_and_fenced():
    """Success: pinned, dead slots wait for an event of the trainer's stream; close waits and unregisters."""
    cuda, made = FakeCuda(), ring()
    pinner = Pinner(cuda, required=False)
    pinner.register(made)
    assert pinner.pinned
    assert cuda.registered == {made.address: 4 * 8192}
    lent = made.lend(made.take())
    del lent
    made.reclaim()
    assert made.free == 3
    pinner.fence()
    made.reclaim()
    assert made.free == 3
    cuda.events[0].passed = True
    made.reclaim()
    assert made.free == 4
    lent = made.lend(made.take())
    del lent
    pinner.fence()
    pinner.close()
    assert cuda.events[1].passed
    assert cuda.registered == {}
    made.close()


@pytest.mark.parametrize("code", [1, 2, 712])
def test_failure_is_one_warning(code, caplog):
    """It goes on unpinned: what was registered is taken back, the error cleared, one warning for all rings."""
    cuda, rings = FakeCuda(fail_at=0, code=code), [ring(), ring()]
    pinner = Pinner(cuda, required=False)
    for made in rings:
        pinner.register(made)
        assert not made.fencing
        made.close()
    assert not pinner.pinned
    assert cuda.sticky == 0
    assert cuda.registered == {}
    assert caplog.text.count(f"code {code}") == 1


def test_failure_at_a_later_piece(monkeypatch):
    """A ring is registered whole or not at all."""
    monkeypatch.setattr("streamer.loader.pinning.pieces", lambda slots, size: iter([(0, 8192), (8192, 8192)]))
    cuda, made = FakeCuda(fail_at=1), ring()
    Pinner(cuda, required=False).register(made)
    assert cuda.calls == 2
    assert cuda.registered == {}
    made.close()


def test_required():
    """`pin=True`: a failure is an error that names the knob."""
    made = ring()
    with pytest.raises(ConfigError, match="pin=True") as caught:
        Pinner(FakeCuda(fail_at=0), required=True).register(made)
    assert caught.value.details["field"] == "pin"
    made.close()
    del caught


def test_modes_without_cuda():
    """Without CUDA there is nothing to pin, unless it was demanded."""
    assert Pinner.for_mode("auto") is None
    assert Pinner.for_mode(False) is None
    with pytest.raises(ConfigError, match="no CUDA device"):
        Pinner.for_mode(True)
