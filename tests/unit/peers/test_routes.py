"""Which member an engine asks for a chunk, as a table of cases."""

from __future__ import annotations

import pytest

from streamer.peers.homes import PeerMember
from streamer.peers.source import FoundChunks, PeerChoice, choose_peer

ME, HOME, SECOND = PeerMember("me"), PeerMember("home"), PeerMember("second")
FETCH, LOOK = True, False


@pytest.mark.parametrize(
    ("order", "down", "may_have", "for_peer", "asked"),
    [
        # The home answers: it fetches the chunk for all.
        ([HOME, SECOND], [], True, False, PeerChoice(HOME, FETCH)),
        ([HOME, ME], [], True, False, PeerChoice(HOME, FETCH)),
        # It is down: the next one takes its place; this engine, by the store.
        ([HOME, SECOND], [HOME], True, False, PeerChoice(SECOND, FETCH)),
        ([HOME, ME], [HOME], True, False, None),
        ([HOME, SECOND], [HOME, SECOND], True, False, None),
        # The home is here: the second member may have the chunk from before.
        ([ME, SECOND], [], True, False, PeerChoice(SECOND, LOOK)),
        ([ME, SECOND], [], False, False, None),
        ([ME, SECOND], [SECOND], True, False, None),
        ([ME], [], True, False, None),
        # Only a peer waits for it: no third engine fetches it.
        ([HOME, SECOND], [], True, True, PeerChoice(HOME, LOOK)),
        ([ME, SECOND], [], True, True, PeerChoice(SECOND, LOOK)),
    ],
)
def test_the_cases(
    order: list[PeerMember], down: list[PeerMember], may_have: bool, for_peer: bool, asked: PeerChoice | None
) -> None:
    """A chunk is asked of its home, of the second member if the home is down or here, and else of the store."""

    def is_up(member: PeerMember) -> bool:
        return member not in down

    assert choose_peer(order, ME, is_up, lambda _: may_have, for_peer=for_peer) == asked


def test_a_member_without_the_chunks_is_soon_asked_rarely() -> None:
    """A member without the chunks is asked eight times and then for one in 31, until it is found to have one."""
    found = FoundChunks()

    def asked(chunks: int, has: bool) -> int:
        count = 0
        for _ in range(chunks):
            if found.may_have(SECOND, "dataset"):
                count += 1
                found.record(SECOND, "dataset", has)
        return count

    # The first pause is one chunk longer.
    assert asked(8 + 1 + 30 * 31 + 20, has=False) == 8 + 30
    assert found.may_have(SECOND, "another dataset")
    # It is asked again after the other 11 chunks of the pause, and then for each.
    assert asked(31, has=True) == 31 - 10
    assert asked(100, has=True) == 100
