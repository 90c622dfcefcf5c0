"""Decides which peer is asked for a chunk before the store. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from streamer.peers.placement.members import Member

# After this many chunks in a row that a member did not have, every 32nd is looked for there: a cold start then costs
# next to nothing, and the chunks of a changed set of members are found.
_TRIES = 8
_PAUSE = 32


class Ask(msgspec.Struct, frozen=True):
    """Names the peer to ask.

    Attributes:
        fetch: whether it fetches the chunk if it keeps it; otherwise it sends what is on its disk.
    """

    member: Member
    fetch: bool


def whom_to_ask(
    order: Sequence[Member],
    me: Member,
    is_up: Callable[[Member], bool],
    may_have: Callable[[Member], bool],
    *,
    for_peer: bool,
) -> Ask | None:
    """Returns the peer to ask; None for the store.

    | the home is        | asked                                                    |
    | ------------------ | -------------------------------------------------------- |
    | this engine        | the second member, if it may have the chunk from before  |
    | a peer that is up  | the home                                                 |
    | down               | the second member as if it were the home, unless it is this engine |

    A chunk that only a peer waits for is fetched by no third engine: two that know different members would send each
    other in a circle.

    Args:
        order: the home, then the member that takes its place.
        me: this engine.
        is_up: whether a member answers.
        may_have: whether a look at its disk is worth a request.
        for_peer: only peers wait for the chunk.
    """
    if order[0].id == me.id:
        second = next((member for member in order[1:] if is_up(member) and may_have(member)), None)
        return None if second is None else Ask(second, fetch=False)
    for member in order:
        if member.id == me.id:
            return None
        if is_up(member):
            return Ask(member, fetch=not for_peer)
    return None


class Found:
    """Remembers whether chunks were found where their home looked for them. One for each set of members."""

    def __init__(self) -> None:
        self._misses: Counter[tuple[str, str]] = Counter()

    def may_have(self, member: Member, dataset: str) -> bool:
        """Whether a member is asked for a chunk of this dataset; counts those for which it is not."""
        misses = self._misses[member.id, dataset]
        if misses < _TRIES:
            return True
        self._misses[member.id, dataset] += 1
        return (misses - _TRIES) % _PAUSE == _PAUSE - 1

    def record(self, member: Member, dataset: str, found: bool) -> None:
        """Records whether a member had a chunk that it was asked for."""
        self._misses[member.id, dataset] = 0 if found else self._misses[member.id, dataset] + 1
