"""Requests of one message to a real engine: its counters, and reports of a loader."""

from __future__ import annotations

import dataclasses
import os
import signal

import pytest

from streamer.client.connection import read_statistics, report
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.loader.stall.advice import Bottleneck
from streamer.wire.messages import BOTTLENECKS, GetManifest, OpenSession, PackedRows, ReportFinding


@pytest.fixture
def settings(tmp_path):
    """Settings of a client whose engine has a cache of 8 MiB in a folder of the test."""
    return ClientSettings(
        cache_dir=tmp_path / "cache", runtime_dir=tmp_path / "run", cache_bytes=8 << 20, grace_seconds=0.1
    )


def test_no_engine_is_none_and_none_is_started(settings):
    """Reading the counters without an engine gives None and starts no engine."""
    assert read_statistics(settings, 1.0) is None
    assert not settings.cache_dir.exists()


@pytest.mark.process
def test_a_running_engine_answers_and_a_stopped_one_does_not_hold_us(settings):
    """A running engine gives its counters by name, and a stopped one gives None within the time."""
    with EngineClient(settings) as client:
        pid = client._connect().welcome.pid
        found = read_statistics(settings, 10.0)
        assert found["needs"] == 0
        os.kill(pid, signal.SIGSTOP)
        try:
            assert read_statistics(settings, 0.05) is None
        finally:
            os.kill(pid, signal.SIGCONT)


def told(client: EngineClient) -> list[tuple[object, ...]]:
    """Returns what each session of the engine was told by its loader."""
    names = ("consumer", "loader_waiting_share", "bottleneck", "advice")
    return [tuple(entry[name] for name in names) for entry in client.statistics()["sessions"]]


@pytest.mark.process
def test_what_a_loader_found_is_seen_with_its_session(settings, tmp_path):
    """The report of a loader is shown with its own session, cut in length and without control characters."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.bin").write_bytes(b"x" * 100)
    with EngineClient(settings) as client:
        folder = client.manifest(GetManifest(0, [f"{tmp_path}/data/"], "auto"))
        specs = [OpenSession(0, "", dataset=folder.name, consumer=f"rank {rank}") for rank in range(2)]
        sessions = [client.open_session(spec) for spec in specs]
        mine = dataclasses.replace(settings, job=client.job)
        assert told(client) == [("rank 0", None, None, None), ("rank 1", None, None, None)]
        assert report(mine, specs[1], 5.0, ReportFinding.make(0.43, "decode", "4 more workers\x1b[2J" + "!" * 300))
        assert told(client)[0] == ("rank 0", None, None, None)
        assert told(client)[1] == ("rank 1", 0.43, "decode", ("4 more workers?[2J" + "!" * 300)[:240])
        assert report(mine, specs[1], 5.0, ReportFinding.make(7.0, "nonsense"))
        assert told(client)[1] == ("rank 1", 1.0, "other", "")
        assert [entry["row_tokens"] for entry in client.statistics()["sessions"]] == [None, None]
        rows = PackedRows(0.02, 0.3, 5000, 7)
        assert report(mine, specs[1], 5.0, ReportFinding.make(0.1, "decode", rows=rows))
        shown = client.statistics()["sessions"][1]
        names = ("row_padding", "row_cost_spread", "row_tokens", "row_left_out")
        assert [shown[name] for name in names] == [0.02, 0.3, 5000, 7]
        assert report(dataclasses.replace(mine, job="another"), specs[0], 5.0, ReportFinding.make(0.5, "decode"))
        assert told(client)[0] == ("rank 0", None, None, None)
        for session in sessions:
            session.close()


def test_an_engine_that_is_away_gets_no_message(settings):
    """A report to an engine that does not run returns false, raises no error and starts no engine."""
    assert not report(
        settings, OpenSession(0, "", dataset="d", consumer="rank 0"), 1.0, ReportFinding.make(0.1, "decode")
    )
    assert not settings.cache_dir.exists()


def test_the_protocol_knows_every_bottleneck():
    """The protocol has every bottleneck as a label of /metrics, so that a new one has to be added to both lists."""
    assert {str(bottleneck) for bottleneck in Bottleneck} == set(BOTTLENECKS) - {"other"}
    assert max(map(len, BOTTLENECKS)) <= 64
