"""Who is a member: what was listed, and what was answered."""

from __future__ import annotations

import msgspec
import pytest

from streamer.peers.protocol import PeerFacts
from streamer.peers.roster import Roster

ME = PeerFacts("me", "m1", 1 << 30, 1, "0")


def facts(name: str, instance: str = "1", limit_bytes: int = 1 << 30) -> PeerFacts:
    return PeerFacts(name, instance, limit_bytes, 1, "0")


class Warned:
    def __init__(self):
        self.texts = []

    def __call__(self, address, text):
        self.texts.append((address, text))


@pytest.fixture
def warned():
    return Warned()


@pytest.fixture
def roster(warned):
    return Roster(ME, warned)


def never_down(address: str) -> bool:
    return False


def addresses(roster: Roster) -> dict[str, str]:
    return {member.id: member.address for member in roster.members()}


def test_an_address_is_a_member_from_its_first_answer(roster):
    """One that never answered has no id, and no chunk a home there."""
    roster.record_list(["a:1", "b:1"], 0.0)
    assert roster.members() == ()
    roster.record_answer("a:1", facts("A"), 0.1)
    assert addresses(roster) == {"A": "a:1"}
    assert roster.has_unknown


def test_this_engine_is_none_of_the_others(roster, warned):
    """The list names all of them."""
    roster.record_list(["a:1"], 0.0)
    roster.record_answer("a:1", ME, 0.1)
    assert roster.members() == ()
    assert not roster.has_unknown
    assert warned.texts == []


def test_members_are_asked_once_a_minute(roster):
    """Unknown ones each round, those that are down elsewhere."""
    roster.record_list(["a:1", "b:1"], 0.0)
    assert roster.choose_due(0.0, never_down) == ["a:1", "b:1"]
    roster.record_answer("a:1", facts("A"), 0.1)
    roster.record_list(["a:1", "b:1"], 10.0)
    assert roster.choose_due(10.0, never_down) == ["b:1"]
    roster.record_list(["a:1", "b:1"], 60.0)
    assert roster.choose_due(60.0, lambda address: address == "b:1") == ["a:1"]


def test_a_member_stays_for_a_minute_without_listing_and_answer(roster):
    """A restart within 60 s moves no chunk; longer while it answers, as one that is not ready does."""
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
    """A pod gets a new address and keeps its disk."""
    roster.record_list(["a:1"], 0.0)
    roster.record_answer("a:1", facts("A", "1"), 0.1)
    roster.record_list(["a:2"], 30.0)
    roster.record_answer("a:2", facts("A", "2"), 30.1)
    assert addresses(roster) == {"A": "a:2"}
    assert warned.texts == []


def test_an_engine_with_two_addresses_is_one_member(roster, warned):
    """A name may have addresses of both kinds."""
    roster.record_list(["10.0.0.1:1", "[::1]:1"], 0.0)
    roster.record_answer("[::1]:1", facts("A"), 0.2)
    roster.record_answer("10.0.0.1:1", facts("A"), 0.3)
    assert addresses(roster) == {"A": "[::1]:1"}
    assert warned.texts == []


def test_a_copied_disk_is_left_out_and_said(roster, warned):
    """Two engines of one id, both alive: the message says which file to remove."""
    roster.record_list(["a:1", "b:1", "c:1"], 0.0)
    roster.record_answer("a:1", facts("A", "1"), 0.1)
    roster.record_answer("b:1", facts("A", "2"), 0.2)
    roster.record_answer("a:1", facts("A", "1"), 60.1)
    roster.record_answer("c:1", msgspec.structs.replace(ME, instance="m2"), 60.2)
    assert addresses(roster) == {"A": "b:1"}
    assert [address for address, _ in warned.texts] == ["a:1", "c:1"]
    assert all("root-id" in text for _, text in warned.texts)


def test_another_disk_at_the_same_address_is_another_member(roster):
    """Its chunks are gone: it is not the home that it was."""
    roster.record_list(["a:1"], 0.0)
    roster.record_answer("a:1", facts("A", "1"), 0.1)
    roster.record_answer("a:1", facts("A2", "2"), 60.0)
    assert addresses(roster) == {"A2": "a:1"}
