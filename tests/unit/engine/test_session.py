"""The time that one consumer of the engine has waited; the clock is given."""

from streamer.engine.session import Waiting


def test_only_the_time_between_stop_and_go_counts():
    """Waiting counts the time from a stop to the next go, however often either is repeated."""
    watch = Waiting(10.0)
    for waits, now in [(False, 11.0), (True, 12.0), (True, 13.0), (False, 15.0), (False, 20.0), (True, 21.0)]:
        watch.update(waits, now)
    assert watch.seconds(22.0) == 4.0
    assert watch.age_seconds(22.0) == 12.0
