"""The ring's keeper: when a ring is there, and where batches go until then."""

from __future__ import annotations

import threading

import pytest

from streamer.errors import ConfigError
from streamer.loader import keeper as keepers
from streamer.loader.control import EARLY, MEASURE, SPILL
from streamer.loader.keeper import RingKeeper, RingRules, release
from streamer.loader.window import Pending

MB = 1 << 20


@pytest.fixture
def built():
    return threading.Event()


def make(built, budget=200 * MB, **rules):
    return RingKeeper(RingRules(budget_bytes=budget, **rules), 4, lambda: None, built.set)


def placed(keeper, step, starving=False):
    pending = Pending(step, 0, step)
    assert keeper.place(pending, starving)
    return pending


def test_small_ring_is_there_at_once(built):
    """The first batch is measured and goes into the ring that was built for it."""
    keeper = make(built)
    pending = placed(keeper, 0)
    assert pending.slot == MEASURE
    ring = keeper.grant(pending, 10_000)
    assert ring is keeper.ring
    assert (pending.ring, pending.slot) == (ring, 0)
    keeper.close()


def test_large_ring_is_built_beside(built):
    """Batches go to memory of their own, marked as early, until it is collected; then into the ring."""
    hold = threading.Event()
    keeper = make(built, on_ring=lambda ring: hold.wait())
    first = placed(keeper, 0)
    assert keeper.grant(first, 5 * MB) is None
    assert (first.ring, first.slot) == (None, EARLY)
    assert placed(keeper, 1).slot == EARLY
    keeper.build()
    assert keeper.collect() is None
    hold.set()
    assert built.wait(60)
    ring = keeper.collect()
    assert ring is not None
    assert ring is keeper.ring
    assert keeper.collect() is None
    assert placed(keeper, 2).ring is ring
    keeper.close()


def test_large_ring_waits_for_the_first_batch(built):
    """Nothing is built beside the making of the first batch; a keeper that closes before has nothing to give back."""
    rings = []
    keeper = make(built, on_ring=rings.append)
    keeper.grant(placed(keeper, 0), 5 * MB)
    assert keeper._site is not None
    assert not [thread for thread in threading.enumerate() if thread.name == "streamer-ring"]
    assert keeper.collect() is None
    keeper.close()
    assert not rings


def test_error_of_building_is_raised_at_collecting(built):
    """It is not lost on the thread."""

    def fail(ring):
        raise ConfigError("no", field="pin")

    keeper = make(built, on_ring=fail)
    keeper.grant(placed(keeper, 0), 5 * MB)
    keeper.build()
    assert built.wait(60)
    with pytest.raises(ConfigError, match="no"):
        keeper.collect()


def test_closing_while_building_leaves_nothing(built):
    """The ring that nobody waits for any more gives its descriptor back."""
    rings = []
    keeper = make(built, on_ring=rings.append)
    keeper.grant(placed(keeper, 0), 5 * MB)
    keeper.build()
    keeper.close()
    assert [ring.descriptor for ring in rings] == [-1]
    assert not [thread for thread in threading.enumerate() if thread.name == "streamer-ring"]


def test_no_room_for_two_batches(built, caplog):
    """Every batch goes beside, one warning."""
    keeper = make(built, budget=MB)
    first = placed(keeper, 0)
    assert keeper.grant(first, MB) is None
    assert (first.slot, placed(keeper, 1).slot) == (SPILL, SPILL)
    assert caplog.text.count("raise ring_bytes") == 1


def test_second_oversize_batch_builds_a_larger_ring(built, monkeypatch):
    """The old one serves on until the new one is collected."""
    keeper = make(built)
    old = keeper.grant(placed(keeper, 0), 10_000)
    monkeypatch.setattr(keepers, "_AT_ONCE_BYTES", 0)
    for step, expected in ((1, False), (2, True), (3, True)):
        pending = placed(keeper, step)
        assert pending.ring is old
        assert keeper.oversize(pending, 50_000) is None
        assert (keeper._site is not None) == expected
    keeper.build()
    assert built.wait(60)
    assert keeper.ring is old
    new = keeper.collect()
    assert new is not None
    assert new.shape.slot_bytes >= 50_000
    assert old.descriptor == -1
    pending = placed(keeper, 4)
    release(pending)
    assert new.free == new.shape.slots
    keeper.close()
