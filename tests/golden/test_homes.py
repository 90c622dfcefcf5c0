"""The homes of chunks: a change of a number here is another `PLACEMENT`, and engines of both versions are no peers."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from streamer.peers.homes import PLACEMENT, Homes, PeerMember, cell, cells, first_members, members_digest

EQUAL = [PeerMember(f"{number:032x}", f"10.0.0.{number}:7070", 100 << 30) for number in range(5)]
UNEQUAL = [PeerMember(member.id, member.address, (number + 1) << 30) for number, member in enumerate(EQUAL)]


def test_the_cells_are_these() -> None:
    """A key's cell is this number, whether one cell is computed at a time or many at once."""
    keys = [bytes([number]) * 16 for number in range(4)]
    words = np.frombuffer(b"".join(key[:8] for key in keys), "<u8")
    assert [cell(key) for key in keys] == cells(words).tolist() == [136152, 138094, 10724, 39111]


@pytest.mark.parametrize(
    ("members", "digest"), [(EQUAL, "d5734630cc3516f3d6f72a4d3d9491e6"), (UNEQUAL, "6104cf44861d03d18bb09c7b28dba099")]
)
def test_the_homes_are_these(members: list[PeerMember], digest: str) -> None:
    """The first and second member of all cells have the digest that was fixed for PLACEMENT 1."""
    found = first_members(members).astype("<u2").tobytes()
    assert PLACEMENT == 1
    assert hashlib.blake2b(found, digest_size=16).hexdigest() == digest


def test_the_members_digest_is_this() -> None:
    """The digest of the members depends on their ids and limits, not on their order or addresses."""
    assert members_digest(EQUAL) == members_digest([PeerMember(one.id, "", one.limit_bytes) for one in EQUAL[::-1]])
    assert members_digest(EQUAL) == "1cd831df"
    assert Homes(EQUAL[2], EQUAL).digest == members_digest(EQUAL)
    assert members_digest(UNEQUAL) != members_digest(EQUAL)
