"""Who is hired when."""

from __future__ import annotations

import selectors
from types import SimpleNamespace

import pytest

from streamer.loader import staff as staffs
from streamer.loader.pool import Crew
from streamer.loader.staff import Staff


@pytest.fixture
def hired(monkeypatch):
    """Numbers of the workers that were started, none of which comes up by itself."""
    numbers = []

    def hire(self, number):
        numbers.append(number)
        self.pool.workers[number] = SimpleNamespace(up=False)

    monkeypatch.setattr(Staff, "_hire", hire)
    return numbers


@pytest.fixture
def make():
    """A staff of nobody; at the end its memory goes."""
    made = []

    def make(crew):
        made.append(Staff(crew, selectors.DefaultSelector(), None, lambda: None))
        return made[-1]

    yield make
    while made:
        made[-1].pool.workers.clear()
        made[-1].pool.close()
        made.pop()._selector.close()


def come_up(staff, number):
    staff._up(staff.pool.workers[number])


def test_only_the_first_workers_start_before_there_is_work(hired, make, monkeypatch):
    """Of three on a small machine one starts beside the engine, though it is up; the others when there is work."""
    monkeypatch.setattr(staffs, "_STARTING", 1)
    staff = make(Crew("process", 3))
    staff.hire_missing()
    come_up(staff, 0)
    staff.hire_missing()
    assert hired == [0]
    assert staff.patience_seconds is None
    staff.begin()
    assert staff.patience_seconds is not None
    monkeypatch.setattr(staffs.time, "monotonic", lambda: 0.0)
    staff.hire_the_rest(taken=False)
    assert hired == [0]
    staff.hire_the_rest(taken=True)
    staff.hire_the_rest(taken=True)
    assert hired == [0, 1]
    assert staff.patience_seconds is None
    come_up(staff, 1)
    assert hired == [0, 1, 2]


def test_a_first_batch_that_takes_long_gets_help(hired, make, monkeypatch):
    """The others start though nothing is made, when the feeder has slept as long as it was told."""
    monkeypatch.setattr(staffs, "_STARTING", 1)
    now = [100.0]
    monkeypatch.setattr(staffs.time, "monotonic", lambda: now[0])
    staff = make(Crew("process", 2))
    staff.hire_missing()
    staff.begin()
    now[0] += staff.patience_seconds
    assert staff.patience_seconds == 0.0
    come_up(staff, 0)
    staff.hire_the_rest(taken=False)
    assert hired == [0, 1]


def test_as_many_start_together_as_there_is_room_for(hired, make, monkeypatch):
    """On a large machine all of them are there before the first chunk is."""
    monkeypatch.setattr(staffs, "_STARTING", 4)
    make(Crew("process", 3)).hire_missing()
    assert hired == [0, 1, 2]


def test_threads_wait_for_nothing(hired, make, monkeypatch):
    """A thread costs nothing to start."""
    monkeypatch.setattr(staffs, "_STARTING", 1)
    staff = make(Crew("thread", 2))
    staff.hire_missing()
    come_up(staff, 0)
    assert hired == [0, 1]
