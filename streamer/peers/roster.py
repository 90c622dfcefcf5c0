"""Decides which addresses are members, from what was listed and what was answered. Pure.

An address is a member from its first answer. It stays one while it is listed, up or down, and for a minute afterwards;
longer while it answers. So an engine that is started again within a minute moves no chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

import msgspec

from streamer.peers.homes import PeerMember
from streamer.peers.protocol import PeerFacts

# An address that is not listed, and does not answer, is forgotten after this.
GONE_SECONDS = 60.0
# A member is asked this often whether it is still the same.
ASK_SECONDS = 60.0


class KnownAddress(msgspec.Struct):
    """Records what is known of one address.

    Attributes:
        listed_at: time at which it was listed last.
        asked_at: time at which it was asked last.
        answered_at: time at which it answered last.
        since: time at which it first answered as this instance.
        facts: its last answer; None if it never answered.
    """

    listed_at: float
    asked_at: float = -inf
    answered_at: float = -inf
    since: float = -inf
    facts: PeerFacts | None = None


class Roster:
    """Keeps the addresses and the facts of the engines behind them. All times are of one clock.

    Args:
        me: facts of this engine.
        warn: called with an address and a sentence.
    """

    def __init__(self, me: PeerFacts, warn: Callable[[str, str], None]) -> None:
        self._me = me
        self._warn = warn
        self._addresses: dict[str, KnownAddress] = {}

    def __repr__(self) -> str:
        return f"Roster({len(self._addresses)} addresses, {len(self.members())} members)"

    @property
    def has_unknown(self) -> bool:
        """Whether an address has never answered."""
        return any(address.facts is None for address in self._addresses.values())

    def record_list(self, addresses: Iterable[str], now: float) -> None:
        """Records the addresses that are listed now."""
        for name in addresses:
            self._addresses.setdefault(name, KnownAddress(now)).listed_at = now
        for name, address in list(self._addresses.items()):
            if now - max(address.listed_at, address.answered_at) > GONE_SECONDS:
                del self._addresses[name]

    def choose_due(self, now: float, is_down: Callable[[str], bool]) -> list[str]:
        """Returns the addresses to ask now: unknown, unlisted, or not asked for a minute.

        Args:
            now: the present time; they count as asked.
            is_down: whether a member is down, and so probed by the client.
        """
        asked = [
            name
            for name, address in self._addresses.items()
            if (address.facts is None or now - address.asked_at >= ASK_SECONDS or address.listed_at < address.asked_at)
            and not is_down(name)
        ]
        for name in asked:
            self._addresses[name].asked_at = now
        return asked

    def record_answer(self, name: str, facts: PeerFacts, now: float) -> None:
        """Records the facts that an address answered."""
        address = self._addresses.get(name)
        if address is None:
            return
        if address.facts is None or address.facts.instance != facts.instance:
            address.since = now
        address.facts = facts
        address.answered_at = now
        # An address that an engine has left does not count: the older one must still answer.
        newer = [other.facts for other in self._addresses.values() if other.since > address.since]
        same = [other for other in (self._me, *newer) if other is not None and other.id == facts.id]
        if any(other.instance != facts.instance for other in same):
            self._warn(
                name,
                f"has the cache folder id {facts.id} of another peer, because its disk was copied from that one's: "
                "one of the two is left out; remove the file root-id from one cache folder and restart its engine",
            )

    def members(self) -> tuple[PeerMember, ...]:
        """Returns the other engines, by id."""
        newest: dict[str, tuple[float, str, PeerFacts]] = {}
        instances = [
            (address.since, name, address.facts)
            for name, address in self._addresses.items()
            if address.facts is not None and address.facts.id != self._me.id
        ]
        for since, name, facts in sorted(instances):
            # The same engine at a second address keeps the first; another one with the same id has taken its place.
            if facts.id not in newest or newest[facts.id][2].instance != facts.instance:
                newest[facts.id] = since, name, facts
        return tuple(sorted(PeerMember(facts.id, name, facts.limit_bytes) for _, name, facts in newest.values()))
