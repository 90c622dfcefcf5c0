"""The pool: workers that are started before it is known what they make."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time

import cloudpickle
import pytest

from streamer.errors import ConfigError
from streamer.loader.control import Kind, Note
from streamer.loader.handles import WorkerHandle
from streamer.loader.maker import MakerRules
from streamer.loader.pool import Crew, Pool
from streamer.loader.testing import FakeRecipe

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def number(epoch: int, ordinal: int) -> object:
    return ordinal


def heard(handle: WorkerHandle) -> Kind:
    """What it says next."""
    assert select.select([handle.channel], [], [], 20)[0]
    answer = next(handle.answers())
    assert answer is not None
    message, _ = answer
    assert isinstance(message, Note)
    return message.kind


@pytest.fixture
def make():
    """Makes pools that are closed after the test."""
    made = []

    def pool(*crew: object) -> Pool:
        made.append(Pool(Crew(*crew)))
        return made[-1]

    yield pool
    while made:
        made.pop().close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_nobody_forks_while_a_process_is_started(make, monkeypatch):
    """A fork of another thread would keep the pipe open on which Popen waits; torch's loader forks."""
    begun, ended, start = threading.Event(), threading.Event(), subprocess.Popen

    def slow(*arguments: object, **options: object) -> object:
        begun.set()
        time.sleep(0.3)
        try:
            return start(*arguments, **options)
        finally:
            ended.set()

    monkeypatch.setattr("streamer.loader.pool.subprocess.Popen", slow)
    pool = make("process", 1)
    starting = threading.Thread(target=pool.start, args=[0])
    starting.start()
    assert begun.wait(20)
    if (child := os.fork()) == 0:
        os._exit(0 if ended.is_set() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    starting.join()


def test_worker_comes_up_and_waits_until_it_is_equipped(make):
    """Then it opens the source; one that starts later is equipped at once, and none twice."""
    pool = make("process", 2)
    early = pool.start(0)
    assert heard(early) is Kind.UP
    assert pool.missing == [1]
    pool.equip(FakeRecipe(8, 2, number), MakerRules(seed=1))
    late = pool.start(1)
    pool.supply()
    for handle in (early, late):
        kind = heard(handle)
        assert (heard(handle) if kind is Kind.UP else kind) is Kind.READY
    assert pool.workers == {0: early, 1: late}
    assert pool.missing == []
    # None has a second payload waiting, which would be a descriptor that is never closed.
    assert not any(handle.channel.waiting for handle in (early, late))


def test_worker_that_is_not_wanted_goes(make):
    """Closed before it was equipped: killed, as it has nothing to lose."""
    pool = Pool(Crew("process", 1))
    handle = pool.start(0)
    pool.close()
    assert handle.process is not None
    assert handle.process.returncode is not None


def test_exit_report(make):
    """How a worker ended, and what it was doing."""
    pool = make("process", 1)
    handle = pool.start(0)
    handle.kill()
    report = pool.reap(handle)
    assert report.cause == "killed by SIGKILL"
    assert report.doing.task == 0
    assert not report.was_ready
    assert pool.missing == [0]


def test_recipe_that_cannot_be_sent(make):
    """What to do is in the error."""
    lock = threading.Lock()
    with pytest.raises(ConfigError, match="worker_type='thread'"):
        make("process", 1).equip(FakeRecipe(8, 2, number), MakerRules(seed=1, collate_fn=lambda _: lock))
