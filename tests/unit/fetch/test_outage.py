"""An endpoint that sends nothing: the log line, its reason and the time that is left, on a steered clock."""

from __future__ import annotations

import pytest

from streamer.errors import StoreTimeoutError, ThrottledError
from streamer.fetch.endpoint import AGAIN_SECONDS, QUIET_SECONDS, OutageWatch
from streamer.fetch.presence_clock import PresenceClock
from tests.unit.steered_loop import SteeredLoop


@pytest.fixture
def clock(loop: SteeredLoop) -> PresenceClock:
    """The clock of an endpoint while requests run."""
    made = PresenceClock()
    made.begin()
    return made


def watched(clock: PresenceClock) -> tuple[OutageWatch, list[str]]:
    """Returns a watch and the list of what it logs."""
    said: list[str] = []
    return OutageWatch(clock, "s3://bucket", 60.0, said.append), said


def test_a_quiet_endpoint_is_said_once(clock: PresenceClock, loop: SteeredLoop) -> None:
    """An endpoint that has sent nothing for 1.5 s is logged once, with the last failure and the time that is left."""
    watch, said = watched(clock)
    watch.begin()
    loop.sleep(QUIET_SECONDS / 2)
    watch.record_failure(ThrottledError("s3://bucket/x: the store answered 503 SlowDown", url="s3://bucket/x"))
    assert said == []
    loop.sleep(50.0)
    assert said == [
        "waiting for s3://bucket, which has served nothing for 1.5 s (the store answered 503 SlowDown); requests that "
        "fail are repeated for 60 s, then this is an error"
    ]


def test_an_endpoint_that_serves_is_not_said(clock: PresenceClock, loop: SteeredLoop) -> None:
    """An endpoint that sends bytes every second, or is not asked, is not logged."""
    watch, said = watched(clock)
    watch.begin()
    for _ in range(10):
        loop.sleep(1.0)
        watch.record_progress(clock.time())
    watch.end()
    loop.sleep(100.0)
    assert said == []


def test_quiet_is_the_time_since_it_served_while_it_was_asked(clock: PresenceClock, loop: SteeredLoop) -> None:
    """The quiet time of an endpoint is that since it last served while it was asked, and 0 where it is not asked."""
    watch, _ = watched(clock)
    loop.sleep(5.0)
    assert watch.quiet_seconds() == 0.0
    watch.begin()
    loop.sleep(5.0)
    assert watch.quiet_seconds() == pytest.approx(5.0)
    watch.record_progress(clock.time())
    loop.sleep(2.0)
    assert watch.quiet_seconds() == pytest.approx(2.0)
    watch.end()
    assert watch.quiet_seconds() == 0.0


def test_silence_without_a_failure_is_said(clock: PresenceClock, loop: SteeredLoop) -> None:
    """An endpoint that takes requests and never answers is logged without a failure."""
    watch, said = watched(clock)
    watch.begin()
    loop.sleep(1.0)
    watch.record_progress(clock.time())
    loop.sleep(3.0)
    assert len(said) == 1
    assert "no answer yet" in said[0]


def test_the_next_outage_is_said_again(
    clock: PresenceClock, loop: SteeredLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """A later outage is logged again, but not each answer of a store that takes two seconds for every one."""
    watch, said = watched(clock)
    watch.begin()
    with caplog.at_level("INFO", "streamer.fetch.endpoint"):
        for _ in range(5):
            loop.sleep(2.0)
            watch.record_progress(clock.time())
    assert len(said) == 1
    assert "serves again, after 2.0 s" in caplog.text
    loop.sleep(AGAIN_SECONDS)
    watch.record_progress(clock.time())
    watch.record_failure(StoreTimeoutError("s3://bucket/x: timed out", url="s3://bucket/x"))
    loop.sleep(2.0)
    assert len(said) == 2
