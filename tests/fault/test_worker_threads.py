"""Workers of both kinds: the same batches, errors from where they were raised, and workers that start or fail early."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from dataclasses import dataclass

import cloudpickle
import numpy as np
import pytest

from streamer.errors import ConfigError
from streamer.loader.dataloader import StreamingDataLoader
from tests.fake_dataset import FakeDataset, FakeRecipe
from tests.inspection import inspect

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def sample(epoch: int, ordinal: int) -> dict[str, object]:
    return {"x": np.full(500, ordinal + 1000 * epoch), "key": str(ordinal)}


def slower(epoch: int, ordinal: int) -> dict[str, object]:
    time.sleep(0.0005)
    return sample(epoch, ordinal)


def digest(batches) -> str:
    found = hashlib.sha256()
    for batch in batches:
        found.update(batch["x"].numpy().tobytes() + "".join(batch["key"]).encode())
    return found.hexdigest()


def two_epochs(loader: StreamingDataLoader):
    return (batch for _ in range(2) for batch in loader)


def expected(samples: int) -> str:
    with StreamingDataLoader(FakeDataset(samples, sample), 8) as loader:
        return digest(two_epochs(loader))


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_same_stream_for_any_number_of_workers(kind):
    """Two epochs have the same batches in order for any number of workers, be they processes or threads."""
    truth = expected(100)
    for workers in (1, 2, 4):
        with StreamingDataLoader(FakeDataset(100, slower), 8, workers, worker_type=kind) as loader:
            assert digest(two_epochs(loader)) == truth


def where(epoch: int, ordinal: int) -> dict[str, object]:
    time.sleep(0.002)
    return {"pid": os.getpid(), "thread": threading.get_ident()}


def test_threads_of_the_trainer_work_at_the_same_time():
    """Three workers are three threads of this process, and all of them make batches."""
    with StreamingDataLoader(FakeDataset(120, where), 2, 3, worker_type="thread") as loader:
        batches = list(loader)
    assert {int(b["pid"][0]) for b in batches} == {os.getpid()}
    assert len({int(b["thread"][0]) for b in batches}) == 3


def failing(epoch: int, ordinal: int) -> object:
    if ordinal % 8 == 7:
        raise ValueError(f"sample {ordinal} is bad")
    return {"x": ordinal}


def test_errors_come_from_the_thread_that_raised_them():
    """An error in a worker thread is raised in order, with its own text and traceback; other batches are delivered."""
    with StreamingDataLoader(FakeDataset(32, failing), 4, 3, worker_type="thread") as loader:
        batches = iter(loader)
        for number in range(8):
            if number % 2:
                with pytest.raises(ValueError, match=f"sample {number * 4 + 3} is bad") as caught:
                    next(batches)
                assert "in failing" in str(caught.value.__cause__)
            else:
                assert next(batches)["x"].tolist() == list(range(number * 4, number * 4 + 4))


def test_threads_per_worker_is_refused():
    """The argument threads_per_worker is refused with an error that names num_workers."""
    with pytest.raises(ConfigError, match=r"threads_per_worker=2 .* use more num_workers"):
        StreamingDataLoader(FakeDataset(4, sample), 2, 1, threads_per_worker=2)


@dataclass(frozen=True)
class FailsOnce(FakeRecipe):
    """A source that the first worker that tries cannot open."""

    mark: str = ""

    def open(self):
        try:
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return super().open()
        raise OSError("no memory just now")


class Unlucky(FakeDataset):
    """A dataset whose source fails to open once."""

    mark: str

    def prepare(self, batch_size: int, last_batch):
        prepared = super().prepare(batch_size, last_batch)
        prepared.made = FailsOnce(40, batch_size, sample, mark=self.mark)
        return prepared


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_worker_that_cannot_open_its_source_is_given_nothing(tmp_path, kind):
    """A worker that cannot open its source raises its error, and the other worker makes the next epoch."""
    dataset = Unlucky(40, sample)
    dataset.mark = str(tmp_path / "mark")
    with StreamingDataLoader(dataset, 8, 2, worker_type=kind) as loader:
        # The other worker may make whole epochs before this one has said so.
        epochs = (list(loader) for _ in range(1000))
        with pytest.raises(OSError, match="no memory just now"):
            list(epochs)
        assert len(list(loader)) == 5


class Slow(FakeDataset):
    """A dataset that is made ready only after a worker process has started."""

    loader: StreamingDataLoader

    def prepare(self, batch_size: int, last_batch):
        deadline = time.monotonic() + 60
        while not inspect(self.loader).worker_pids:
            assert time.monotonic() < deadline, "no worker was started"
            time.sleep(0.002)
        return super().prepare(batch_size, last_batch)


def test_workers_start_while_the_data_set_is_made_ready():
    """Workers start while the dataset is made ready, before the engine has answered."""
    dataset = Slow(40, sample)
    with StreamingDataLoader(dataset, 8, 2) as loader:
        dataset.loader = loader
        assert len(list(loader)) == 5


class Bad(FakeDataset):
    """A dataset that cannot be made ready."""

    def prepare(self, batch_size: int, last_batch):
        raise ConfigError("no such bucket", field="url")


def test_workers_that_were_started_in_vain_go():
    """Workers of a dataset that cannot be made ready are stopped, and its error is raised, also at a second try."""
    loader = StreamingDataLoader(Bad(40, sample), 8, 2)
    for _ in range(2):
        with pytest.raises(ConfigError, match="no such bucket"):
            iter(loader)
        assert not inspect(loader).started
    loader.close()
