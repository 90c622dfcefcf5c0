"""Tests of waits that look like a hang: each is logged once, with what it is for."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import time
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest

from streamer.batches import waiting
from streamer.batches.waiting import WaitNotice, watch_wait
from streamer.config import RankConfig
from streamer.errors import StoreTimeoutError
from streamer.loader import agreement
from streamer.loader.dataloader import StreamingDataLoader
from streamer.loader.feed.waits import name_rank
from streamer.wire.messages import IndexProgress
from tests.fake_dataset import FakeDataset

logger = logging.getLogger("streamer.loader.test_waiting")
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """Lets a wait be logged after 0.05 s."""
    monkeypatch.setattr(waiting, "NOTICE_SECONDS", 0.05)


class Bell:
    """Stands for a wait of the loader: raises a TimeoutError after a limited time, without waiting."""

    def __init__(self, *, late: bool) -> None:
        self.late = late
        self.waits: list[float | None] = []

    def __call__(self, seconds: float | None) -> str:
        self.waits.append(seconds)
        if self.late and seconds is not None:
            raise TimeoutError
        return "here"


def test_a_short_wait_says_nothing(caplog):
    """A wait that ends in time logs nothing."""
    assert WaitNotice(logger).wait(Bell(late=False), lambda: "nothing") == "here"
    assert not caplog.records


def test_a_long_wait_says_once_what_for(caplog, monkeypatch):
    """A long wait is one warning, after which it waits without limit; the next is logged after a minute only."""
    clock = [1000.0]
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    notice, bell = WaitNotice(logger, "rank 3: "), Bell(late=True)
    for after in (0.0, 59.0, 2.0):
        clock[0] += after
        assert notice.wait(bell, lambda: f"the moon at {clock[0]:.0f}") == "here"
    assert bell.waits == [0.05, None] * 3
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert lines == [("WARNING", f"rank 3: waiting for the moon at {at}") for at in (1000, 1061)]


def test_a_timeout_of_the_store_is_an_error(caplog):
    """A `StoreTimeoutError` ends a wait, although it is a TimeoutError, too."""

    def wait(seconds: float | None) -> None:
        raise StoreTimeoutError("s3://b/k: no answer")

    with pytest.raises(StoreTimeoutError):
        WaitNotice(logger).wait(wait, lambda: "nothing")
    assert not caplog.records


def test_a_wait_that_another_says_is_silent(caplog):
    """A wait without a text logs nothing."""
    WaitNotice(logger).wait(Bell(late=True), lambda: "")
    assert not caplog.records


def test_a_block_is_watched_from_outside(caplog, monkeypatch):
    """A block that takes long is logged from another thread, as calls without a timeout need; a quick one is not."""
    with monkeypatch.context() as patient:
        patient.setattr(waiting, "NOTICE_SECONDS", 60.0)
        with watch_wait(logger, lambda: "a quick block"):
            pass
    said = threading.Event()

    def what() -> str:
        said.set()
        return "a slow block"

    with watch_wait(logger, what):
        assert said.wait(60)
    _joined("streamer-notice")
    assert [record.getMessage() for record in caplog.records] == ["waiting for a slow block"]


def _joined(name: str) -> None:
    """Waits until the threads of this name have ended."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(60)


def sample(epoch: int, ordinal: int) -> object:
    return {"x": np.full(4, ordinal, np.float32)}


@pytest.mark.parametrize("workers", [0, 1])
def test_chunks_that_are_not_local_are_waited_for_by_name(caplog, workers):
    """A wait for chunks is logged with epoch, batch and what the engine does, and the batch then comes."""
    dataset = FakeDataset(12, sample, held_back=True)
    engine = {"fetches": 3, "in_flight": 7}

    def allow() -> None:
        _until(lambda: "waiting for" in caplog.text)
        dataset.prepared.first_session().allow(11)

    with StreamingDataLoader(dataset, 4, workers, worker_type="thread", report_every=None) as loader:
        batches = iter(loader)
        dataset.prepared.engine_values = engine
        _until(lambda: not workers or _state(loader) == "network")
        thread = threading.Thread(target=allow)
        thread.start()
        assert next(batches)["x"][:, 0].tolist() == [0, 1, 2, 3]
        thread.join()
        assert len(list(batches)) == 2
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert lines[0].startswith("waiting for the data of epoch 0, batch 0")
    assert lines[0].endswith("; the engine is to fetch 3 chunks, with 7 requests under way")


def _state(loader: StreamingDataLoader) -> str:
    """Returns the state of the batch that is delivered next."""
    head = loader._supply.head
    return "" if head is None else head.state


def _until(reached) -> None:
    """Waits until something is reached, at most a minute."""
    deadline = time.monotonic() + 60
    while not reached() and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert reached()


def test_a_slow_sample_is_named(caplog):
    """A wait for a slow sample is logged with the worker and the sample."""
    release = threading.Event()

    def slow(epoch: int, ordinal: int) -> object:
        if ordinal == 2:
            release.wait(60)
        return {"x": ordinal}

    def free() -> None:
        _until(lambda: "waiting for" in caplog.text)
        release.set()

    with StreamingDataLoader(FakeDataset(8, slow), 4, 1, worker_type="thread", report_every=None) as loader:
        batches = iter(loader)
        _until(lambda: _state(loader) == "work")
        thread = threading.Thread(target=free)
        thread.start()
        assert next(batches)["x"].tolist() == [0, 1, 2, 3]
        thread.join()
    assert "waiting for epoch 0, batch 0: worker 0 is at it, now at sample 2 (#2)" in caplog.text


@pytest.mark.process
def test_workers_that_import_are_named_with_their_modules(caplog, tmp_path, monkeypatch):
    """A wait for workers that start is logged with the modules of user code that they import first."""
    code = f"import os, time\nif os.getpid() != {os.getpid()}: time.sleep(1)\n"
    code += "def sample(epoch, ordinal): return ordinal\n"
    (tmp_path / "slow_to_import.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    make = importlib.import_module("slow_to_import").sample
    with StreamingDataLoader(FakeDataset(8, make), 4, 1, report_every=None) as loader:
        batches = iter(loader)
        _until(lambda: _state(loader) == "start")
        assert next(batches).tolist() == [0, 1, 2, 3]
    assert (
        "waiting for worker processes, to make epoch 0, batch 0: they start, and import the modules of your code first "
        "(slow_to_import)"
    ) in caplog.text


def test_a_listing_is_said_with_its_progress(make_dataset, folder, fake_engine, caplog, monkeypatch):
    """A listing that takes long is one warning, of the first rank of a node; its progress is information."""
    caplog.set_level(logging.INFO)
    with monkeypatch.context() as patient:
        patient.setattr(waiting, "NOTICE_SECONDS", 60.0)
        assert make_dataset(folder).samples == 100
    _joined("streamer-notice")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("INFO", "indexing: index it")]
    caplog.clear()
    build = fake_engine.build

    def slow(request):
        if asked.rank_config().rank == 0:
            _until(lambda: "waiting for" in caplog.text)
        return build(request)

    monkeypatch.setattr(fake_engine, "build", slow)
    for rank in (0, 1):
        asked = make_dataset(folder, rank=rank, world_size=2)._member
        assert asked.open().samples == 100
    _joined("streamer-notice")
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line == (
        f"waiting for the engine to list and index {folder} (index it); an index that would take longer than "
        "Index(max_seconds=600) is refused"
    )


@pytest.mark.parametrize(
    ("options", "said"), [({}, True), ({"engine": "unix:/run/none.sock"}, False)], ids=["started", "external"]
)
def test_an_engine_that_starts_slowly_is_said_with_its_log(make_dataset, folder, caplog, monkeypatch, options, said):
    """An engine that starts slowly is named with its log; a client says it itself of an external one."""
    found = make_dataset(folder, **options)._member
    monkeypatch.setattr(type(found.connections), "connected", False)
    text = found.describe_wait()
    assert bool(text) == said
    assert not said or (text.startswith("the engine of ") and "to start; log /" in text)


def test_the_cost_of_a_long_index_is_a_warning(caplog, monkeypatch):
    """The cost of a long index is one warning, on the first rank; later progress is information."""
    caplog.set_level(logging.INFO)
    clock = [10.0]
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    announcers = [waiting.Announcer(rank) for rank in (0, 1)]
    for at in (10.01, 12.0, 14.0):
        clock[0] = at
        for each in announcers:
            each(IndexProgress(0, f"at {at:g}", 0, 1))
    levels = [record.levelname for record in caplog.records]
    assert levels == ["INFO", "INFO", "WARNING", "INFO", "INFO", "INFO"]
    assert announcers[0].so_far == " (at 14)"


class Meeting:
    """Stands for a store of torch.distributed to which rank 1 comes late, as soon as it is waited for."""

    def __init__(self) -> None:
        self.values = {"0": b"zero"}

    def check(self, keys: list[str]) -> bool:
        return set(keys) <= set(self.values)

    def wait(self, keys: list[str], timeout: object) -> None:
        self.values["1"] = b"one"

    def get(self, key: str) -> bytes:
        return self.values[key]


def test_ranks_that_do_not_come_are_named(caplog):
    """Rank 0 names the ranks that it waits for, and rank 1 rank 0."""
    assert agreement._collect(Meeting(), ["0", "1"]) == ["zero", "one"]
    assert "waiting for ranks [1] of 2 to compare their datasets" in caplog.text
    assert "an error after 1800 s" in caplog.text
    assert agreement._describe_first(1).startswith("rank 0, which")
    assert not agreement._describe_first(2)


def test_who_speaks_is_named():
    """Lines of the log name the rank where there are several."""

    class Ranked:
        """Stands for a dataset of a rank, as far as its name is asked for."""

        def __init__(self, rank: int, world_size: int) -> None:
            self.rank_config = RankConfig(rank=rank, world_size=world_size)

    assert [name_rank(Ranked(3, 4)), name_rank(Ranked(0, 1))] == ["rank 3: ", ""]
