"""When a peer is late, what the store may do meanwhile, and what that costs, on a steered clock."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from streamer.fetch.presence_clock import PresenceClock
from streamer.peers.peer import Peer
from streamer.peers.transfer import PeerTransfer
from streamer.peers.watch import Watch
from tests.unit.steered_loop import SteeredLoop

NEXT = 0.01
MIB = 1 << 20


class Asked:
    """Stands for a request that is watched: the test says what arrives for it."""

    def __init__(self, loop: SteeredLoop, peer: Peer, *, due_seconds: float = 0.0, waits: float = 0.0) -> None:
        self.peer, self.late = peer, asyncio.Event()
        self._transfer = SimpleNamespace(received=0, is_waiting_for_memory=False)
        transfer = cast(PeerTransfer, self._transfer)
        self.watch = Watch(PresenceClock(), peer, transfer, self.late, due_seconds=due_seconds, grace_seconds=waits)

    def arrives(self, count: int) -> None:
        self._transfer.received += count
        self.watch.record_bytes(count)

    def waits_for_memory(self) -> None:
        self._transfer.is_waiting_for_memory = True


@pytest.fixture
def peer(loop: SteeredLoop) -> Peer:
    """A peer that is up and has answered nothing."""
    return Peer("10.0.0.2:7000")


@pytest.mark.parametrize(
    ("due_seconds", "late_seconds"), [(0.0, 0.25), (0.4, 0.25), (0.5, 0.25), (1.2, 0.6), (2.0, 1.0), (60.0, 1.0)]
)
def test_half_of_the_time_between_bounds(loop: SteeredLoop, peer: Peer, due_seconds: float, late_seconds: float):
    """A peer is late after half of the time until the chunk is needed, at least 250 ms and at most 1 s."""
    asked = Asked(loop, peer, due_seconds=due_seconds)
    loop.sleep(late_seconds - NEXT)
    assert not asked.late.is_set()
    loop.sleep(2 * NEXT)
    assert asked.late.is_set()
    assert peer.count.peer_hedges == 1


def test_a_peer_that_is_asked_to_wait_gets_that_time_as_well(loop: SteeredLoop, peer: Peer):
    """A peer that may wait for its chunk is late only after that time and the usual time."""
    asked = Asked(loop, peer, waits=0.5)
    loop.sleep(0.75 - NEXT)
    assert not asked.late.is_set()
    loop.sleep(2 * NEXT)
    assert asked.late.is_set()


def test_the_time_to_wait_ends_with_the_answer(loop: SteeredLoop, peer: Peer):
    """The time that a peer may wait ends with the beginning of its answer, after which the body is late as usual."""
    asked = Asked(loop, peer, waits=0.5)
    loop.sleep(0.7)
    asked.arrives(0)
    loop.sleep(0.05 + 0.25 - NEXT)
    assert not asked.late.is_set()
    loop.sleep(2 * NEXT)
    assert asked.late.is_set()


@pytest.mark.parametrize(("bytes_per_second", "is_late"), [(MIB + (MIB >> 3), False), (MIB - (MIB >> 3), True)])
def test_a_body_below_one_mib_per_second_is_late(loop: SteeredLoop, peer: Peer, bytes_per_second: int, is_late: bool):
    """A peer whose body comes at less than 1 MiB/s is late at the second check, after the first found it begun."""
    asked = Asked(loop, peer)
    asked.arrives(0)
    loop.sleep(0.25)
    for _ in range(5):
        asked.arrives(bytes_per_second // 20)
        loop.sleep(0.05)
    loop.sleep(NEXT)
    assert asked.late.is_set() is is_late


def test_a_body_that_waits_for_memory_is_not_late(loop: SteeredLoop, peer: Peer):
    """A body that waits for this engine's memory is not late, because it is this engine that does not read."""
    asked = Asked(loop, peer)
    asked.arrives(0)
    asked.waits_for_memory()
    loop.sleep(30.0)
    assert not asked.late.is_set()


def send_to_others(loop: SteeredLoop, peer: Peer, seconds: float) -> None:
    """Makes the peer begin an answer to another request 20 times a second."""
    for _ in range(round(20 * seconds)):
        peer.answers += 1
        loop.sleep(0.05)


def test_a_busy_peer_costs_its_budget(loop: SteeredLoop, peer: Peer):
    """A peer that answers others is busy: its budget pays for one late request, and the second one waits."""
    first, second = Asked(loop, peer), Asked(loop, peer)
    send_to_others(loop, peer, 0.3)
    assert [first.late.is_set(), second.late.is_set()] == [True, False]


def test_a_busy_peer_is_late_at_the_fourth_look(loop: SteeredLoop, peer: Peer):
    """A busy peer without budget is late at the fourth check, after four times 250 ms."""
    assert peer.budget.take(0)
    asked = Asked(loop, peer)
    send_to_others(loop, peer, 0.95)
    assert not asked.late.is_set()
    send_to_others(loop, peer, 0.1)
    assert asked.late.is_set()


def test_a_silent_peer_costs_no_budget(loop: SteeredLoop, peer: Peer):
    """A peer that answers nothing is late for each of its requests without cost to its budget."""
    several = [Asked(loop, peer) for _ in range(3)]
    loop.sleep(0.25 + NEXT)
    assert all(asked.late.is_set() for asked in several)
    assert peer.budget.take(0)


def test_races_lost_for_a_second_without_an_answer_take_it_down(loop: SteeredLoop, peer: Peer):
    """A peer that loses races for a second without any answer is down."""
    for is_down in (False, True):
        asked = Asked(loop, peer)
        loop.sleep(0.5)
        assert asked.watch.end(cancelled=True) is is_down
    assert not peer.is_up


def test_races_that_are_lost_to_a_busy_peer_do_not_take_it_down(loop: SteeredLoop, peer: Peer):
    """A busy peer that loses races stays up, since it answers others."""
    for _ in range(3):
        asked = Asked(loop, peer)
        send_to_others(loop, peer, 1.5)
        assert asked.late.is_set()
        assert not asked.watch.end(cancelled=True)
    assert peer.is_up


def test_time_in_which_this_process_is_stopped_is_not_the_peers(loop: SteeredLoop, peer: Peer):
    """The time in which this process is stopped does not make a peer late."""
    asked = Asked(loop, peer)
    loop.sleep(0.1)
    loop.be_away(5.0)
    assert not asked.late.is_set()
    loop.sleep(0.25)
    assert asked.late.is_set()


def test_the_end_is_the_end(loop: SteeredLoop, peer: Peer):
    """A request that has ended is not checked any more, and its first byte counts as an answer of the peer."""
    asked = Asked(loop, peer)
    loop.sleep(0.02)
    asked.arrives(0)
    assert not asked.watch.end(cancelled=False)
    loop.sleep(10.0)
    assert not asked.late.is_set()
    assert (peer.answers, peer.count.peer_hedges) == (1, 0)
