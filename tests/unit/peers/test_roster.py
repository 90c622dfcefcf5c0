"""The members of a group of engines, from the addresses that were listed and the answers that came."""

from __future__ import annotations

import msgspec
import pytest

from streamer.peers.protocol import PeerFacts
from streamer.peers.roster import Roster

ME = PeerFacts("me", "m1", 1 << 30, 1, "0")


def facts(name: str, instance: str = "1", limit_bytes: int = 1 << 30) -> PeerFacts:
    """Makes the facts of an engine as it answers a probe."""
    return PeerFacts(name, instance, limit_bytes, 1, "0")


class Warned:
    """Stands for the log: it keeps the addresses and texts of warnings."""

    def __init__(self):
        self.texts = []

    def __call__(self, address, text):
        self.texts.append((address, text))


@pytest.fixture
def warned():
    """The warnings of the roster."""
    return Warned()


@pytest.fixture
def roster(warned):
    """A roster of this engine without others."""
    return Roster(ME, warned)


def never_down(address: str) -> bool:
    """Stands for breakers that are all closed: no address is down."""
    return False


def addresses(roster: Roster) -> dict[str, str]:
    """Returns the address of each member by its id."""
    return {member.id: member.address for member in roster.members()}


def test_an_address_is_a_member_from_its_first_answer(roster):
    """An address becomes a member with its first answer, as only the answer has the id that gives chunks a home."""
    roster.record_list(["a:1", "b:1"], 0.0)
    assert roster.members() == ()
    roster.record_answer("a:1", facts("A"), 0.1)
    assert addresses(roster) == {"A": "a:1"}
    assert roster.has_unknown


def test_this_engine_is_none_of_the_others(roster, warned):
    """This engine's own address in the list is not counted among the other members."""
    roster.record_list(["a:1"], 0.0)
    roster.record_answer("a:1", ME, 0.1)
    assert roster.members() == ()
    assert not roster.has_unknown
    assert warned.texts == []


def test_members_are_asked_once_a_minute(roster):
    """Members are probed once a minute, unknown addresses each round, and those that are down by their breaker."""
    roster.record_list(["a:1", "b:1"], 0.0)
    assert roster.choose_due(0.0, never_down) == ["a:1", "b:1"]
    roster.record_answer("a:1", facts("A"), 0.1)
    roster.record_list(["a:1", "b:1"], 10.0)
    assert roster.choose_due(10.0, never_down) == ["b:1"]
    roster.record_list(["a:1", "b:1"], 60.0)
    assert roster.choose_due(60.0, lambda address: address == "b:1") == ["a:1"]


def test_a_member_stays_for_a_minute_without_listing_and_answer(roster):
    """A member stays for 60 s without listing or answer, so that a restart moves no chunk, and longer if it answers."""
    roster.record_list(["a:1", "b:1"], 0.0)
    roster.record_answer("a:1", facts("A"), 0.1)
    roster.record_answer("b:1", facts("B"), 0.1)
    for now in (10.0, 20.0, 50.0):
        roster.record_list([], now)
        assert roster.choose_due(now, never_down) == ["a:1", "b:1"]
        roster.record_answer("b:1", facts("B"), now)
    roster.record_list([], 61.0)
    assert addresses(roster) == {"B": "b:1"}
    roster.record_list([], 111.0)
    assert roster.members() == ()


def test_an_engine_with_an_address_of_its_own_again_is_the_same_member(roster, warned):
    """An engine that comes back at another address with its disk is the same member, as a pod is after a restart."""
    roster.record_list(["a:1"], 0.0)
    roster.record_answer("a:1", facts("A", "1"), 0.1)
    roster.record_list(["a:2"], 30.0)
    roster.record_answer("a:2", facts("A", "2"), 30.1)
    assert addresses(roster) == {"A": "a:2"}
    assert warned.texts == []


def test_an_engine_with_two_addresses_is_one_member(roster, warned):
    """An engine with an IPv4 and an IPv6 address is one member, at the address that answered first."""
    roster.record_list(["10.0.0.1:1", "[::1]:1"], 0.0)
    roster.record_answer("[::1]:1", facts("A"), 0.2)
    roster.record_answer("10.0.0.1:1", facts("A"), 0.3)
    assert addresses(roster) == {"A": "[::1]:1"}
    assert warned.texts == []


def test_a_copied_disk_is_left_out_and_said(roster, warned):
    """Two engines of one id, as with a copied disk, are warned about with the file to remove; one is left out."""
    roster.record_list(["a:1", "b:1", "c:1"], 0.0)
    roster.record_answer("a:1", facts("A", "1"), 0.1)
    roster.record_answer("b:1", facts("A", "2"), 0.2)
    roster.record_answer("a:1", facts("A", "1"), 60.1)
    roster.record_answer("c:1", msgspec.structs.replace(ME, instance="m2"), 60.2)
    assert addresses(roster) == {"A": "b:1"}
    assert [address for address, _ in warned.texts] == ["a:1", "c:1"]
    assert all("root-id" in text for _, text in warned.texts)


def test_another_disk_at_the_same_address_is_another_member(roster):
    """Another disk at the address of a member is another member, because it does not have the chunks."""
    roster.record_list(["a:1"], 0.0)
    roster.record_answer("a:1", facts("A", "1"), 0.1)
    roster.record_answer("a:1", facts("A2", "2"), 60.0)
    assert addresses(roster) == {"A2": "a:1"}
