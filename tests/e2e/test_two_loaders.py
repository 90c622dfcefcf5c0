"""Several readers of one dataset object at once, on a real engine: no reader waits for another's answers."""

from __future__ import annotations

import multiprocessing.resource_tracker
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import chain, islice, repeat
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from streamer import StreamingDataLoader, StreamingDataset
from streamer.errors import ClosedError, StateError

SAMPLES = 96


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yields a folder of data, with an engine that outlives the tests of this module."""
    root = tmp_path_factory.mktemp("two")
    for number in range(SAMPLES):
        path = root / "data" / f"c{number % 3}" / f"{number:03d}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.full(5_000, number, np.int32))
    saved = dict(os.environ)
    os.environ |= {"STREAMER_CACHE_DIR": str(root / "cache"), "STREAMER_RUNTIME_DIR": str(root / "run")}
    multiprocessing.resource_tracker.ensure_running()
    probe = StreamingDataset(root / "data", cache_bytes="1GB")
    len(probe)
    yield root
    probe.close()
    os.environ.clear()
    os.environ.update(saved)


class Readers:
    """One dataset object and the loaders that read from it."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._opened = ExitStack()
        self.dataset = self.another(batch_size=8)

    def another(self, **options: object) -> StreamingDataset:
        return self._opened.enter_context(closing(StreamingDataset(self._place / "data", **options)))

    def load(self, batch_size: int, workers: int, dataset: StreamingDataset | None = None) -> StreamingDataLoader:
        made = StreamingDataLoader(dataset or self.dataset, batch_size, workers, report_every=None)
        return self._opened.enter_context(made)

    def close(self) -> None:
        """Closes loaders first, so that nothing is held any more."""
        self._opened.close()
        del self.dataset


@pytest.fixture
def readers(place: Path) -> Iterator[Readers]:
    """Yields readers that are closed after the test."""
    made = Readers(place)
    yield made
    made.close()


def torch_loader(dataset: StreamingDataset, workers: int = 2) -> DataLoader:
    with warnings.catch_warnings():
        # This machine has fewer cores than workers; Python 3.12 minds the fork beside a feeder's thread.
        warnings.simplefilter("ignore")
        return DataLoader(
            dataset, batch_size=8, num_workers=workers, multiprocessing_context="fork" if workers else None
        )


def counted(batch: dict[str, np.ndarray]) -> Counter[int]:
    return Counter(batch["npy"][:, 0].tolist())


ALL = Counter(range(SAMPLES))


@pytest.mark.parametrize(
    "workers", [(2, 2), pytest.param((0, 0), marks=pytest.mark.slow), pytest.param((0, 2), marks=pytest.mark.slow)]
)
def test_two_loaders_in_step(readers, workers):
    """Two loaders over one dataset, zipped, have the same batches and every sample once, epoch after epoch."""
    one, other = (readers.load(8, number) for number in workers)
    for _ in range(3):
        seen = Counter(), Counter()
        for mine, theirs in zip(one, other, strict=True):
            assert mine["npy"].tolist() == theirs["npy"].tolist()
            seen[0].update(counted(mine))
            seen[1].update(counted(theirs))
        assert seen == (ALL, ALL)


def test_a_second_loader_with_another_batch_size(readers):
    """A validation loader with another batch size reads whole epochs between the batches of the training loader."""
    train, look = readers.load(8, 2), readers.load(12, 1)
    for _ in range(2):
        seen = Counter()
        for number, batch in enumerate(train):
            seen += counted(batch)
            if number % 4 == 0:
                assert sum(map(counted, look), Counter()) == ALL
        assert seen == ALL


def test_ranks_with_two_loaders_each_do_not_disagree(readers):
    """Two ranks may have a training and a validation loader each: only batch sizes of the same loader must agree."""
    ranks = [readers.another(rank=rank, world_size=2) for rank in range(2)]
    loaders = [readers.load(size, 0, rank) for rank in ranks for size in (8, 12)]
    iterators = [iter(loader) for loader in loaders]
    assert [len(next(one)["npy"]) for one in iterators] == [8, 12, 8, 12]


def test_ranks_with_other_batches_are_refused(readers):
    """Ranks whose first loaders have different batch sizes are refused, as each would train on the other's samples."""
    ranks = [readers.another(rank=rank, world_size=2) for rank in range(2)]
    loaders = [readers.load(size, 0, rank) for rank, size in zip(ranks, (8, 12), strict=True)]
    next(iter(loaders[0]))
    with pytest.raises(StateError, match="global_batch is 24 and 16"):
        next(iter(loaders[1]))


@pytest.mark.parametrize("plain_first", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_torchs_loader_beside_ours(readers, plain_first):
    """torch's DataLoader and StreamingDataLoader read one dataset at once, each with every sample once.

    torch's workers are forked while the feeder's thread runs, or before it is there.
    """
    plain, ours = torch_loader(readers.dataset), readers.load(12, 2)
    seen = {id(plain): Counter(), id(ours): Counter()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        running = [(loader, iter(loader)) for loader in ((plain, ours) if plain_first else (ours, plain))]
        while running:
            for loader, batches in tuple(running):
                if (batch := next(batches, None)) is None:
                    running.remove((loader, batches))
                else:
                    seen[id(loader)] += counted(batch)
    assert seen == {id(plain): ALL, id(ours): ALL}


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_torchs_loader_zipped_with_itself(readers, workers):
    """torch's DataLoader zipped with itself reads two epochs at once over one dataset."""
    plain = torch_loader(readers.dataset, workers)
    seen = Counter(), Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for mine, theirs in zip(plain, plain, strict=True):
            seen[0].update(counted(mine))
            seen[1].update(counted(theirs))
    assert seen == (ALL, ALL)


def test_looking_while_a_loader_reads(readers):
    """Single samples can be read by number between the batches of a loader."""
    wanted = readers.dataset[7]["npy"].tolist()
    seen = Counter()
    for batch in readers.load(8, 2):
        seen += counted(batch)
        assert readers.dataset[7]["npy"].tolist() == wanted
    assert seen == ALL


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_data_set_closed_under_a_loader_is_an_error_there(readers, workers):
    """A dataset closed while two loaders read it raises ClosedError in each, and both go on with the next iter()."""
    loaders = readers.load(8, workers), readers.load(12, workers)
    iterators = [iter(loader) for loader in loaders]
    for batches in iterators:
        next(batches)
    readers.dataset.close()
    for batches, loader in zip(iterators, loaders, strict=True):
        # What the workers have made already still comes: a short epoch may be over before.
        with pytest.raises(ClosedError, match=r"dataset .or client. was closed"):
            list(chain(batches, *repeat(loader, 9)))
    for loader in loaders:
        assert sum(map(counted, loader), Counter()) == ALL


def test_a_data_set_closed_between_two_samples_of_a_loop(readers):
    """A loop over a dataset that is closed in between raises ClosedError, and a new loop has every sample."""
    samples = iter(readers.dataset)
    assert len(list(islice(samples, 12))) == 12
    readers.dataset.close()
    with pytest.raises(ClosedError):
        list(samples)
    assert Counter(int(sample["npy"][0]) for sample in readers.dataset) == ALL


def test_an_iterator_that_another_has_replaced_says_so(readers):
    """A StreamingDataLoader zipped with itself raises ClosedError, because it would yield no batch at all."""
    loader = readers.load(8, 0)
    with pytest.raises(ClosedError, match="two loaders"):
        list(zip(loader, loader, strict=True))
    assert sum(map(counted, loader), Counter()) == ALL
