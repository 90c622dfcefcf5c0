"""The names that `streamer stat --json` prints and those of docs/statistics.md."""

from __future__ import annotations

from streamer.peers.messages import Counts
from streamer.peers.peer import PeerCounts
from streamer.peers.source import SourceCounts
from tests.repo.test_statistics_page import named

# What `PeerGroup.statistics` adds to the counts.
OF_A_GROUP = {"fetched_for_peers", "fetched_for_peers_bytes", "peer_members", "peer_members_down", "home_share"} | {
    "members_digest",
    "peers",
    "homes",
}


def test_every_name_of_an_engine_has_a_row(engine_statistics):
    """Every statistic of an engine without peers has a row in docs/statistics.md."""
    assert sorted(named("Engine")) == sorted(engine_statistics)


def test_every_name_of_peers_has_a_row():
    """Every statistic of peers has a row in docs/statistics.md: of client, server, source and group."""
    counts = {name for kind in (Counts, PeerCounts, SourceCounts) for name in kind.__struct_fields__}
    assert set(named("Peers")) == counts | OF_A_GROUP
