"""Tests of the causes that a wait is charged to, on made-up timelines of batches."""

from __future__ import annotations

import sys

import pytest

from streamer.batches import causes
from streamer.batches.causes import (
    DECODE,
    HANDOFF,
    LOST,
    MADE,
    NETWORK,
    READ,
    START,
    WORK,
    BatchTimeline,
    Ledger,
    Recent,
    Stages,
    Trace,
    so_far,
)
from streamer.loader.stall.stats import TrainerClock

STAGES = Stages(load=80, read=20, decode=60, transform=0, collate=10, write=10)


def timeline(made_at: int = 1000, **spent: int) -> BatchTimeline:
    told = BatchTimeline()
    told.state, told.since, told.spent = MADE, made_at, spent
    return told


@pytest.mark.parametrize(
    ("spent", "waited", "expected"),
    [
        ({}, 100, {READ: 20, DECODE: 60, "collate": 10, "write": 10}),
        ({NETWORK: 300}, 100, {NETWORK: 100}),
        ({NETWORK: 40}, 140, {NETWORK: 40, READ: 20, DECODE: 60, "collate": 10, "write": 10}),
        ({LOST: 30, NETWORK: 30, START: 90}, 100, {LOST: 30, NETWORK: 30, START: 40}),
    ],
)
def test_what_delayed_it_before_the_worker_counts_first(spent, waited, expected):
    """A cause takes as much of a wait as there would not have been without it; the rest goes to the worker's stages."""
    ledger = Ledger()
    ledger.note(Trace(timeline(**spent), STAGES, (7, 50)), waited, arrived_at=1000)
    assert {cause: spent for cause, spent in ledger.nanoseconds.items() if spent} == expected
    assert ledger.timings.tail().values[0].sample == 50


def test_the_way_to_the_trainer_is_handoff():
    """The time since a batch was made is charged to the handoff, up to the whole wait."""
    ledger = Ledger()
    ledger.note(Trace(timeline(made_at=1000, network=500), STAGES), 70, arrived_at=1050)
    ledger.note(Trace(timeline(made_at=0), STAGES), 30, arrived_at=1050)
    assert ledger.nanoseconds[HANDOFF] == 50 + 30
    assert ledger.nanoseconds[NETWORK] == 20


def test_a_failed_batch_is_lost():
    """The wait for a batch that failed is charged as lost, as there is no trace of it."""
    ledger = Ledger()
    ledger.note(None, 40, 1000)
    assert ledger.nanoseconds[LOST] == 40
    assert ledger.timings.count == 0


def test_a_timeline_adds_up(monkeypatch):
    """The states of a batch follow each other without a gap, and the work of a dead worker is lost."""
    now = iter([10, 30, 60, 100, 150])
    monkeypatch.setattr(causes.time, "perf_counter_ns", lambda: next(now))
    told = BatchTimeline()
    for state in (NETWORK, NETWORK, WORK):
        told.enter(state)
    told.record_crash()
    told.enter(WORK)
    told.enter(MADE)
    assert told.spent == {NETWORK: 20, LOST: 30 + 40, WORK: 50}
    assert told.since == 150


def test_a_wait_that_goes_on():
    """A wait that goes on is charged to the state in which the batch is now."""
    told = BatchTimeline()
    told.state, told.since = NETWORK, 100
    assert so_far(told, 500, now=400) == {**dict.fromkeys(causes.DELAYS, 0), NETWORK: 300, WORK: 200}
    assert so_far(None, 500, now=400)[WORK] == 500


def test_the_tail_of_a_row():
    """A tail has the values that came since a count, at most the last 4,096."""
    recent: Recent[int] = Recent()
    for value in range(5000):
        recent.add(value)
    assert list(recent.tail().values_after(4998)) == [4998, 4999]
    assert len(recent.tail().values_after(0)) == 4096
    assert list(recent.tail().values_after(5000)) == []


def test_calls_per_batch():
    """The report costs the trainer's thread at most 35 calls for each batch, about 3 us (2026-11-20); calls repeat."""
    clock, trace, calls = TrainerClock(), Trace(timeline(network=50), STAGES, (7, 50)), [0]

    def count(frame: object, event: str, argument: object) -> None:
        calls[0] += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for _ in range(100):
            clock.ask(3)
            clock.begin()
            clock.arrive()
            clock.note_content(trace)
            clock.leave(8, 100)
    finally:
        sys.setprofile(None)
    assert calls[0] / 100 <= 35
