"""How many crashes of an engine in a row a client answers with another engine."""

from streamer.client.launcher import MAX_RESTARTS, STEADY_SECONDS, Restarts


def test_pauses_grow_until_no_engine_is_started():
    """The first crash costs no pause, each further one twice the last, and after MAX_RESTARTS no engine starts."""
    restarts = Restarts()
    assert [restarts.count_crash(now) for now in range(MAX_RESTARTS)] == [0.0, 0.2, 0.4, 0.8, 1.6]
    assert restarts.count_crash(9) is None
    assert restarts.count_crash(10) is None


def test_progress_pays_for_all_crashes_before_it():
    """After progress of the reader the next crash counts as the first one."""
    restarts = Restarts()
    for now in range(MAX_RESTARTS):
        restarts.count_crash(now)
    restarts.record_progress()
    assert restarts.count_crash(9) == 0.0


def test_a_connection_counts_only_when_it_lasted():
    """A connection counts as progress only if it lasted for STEADY_SECONDS."""
    restarts = Restarts()
    for now in range(MAX_RESTARTS):
        restarts.record_connection(now)
        restarts.count_crash(now + 1)
    restarts.record_connection(100.0)
    assert restarts.count_crash(100.0 + STEADY_SECONDS) == 0.0
    restarts.record_connection(2000.0)
    assert restarts.count_crash(2000.0 + STEADY_SECONDS - 1) == 0.2
