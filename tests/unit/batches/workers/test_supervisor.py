"""Tests of which workers start when; none of them runs."""

from __future__ import annotations

import selectors
from types import SimpleNamespace

import pytest

from streamer.batches.workers import supervisor as staffs
from streamer.batches.workers.pool import WorkerConfig
from streamer.batches.workers.supervisor import Supervisor


@pytest.fixture
def started(monkeypatch):
    """Returns the numbers of the workers that were started, none of which becomes ready by itself."""
    numbers = []

    def start(self, number):
        numbers.append(number)
        self.pool.workers[number] = SimpleNamespace(ready=False)

    monkeypatch.setattr(Supervisor, "_start", start)
    monkeypatch.setattr(staffs, "_STARTING", 1)
    return numbers


@pytest.fixture
def make():
    """Makes a supervisor of three workers, none of which runs."""
    made = []

    def supervisor() -> Supervisor:
        made.append(Supervisor(WorkerConfig("process", 3), selectors.DefaultSelector(), None, None))
        return made[-1]

    yield supervisor
    while made:
        made[-1].pool.workers.clear()
        made[-1].pool.close()
        made.pop()._selector.close()


def test_the_first_worker_starts_once(started, make):
    """The first worker starts once, however often it is asked for."""
    supervisor = make()
    supervisor.start_first()
    supervisor.start_first()
    assert started == [0]


def test_one_after_the_other(started, make):
    """A worker starts when the one before it is ready, and no more than there are to be."""
    supervisor = make()
    supervisor.start_first()
    for _ in range(4):
        supervisor.start_another()
        supervisor.start_another()
        for handle in supervisor.pool.workers.values():
            handle.ready = True
    assert started == [0, 1, 2]


def test_several_start_together_on_a_large_machine(started, make, monkeypatch):
    """As many workers start together as the machine's limit of starting ones allows."""
    supervisor = make()
    monkeypatch.setattr(staffs, "_STARTING", 2)
    supervisor.start_first()
    supervisor.start_another()
    supervisor.start_another()
    assert started == [0, 1]
