"""Decides which addresses are members, from the lists of addresses and from their answers. No clock, no I/O.

`peers/group.py` follows the members by it. An address is a member from its first answer on. It stays one while it is
listed, up or down, and for a minute afterwards, or longer while it answers. So an engine that is started again within a
minute moves no chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

import msgspec

from streamer.peers.homes import PeerMember
from streamer.peers.protocol import PeerFacts

# An address that is not listed, and does not answer, is forgotten after this time.
GONE_SECONDS = 60.0
# A member is asked this often whether it is still the same.
ASK_SECONDS = 60.0


class KnownAddress(msgspec.Struct):
    """Records what is known of one address.

    Attributes:
        listed_at: time in seconds at which it was listed last.
        asked_at: time at which it was asked last.
        answered_at: time at which it answered last.
        since: time of the first answer of the engine that answers there now (its `instance`).
        facts: last answer, or None if it never answered.
    """

    listed_at: float
    asked_at: float = -inf
    answered_at: float = -inf
    since: float = -inf
    facts: PeerFacts | None = None


class Roster:
    """Keeps the addresses and the facts of the engines that answer there. All times are seconds of one clock.

    Args:
        me: facts of this engine.
        warn: called with an address and the predicate of a sentence about it.
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
        """Records the addresses that are listed now, and forgets those that were neither listed nor answered lately."""
        for name in addresses:
            self._addresses.setdefault(name, KnownAddress(now)).listed_at = now
        for name, address in list(self._addresses.items()):
            if now - max(address.listed_at, address.answered_at) > GONE_SECONDS:
                del self._addresses[name]

    def choose_due(self, now: float, is_down: Callable[[str], bool]) -> list[str]:
        """Returns the addresses to ask now for their facts; they count as asked at `now`.

        These are the addresses that never answered, that are not listed any more, or that were not asked for a minute.

        Args:
            now: the present time.
            is_down: tells of an address whether it is down. The client asks such an address itself.
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
        """Records the facts that an address answered; ignores an address that is forgotten.

        It warns if another engine has the same id: its disk was copied, and `members` has only one of the two.
        """
        address = self._addresses.get(name)
        if address is None:
            return
        if address.facts is None or address.facts.instance != facts.instance:
            address.since = now
        address.facts = facts
        address.answered_at = now
        # This engine has just answered, so a newer one with its id is there as well. An older one may be gone.
        newer = [other.facts for other in self._addresses.values() if other.since > address.since]
        same = [other for other in (self._me, *newer) if other is not None and other.id == facts.id]
        if any(other.instance != facts.instance for other in same):
            self._warn(
                name,
                f"has the cache folder id {facts.id} of another peer, because its disk was copied from that one's: "
                "one of the two is left out; remove the file root-id from one cache folder and restart its engine",
            )

    def members(self) -> tuple[PeerMember, ...]:
        """Returns the other members, sorted by id: one for each id, this engine's own left out."""
        newest: dict[str, tuple[float, str, PeerFacts]] = {}
        instances = [
            (address.since, name, address.facts)
            for name, address in self._addresses.items()
            if address.facts is not None and address.facts.id != self._me.id
        ]
        for since, name, facts in sorted(instances):
            # An engine at two addresses keeps the first one. Another engine with the same id takes its place.
            if facts.id not in newest or newest[facts.id][2].instance != facts.instance:
                newest[facts.id] = since, name, facts
        return tuple(sorted(PeerMember(facts.id, name, facts.limit_bytes) for _, name, facts in newest.values()))
