"""Tests of the reporter: what is logged, when, on which rank, and what callbacks and the engine get.

Loaders are real ones on a fake dataset, where their thread matters.
"""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import replace

import numpy as np
import pytest

from streamer.errors import ConfigError
from streamer.loader.dataloader import StreamingDataLoader
from streamer.loader.stall.advice import Bottleneck
from streamer.loader.stall.report import Snapshot, StallReport, compare
from streamer.loader.stall.reporter import StallReporter, add_decode_advice
from streamer.loader.stall.stats import LoaderStats
from streamer.media.video.cost import ClipCost
from streamer.wire.messages import ReportFinding
from tests.fake_dataset import FakeDataset


class Loader:
    """Stands for a loader that waits for a share of every second; it makes no batches."""

    def __init__(self, share: float) -> None:
        self.share, self.seconds = share, 0

    def report_since(self, before: Snapshot) -> tuple[StallReport, Snapshot]:
        self.seconds += 1
        waiting = {"decode": self.share * self.seconds}
        now = Snapshot(
            stats=LoaderStats(batches=self.seconds, step_seconds=(1 - self.share) * self.seconds, waiting=waiting)
        )
        return replace(compare(before, now), hit_share=0.25), now


@pytest.mark.parametrize(("rank", "share", "lines"), [(0, 0.01, 1), (3, 0.01, 0), (3, 0.5, 1)])
def test_who_speaks(rank, share, lines, caplog):
    """The first rank always logs its report, and another one only when it waits."""
    caplog.set_level(logging.INFO)
    reports = []
    loader = Loader(share)
    reporter = StallReporter(loader.report_since, rank, on_report=reports.append)
    reporter.report()
    assert len(caplog.records) == lines
    assert reports[0].share == pytest.approx(share)
    assert reports[0].hit_share == 0.25


def test_training_that_waits_for_data_is_a_warning(caplog):
    """A training that waits for data is logged as a warning once for each bottleneck; other reports are information."""
    caplog.set_level(logging.INFO)
    loader = Loader(0.5)
    reporter = StallReporter(loader.report_since, rank=0)
    for share in (0.5, 0.5, 0.05, 0.5):
        loader.seconds, loader.share = 0, share
        reporter._before = Snapshot()
        reporter.report()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "INFO", "WARNING"]
    assert "input-bound (50% waiting): no workers" in caplog.text


def sample(epoch: int, ordinal: int) -> object:
    return {"x": np.full(4, ordinal, np.float32)}


@pytest.mark.parametrize("workers", [0, 1])
def test_it_reports_while_the_training_goes_on(workers):
    """With an interval there are reports from a thread of its own, which ends with the loader."""
    heard: queue.Queue[str] = queue.Queue()
    with StreamingDataLoader(
        FakeDataset(1000, sample),
        4,
        workers,
        worker_type="thread",
        report_every=0.02,
        on_report=lambda report: heard.put(threading.current_thread().name),
    ) as loader:
        next(iter(loader))
        assert heard.get(timeout=60) == "streamer-report"
    assert not [thread for thread in threading.enumerate() if thread.name == "streamer-report"]


def test_a_callback_that_raises_ends_nothing(caplog):
    """A callback that raises is logged and called again at the next interval."""
    calls: queue.Queue[int] = queue.Queue()

    def fail(report: StallReport) -> None:
        calls.put(1)
        raise RuntimeError("no such run")

    with StreamingDataLoader(FakeDataset(1000, sample), 4, report_every=0.02, on_report=fail) as loader:
        next(iter(loader))
        for _ in range(2):
            calls.get(timeout=60)
    assert "the stall report failed" in caplog.text


def test_switched_off():
    """`report_every=None` starts no thread for reports."""
    with StreamingDataLoader(FakeDataset(40, sample), 4, report_every=None) as loader:
        next(iter(loader))
        assert not [thread for thread in threading.enumerate() if thread.name == "streamer-report"]


def test_an_interval_that_cannot_be():
    """`report_every=0` is a `ConfigError` at once."""
    with pytest.raises(ConfigError, match="report_every=0 is not above 0 seconds"):
        StreamingDataLoader(FakeDataset(8, sample), 4, report_every=0)


def test_the_report_is_since_the_last_one():
    """`report()` counts the batches since the last call."""
    with StreamingDataLoader(FakeDataset(40, sample), 4, report_every=None) as loader:
        assert loader.report().batches == 0
        for _, _batch in zip(range(3), loader, strict=False):
            pass
        assert loader.report().batches == 3
        assert loader.report().batches == 0


def test_the_engines_view_is_in_the_stats():
    """`stats()` has what the engine says, and None without an engine."""
    dataset = FakeDataset(40, sample)
    with StreamingDataLoader(dataset, 4, report_every=None) as loader:
        next(iter(loader))
        assert loader.stats().engine is None
        dataset.prepared.engine_values = {"needs": 4, "hits": 1}
        found = loader.stats().engine
        assert (found.needs, found.hits) == (4, 1)


def test_the_engine_receives_what_was_found():
    """The engine gets the share of waiting and the bottleneck of each report."""
    sent: queue.Queue[ReportFinding | Exception] = queue.Queue()
    dataset = FakeDataset(1000, sample)
    with StreamingDataLoader(dataset, 4, report_every=0.02) as loader:
        next(iter(loader))
        dataset.prepared.on_finding = sent.put
        dataset.prepared.engine_values = {"needs": 4}
        finding = sent.get(timeout=60)
    assert isinstance(finding, ReportFinding)
    assert 0 <= finding.waiting_share <= 1
    assert finding.bottleneck in {str(bottleneck) for bottleneck in Bottleneck}


def test_an_error_is_sent_to_the_engine():
    """An error that the trainer gets is sent to the engine, too, for its page and log."""
    sent = []
    dataset = FakeDataset(40, fail)
    with StreamingDataLoader(dataset, 4, report_every=None) as loader:
        batches = iter(loader)
        dataset.prepared.on_finding = sent.append
        with pytest.raises(ValueError, match="unreadable") as raised:
            next(batches)
    assert sent == [raised.value]


def fail(epoch: int, ordinal: int) -> object:
    raise ValueError("unreadable")


def test_advice_on_videos_is_given_where_decoding_limits_the_training():
    """Where decoding is the bottleneck, the advice names the clips that throw most frames away, and what is cheaper.

    Nothing is computed for other bottlenecks.
    """
    wasteful, thrifty = ClipCost(95, 16, 31, 8, 48, 5.28), ClipCost(40, 16, 31, 8, 0, 0)
    report = StallReport(bottleneck=Bottleneck.DECODE, advice="2 more workers")
    assert add_decode_advice(report, [None, thrifty]).advice == "2 more workers"
    assert add_decode_advice(report, [None, thrifty, wasteful]).advice == (
        "2 more workers; clips: 95 packets for 16 of 31 frames, 83% thrown away; key frames are 5.3 s apart; cheaper: "
        'start="key": 31 packets, clips_per_sample=4: 48 a clip, videos encoded with ffmpeg -g 31: about 46'
    )
    costs = iter([wasteful])
    assert "thrown" not in add_decode_advice(StallReport(bottleneck=Bottleneck.STORE), costs).advice
    assert next(costs) is wasteful
