"""Engines that find each other by a name, as with a headless service, and speak TLS; each with its own address."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.fault.namespaces import Namespaces, as_root
from tests.fault.peer_engines import Fleet
from tests.peers.parts import certified

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    as_root,
    pytest.mark.skipif(shutil.which("s3sim") is None, reason="counts what s3sim sends; it is not installed"),
]
NAME = "streamer-peers"


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    made = Namespaces(4)
    made.list_name(NAME, made.addresses[:3])
    yield made
    made.close()


@pytest.fixture
def fleet(namespaces: Namespaces, tmp_path: Path) -> Iterator[Fleet]:
    folder = certified(tmp_path / "tls", trustme.CA())
    made = Fleet(tmp_path, 1000, 1.6, namespaces=namespaces, members=f"dns:{NAME}:7070", tls_folder=folder)
    yield made
    made.close()


def test_who_is_listed_later_is_a_member_later(namespaces: Namespaces, fleet: Fleet) -> None:
    """An engine whose address is listed later becomes a member of the others, and four jobs read the data once.
    Three engines find each other; the fourth joins when the name has its address.
    """
    for engine in fleet.engines[:3]:
        engine.start()
    fleet.wait_for(lambda: {engine.statistics()["peer_members"] for engine in fleet.engines[:3]} == {2})
    namespaces.list_name(NAME, namespaces.addresses)
    fleet.engines[3].start()
    fleet.wait_for(lambda: {engine.statistics()["peer_members"] for engine in fleet.engines} == {3})
    assert len({engine.statistics()["members_digest"] for engine in fleet.engines}) == 1
    fleet.read("a", "b", "c", "d")
    assert fleet.epoch([1, 2, 3, 4])[0] - fleet.late_share() <= 1.1
    assert fleet.total("peer_bytes") > 2 * fleet.store.data_bytes
