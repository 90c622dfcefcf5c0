"""How many crashes in a row a client answers with another engine."""

from streamer.client.restarts import MOST_RESTARTS, STEADY_SECONDS, Restarts


def test_pauses_grow_until_no_engine_is_started():
    """The first crash costs no pause, each further one twice the pause before; then there is an end of it."""
    restarts = Restarts()
    assert [restarts.crashed(now) for now in range(MOST_RESTARTS)] == [0.0, 0.2, 0.4, 0.8, 1.6]
    assert restarts.crashed(9) is None
    assert restarts.crashed(10) is None


def test_progress_pays_for_all_crashes_before_it():
    """After progress the next crash is the first one."""
    restarts = Restarts()
    for now in range(MOST_RESTARTS):
        restarts.crashed(now)
    restarts.progressed()
    assert restarts.crashed(9) == 0.0


def test_a_connection_counts_only_when_it_lasted():
    """An engine that accepts connections and crashes is no progress; one that ran for ten minutes is."""
    restarts = Restarts()
    for now in range(MOST_RESTARTS):
        restarts.connected(now)
        restarts.crashed(now + 1)
    restarts.connected(100.0)
    assert restarts.crashed(100.0 + STEADY_SECONDS) == 0.0
    restarts.connected(2000.0)
    assert restarts.crashed(2000.0 + STEADY_SECONDS - 1) == 0.2
