"""One consumer in the engine: how long it has waited."""

from streamer.engine.session import Waiting


def test_only_the_time_between_stop_and_go_counts():
    """A repeated update changes nothing."""
    watch = Waiting(10.0)
    for waits, now in [(False, 11.0), (True, 12.0), (True, 13.0), (False, 15.0), (False, 20.0), (True, 21.0)]:
        watch.update(waits, now)
    assert watch.seconds(22.0) == 4.0
    assert watch.age_seconds(22.0) == 12.0
