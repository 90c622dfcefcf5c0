"""The circuit breaker of a peer: down after a failure, up after an answer to a probe."""

from __future__ import annotations

from streamer.peers.peer import Breaker


def test_one_failure_is_enough():
    """One failure takes a peer down, since a refused or reset connection is enough."""
    breaker = Breaker()
    assert breaker.record_failure(asked_at=1.0, now=1.1)
    assert (breaker.is_up, breaker.pause_seconds) == (False, 1.0)


def test_one_outage_counts_once():
    """Failures of requests that were sent before a peer was up again are one outage.

    Eight requests under way made 1 s into 60 (2026-11-22).
    """
    breaker = Breaker()
    assert [breaker.record_failure(1.0, 1.1 + number / 10) for number in range(8)] == [True, *[False] * 7]
    assert breaker.pause_seconds == 1.0
    breaker.record_probe(True, 3.0)
    assert not breaker.record_failure(asked_at=2.9, now=3.5), "it left before the peer was up again"
    assert breaker.record_failure(asked_at=3.1, now=3.5)


def test_the_pause_doubles_with_each_probe_up_to_a_minute():
    """The pause between probes doubles up to a minute, and is 1 s again after an answer.

    An outage below 5 s is over within 4 s of its end; a long one costs a request a minute.
    """
    breaker = Breaker()
    breaker.record_failure(0.0, 0.0)
    pauses = []
    for _ in range(8):
        pauses.append(breaker.pause_seconds)
        breaker.record_probe(False, 0.0)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    breaker.record_probe(True, 200.0)
    assert (breaker.is_up, breaker.pause_seconds) == (True, 1.0)


def test_races_that_are_lost_for_a_second_are_an_outage():
    """Races that a peer loses for a second are an outage; an answer between them begins the count anew."""
    breaker = Breaker()
    assert not breaker.record_loss(1.0, 1.3)
    breaker.record_answer()
    assert [breaker.record_loss(2.0 + number / 10, 2.3 + number / 10) for number in range(7)] == [False] * 7
    assert breaker.record_loss(2.9, 3.1)
    assert not breaker.is_up
