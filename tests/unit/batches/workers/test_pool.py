"""Tests of the pool of workers, which are started before it is known what they make; most start real processes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time

import cloudpickle
import pytest

from streamer.batches.workers.batch_maker import MakerRules
from streamer.batches.workers.fork_protocol import read_memory_file
from streamer.batches.workers.handle import WorkerHandle
from streamer.batches.workers.pool import WorkerConfig, WorkerPool
from streamer.batches.workers.protocol import Message, WorkerReady
from streamer.errors import ConfigError
from tests.fake_dataset import FakeRecipe

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def number(epoch: int, ordinal: int) -> object:
    return ordinal


def next_message(handle: WorkerHandle) -> Message:
    """Returns the next message that a worker sends."""
    assert select.select([handle.channel], [], [], 20)[0]
    answer = next(handle.answers())
    assert answer is not None
    return answer[0]


def start(pool: WorkerPool, number: int = 0) -> WorkerHandle:
    """Starts a worker in the way of the pool."""
    pool.connect()
    return pool.start(number)


@pytest.fixture
def make():
    """Makes pools that are closed after the test."""
    made = []

    def pool(*config: object) -> WorkerPool:
        made.append(WorkerPool(WorkerConfig(*config)))
        return made[-1]

    yield pool
    while made:
        made.pop().close()


both_ways = pytest.mark.parametrize("way", ["forkserver", "spawn"])


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_no_fork_while_a_process_is_started(make, monkeypatch):
    """A fork in another thread waits until a process is started.

    It would keep the pipe open on which Popen waits; torch's loader forks.
    """
    begun, ended, real = threading.Event(), threading.Event(), subprocess.Popen

    def slow(*arguments: object, **options: object) -> object:
        begun.set()
        time.sleep(0.3)
        try:
            return real(*arguments, **options)
        finally:
            ended.set()

    monkeypatch.setattr("streamer.base.child.subprocess.Popen", slow)
    pool = make("process", 1, "spawn")
    starting = threading.Thread(target=pool.start, args=[0])
    starting.start()
    assert begun.wait(20)
    if (child := os.fork()) == 0:
        os._exit(0 if ended.is_set() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    starting.join()


@pytest.mark.process
@both_ways
def test_a_worker_waits_until_it_is_configured(make, way):
    """A worker waits until it is configured and opens its source once.

    One that starts later gets the configuration at once.
    """
    pool = make("process", 2, way)
    early = start(pool)
    assert not select.select([early.channel], [], [], 0.3)[0]
    assert pool.missing == [1]
    pool.configure(FakeRecipe(8, 2, number), MakerRules(seed=1))
    late = start(pool, 1)
    pool.open_sources()
    pool.open_sources()
    assert [next_message(handle) for handle in (early, late)] == [WorkerReady(), WorkerReady()]
    assert pool.workers == {0: early, 1: late}
    assert pool.missing == []


@pytest.mark.process
@both_ways
def test_a_worker_that_is_not_used_ends_with_the_pool(make, way):
    """A worker that was not configured ends with the pool, as it has nothing to lose."""
    pool = make("process", 2, way)
    handle = start(pool)
    pool.close()
    assert handle.process is not None
    assert not os.path.exists(f"/proc/{handle.process.pid}")


@pytest.mark.process
@both_ways
def test_exit_report(make, way):
    """The report of a worker that ended has the signal and what the worker was doing."""
    pool = make("process", 2, way)
    handle = start(pool)
    handle.kill()
    # Reaping closes its channel: one that is not killed yet may find that first, and ends by itself.
    assert handle.process is not None
    assert handle.process.wait(60)
    report = pool.reap(handle)
    assert report.cause == "killed by SIGKILL"
    assert report.doing.task == 0
    assert not report.was_ready
    assert pool.missing == [0, 1]


def test_recipe_that_cannot_be_sent(make):
    """A recipe that cannot be sent is a `ConfigError` that says what to do."""
    lock = threading.Lock()
    with pytest.raises(ConfigError, match="worker_type='thread'"):
        make("process", 1).configure(FakeRecipe(8, 2, number), MakerRules(seed=1, collate_fn=lambda _: lock))


def test_a_recipe_of_any_length_is_sent_whole(make, monkeypatch):
    """Linux writes and reads 2 GiB with one call at most: a transform with a larger array was cut off."""
    write, read = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda file, content, at: write(file, content[:1000], at))
    monkeypatch.setattr(os, "pread", lambda file, count, at: read(file, min(count, 1000), at))
    pool = make("process", 1)
    table = bytes(range(256)) * 100
    pool.configure(FakeRecipe(8, 2, number), MakerRules(seed=1, collate_fn=lambda samples: table))
    _, rules = cloudpickle.loads(read_memory_file(os.dup(pool._payload)))
    assert rules.collate_fn(None) == table
