"""Workers of several threads: the same batches, and a death or an error costs what it must, no more."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass

import cloudpickle
import numpy as np
import pytest

from streamer.errors import ConfigError, WorkerError
from streamer.loader.dataloader import StreamingDataLoader
from streamer.loader.testing import FakeDataset, FakeRecipe

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SHAPES = [(1, 1), (1, 3), (2, 2), (3, 1)]


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
def test_same_stream_for_any_workers_and_threads(kind):
    """Two epochs, in order, whatever makes them."""
    truth = expected(100)
    for workers, threads in SHAPES:
        with StreamingDataLoader(
            FakeDataset(100, slower), 8, workers, threads_per_worker=threads, worker_type=kind
        ) as loader:
            assert digest(two_epochs(loader)) == truth


def where(epoch: int, ordinal: int) -> dict[str, object]:
    time.sleep(0.002)
    return {"pid": os.getpid(), "thread": threading.get_ident()}


def test_threads_work_at_the_same_time():
    """One process, three threads, all of them make batches."""
    with StreamingDataLoader(FakeDataset(120, where), 2, 1, threads_per_worker=3) as loader:
        batches = list(loader)
    assert len({int(b["pid"][0]) for b in batches}) == 1
    assert len({int(b["thread"][0]) for b in batches}) == 3


class Counting:
    """A transform that would mix up its calls if threads shared it."""

    def __init__(self) -> None:
        self.inside = 0

    def __call__(self, epoch: int, ordinal: int) -> object:
        self.inside += 1
        time.sleep(0.001)
        found = self.inside
        self.inside -= 1
        return {"inside": found}


def test_each_thread_has_a_transform_of_its_own():
    """Transforms need not know of threads."""
    with StreamingDataLoader(FakeDataset(60, Counting()), 2, 1, threads_per_worker=3) as loader:
        assert all((batch["inside"] == 1).all() for batch in loader)


def test_killed_worker_loses_only_what_its_threads_had():
    """SIGKILL: one respawn, the same batches."""
    with StreamingDataLoader(FakeDataset(200, slower), 8, 2, threads_per_worker=2) as loader:

        def batches():
            for number, batch in enumerate(two_epochs(loader)):
                if number == 5:
                    os.kill(loader._supply.feeder._pool.hosts[0].process.pid, signal.SIGKILL)
                yield batch

        assert digest(batches()) == expected(200)
        assert loader.stats().respawns == 1


def deadly(epoch: int, ordinal: int) -> object:
    time.sleep(0.002)
    if (epoch, ordinal) == (0, 13):
        signal.raise_signal(signal.SIGSEGV)
    return {"x": ordinal}


def test_deadly_sample_is_named_and_nobody_else():
    """Other threads of its process were at work each time it died: theirs is made again, and not blamed."""
    with StreamingDataLoader(FakeDataset(80, deadly), 4, 1, threads_per_worker=4) as loader:
        batches, found = iter(loader), []
        for number in range(20):
            if number == 3:
                with pytest.raises(WorkerError, match=r"sample 13 .*killed by SIGSEGV"):
                    next(batches)
            else:
                found += next(batches)["x"].tolist()
        assert found == [n for n in range(80) if n not in range(12, 16)]
        assert loader.stats().respawns == 2


def stuck(epoch: int, ordinal: int) -> object:
    if (epoch, ordinal) == (0, 6):
        threading.Event().wait()
    time.sleep(0.01)
    return {"x": ordinal}


def test_stuck_sample_is_named_and_nobody_else():
    """Its worker is replaced twice, then it is an error; the batches beside it come."""
    with StreamingDataLoader(FakeDataset(40, stuck), 4, 1, threads_per_worker=3, timeout=0.4) as loader:
        batches = iter(loader)
        found = next(batches)["x"].tolist()
        with pytest.raises(WorkerError, match="sample 6"):
            next(batches)
        found += [n for batch in batches for n in batch["x"].tolist()]
    assert found == [n for n in range(40) if n not in range(4, 8)]


def failing(epoch: int, ordinal: int) -> object:
    if ordinal % 8 == 7:
        raise ValueError(f"sample {ordinal} is bad")
    return {"x": ordinal}


def test_errors_come_from_the_thread_that_raised_them():
    """With their own text and traceback, in order; what is between them is delivered."""
    with StreamingDataLoader(FakeDataset(32, failing), 4, 1, threads_per_worker=3) as loader:
        batches = iter(loader)
        for number in range(8):
            if number % 2:
                with pytest.raises(ValueError, match=f"sample {number * 4 + 3} is bad") as caught:
                    next(batches)
                assert "in failing" in str(caught.value.__cause__)
            else:
                assert next(batches)["x"].tolist() == list(range(number * 4, number * 4 + 4))


def test_threads_need_a_worker():
    """Without workers there is nobody whose threads they would be."""
    with pytest.raises(ConfigError, match="threads_per_worker=2 with num_workers=0"):
        StreamingDataLoader(FakeDataset(4, sample), 2, threads_per_worker=2)
    with pytest.raises(ConfigError, match="threads_per_worker=0 is below 1"):
        StreamingDataLoader(FakeDataset(4, sample), 2, 1, threads_per_worker=0)


@dataclass(frozen=True)
class FailsOnce(FakeRecipe):
    """Cannot be opened by the first thread that tries."""

    mark: str = ""

    def open(self):
        try:
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return super().open()
        raise OSError("no memory just now")


class Unlucky(FakeDataset):
    mark: str

    def prepare(self, batch_size: int, drop_last: bool):
        prepared = super().prepare(batch_size, drop_last)
        prepared.made = FailsOnce(40, batch_size, sample, mark=self.mark)
        return prepared


def test_a_thread_that_cannot_open_its_source_is_given_nothing(tmp_path):
    """The other threads of its process go on; its error comes, and the next try waits for nobody."""
    dataset = Unlucky(40, sample)
    dataset.mark = str(tmp_path / "mark")
    with StreamingDataLoader(dataset, 8, 1, threads_per_worker=2) as loader:
        # The other thread may make whole epochs before this one has said so.
        epochs = (list(loader) for _ in range(1000))
        with pytest.raises(OSError, match="no memory just now"):
            list(epochs)
        assert len(list(loader)) == 5


class Slow(FakeDataset):
    """Is ready only when a worker is up."""

    loader: StreamingDataLoader

    def prepare(self, batch_size: int, drop_last: bool):
        deadline = time.monotonic() + 60
        while not any(host.up for host in self.loader._provision._feeder._pool.hosts.values()):
            assert time.monotonic() < deadline, "no worker came up"
            time.sleep(0.002)
        return super().prepare(batch_size, drop_last)


def test_workers_start_while_the_data_set_is_made_ready():
    """The first worker has imported everything before the engine has answered."""
    dataset = Slow(40, sample)
    with StreamingDataLoader(dataset, 8, 2) as loader:
        dataset.loader = loader
        assert len(list(loader)) == 5


class Bad(FakeDataset):
    def prepare(self, batch_size: int, drop_last: bool):
        raise ConfigError("no such bucket", field="url")


def test_workers_that_were_started_in_vain_go():
    """The data set cannot be made ready: its error, and nothing left; again for a second try."""
    loader = StreamingDataLoader(Bad(40, sample), 8, 2)
    for _ in range(2):
        with pytest.raises(ConfigError, match="no such bucket"):
            iter(loader)
        assert loader._provision._feeder is None
    loader.close()
