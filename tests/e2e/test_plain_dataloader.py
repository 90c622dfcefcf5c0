"""StreamingDataset on a real engine: under torch's DataLoader, torchdata's, and in a loop; with worker processes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from streamer import Order, StreamingDataset
from streamer.client.engine_client import EngineClient
from streamer.config import Environment
from streamer.errors import DecodeError

SAMPLES = 100
BATCH = 8


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, standing_engine: Callable[[Path], None]) -> Path:
    """Returns a folder of data, with an engine."""
    root = tmp_path_factory.mktemp("plain")
    for number in range(SAMPLES):
        path = root / "data" / f"c{number % 3}" / f"{number:03d}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.full(20_000, number, np.int32))
    (root / "bad").mkdir()
    (root / "bad" / "1.cls").write_text("dog")
    standing_engine(root / "data")
    return root


@pytest.fixture
def make(place: Path, closing: Callable[[StreamingDataset], StreamingDataset]) -> Callable[..., StreamingDataset]:
    """Makes datasets that are closed after the test."""
    return lambda **options: closing(StreamingDataset(place / "data", **options))


def loader(dataset: StreamingDataset, kind: type[DataLoader] = DataLoader, **options: object) -> DataLoader:
    with warnings.catch_warnings():
        # This machine has fewer cores than some tests have workers.
        warnings.simplefilter("ignore", UserWarning)
        return kind(dataset, batch_size=BATCH, **options)


def batches(found: DataLoader) -> list[list[int]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return [batch["npy"][:, 0].tolist() for batch in found]


def flat(found: list[list[int]]) -> list[int]:
    return [number for batch in found for number in batch]


def in_order(make: Callable[..., StreamingDataset], epochs: int) -> list[list[int]]:
    dataset = make(batch_size=BATCH)
    return [[int(sample["npy"][0]) for sample in dataset] for _ in range(epochs)]


@pytest.mark.parametrize(
    ("workers", "start"), [(0, None), pytest.param(1, "fork", marks=pytest.mark.slow), (3, "fork")]
)
def test_batches_are_the_same_for_any_number_of_workers(make, workers, start):
    """A DataLoader over a dataset that knows the batch size has the batches of a bare loop with any number of workers.

    This holds epoch after epoch.
    """
    first, second = in_order(make, 2)
    assert set(first) == set(range(SAMPLES))
    dataset = make(batch_size=BATCH)
    torch_loader = loader(dataset, num_workers=workers, multiprocessing_context=start)
    assert len(dataset) == SAMPLES
    assert len(torch_loader) == 13
    assert flat(batches(torch_loader)) == first
    assert flat(batches(torch_loader)) == second


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_last_batch_is_short_or_filled_and_marked(make, workers):
    """The last batch is short on one rank; if it is filled, the mask `repeated` leaves each sample once on all ranks.

    100 samples make 13 batches of 8, of which the last has 4.
    """
    sizes = [len(batch) for batch in batches(loader(make(batch_size=BATCH), num_workers=workers))]
    assert sizes == [8] * 12 + [4]
    for ranks in (1, 2):
        found: Counter[int] = Counter()
        for rank in range(ranks):
            dataset = make(batch_size=BATCH, order=Order(last_batch="fill"), rank=rank, world_size=ranks)
            for step, batch in enumerate(batches(loader(dataset, num_workers=workers))):
                found.update(np.array(batch)[~dataset.repeated(step)].tolist())
            assert step + 1 == -(-SAMPLES // (BATCH * ranks))
        assert found == Counter(range(SAMPLES))


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_set_epoch_reaches_persistent_workers(make, start):
    """`set_epoch` reaches persistent workers, also back to an earlier epoch, and a lambda can be sent to them."""
    first, second = in_order(make, 2)
    dataset = make(batch_size=BATCH, transform=lambda sample: sample)
    torch_loader = loader(dataset, num_workers=2, multiprocessing_context=start, persistent_workers=True)
    for epoch, expected in ((None, first), (None, second), (0, first), (1, second)):
        if epoch is not None:
            dataset.set_epoch(epoch)
        assert flat(batches(torch_loader)) == expected


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_sample_once_over_ranks_and_workers_not_told_the_batch(make, workers, ranks):
    """A dataset that does not know the batch size gives all samples over ranks and workers, and few of them twice.

    The fillers are fewer than ranks.
    """
    found: Counter[int] = Counter()
    for rank in range(ranks):
        dataset = make(rank=rank, world_size=ranks)
        found.update(flat(batches(loader(dataset, num_workers=workers))))
    assert set(found) == set(range(SAMPLES))
    assert found.total() - SAMPLES == -SAMPLES % ranks


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_every_sample_once_over_ranks_and_workers_told_the_batch(make, ranks):
    """A dataset that knows the batch size gives all samples over ranks and workers, in equally many steps per rank."""
    found = []
    for rank in range(ranks):
        dataset = make(rank=rank, world_size=ranks, batch_size=BATCH)
        found.append(batches(loader(dataset, num_workers=2)))
    assert len({len(steps) for steps in found}) == 1
    total = Counter(number for steps in found for number in flat(steps))
    assert set(total) == set(range(SAMPLES))
    assert total.total() - SAMPLES == -SAMPLES % (BATCH * ranks)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [*(pytest.param(taken, marks=pytest.mark.slow) for taken in (0, 1, 13)), 5])
def test_stateful_dataloader_resumes(make, workers, taken):
    """torchdata's StatefulDataLoader resumes with the rest of the epoch, then the next one, with as many workers."""
    first, second = in_order(make, 2)
    before = loader(make(batch_size=BATCH), StatefulDataLoader, num_workers=workers)
    iterator = iter(before)
    taken_batches = [next(iterator)["npy"][:, 0].tolist() for _ in range(taken)]
    assert flat(taken_batches) == first[: taken * BATCH]
    if taken == 13:
        assert next(iterator, None) is None
    state = before.state_dict()
    del iterator, before
    after = loader(make(batch_size=BATCH), StatefulDataLoader, num_workers=workers)
    after.load_state_dict(state)
    if taken < 13:
        assert flat(batches(after)) == first[taken * BATCH :]
    assert flat(batches(after)) == second


def test_an_error_in_a_worker_arrives_with_its_type(make, place):
    """A DecodeError in a worker process is raised in the main process with its type, the sample and the decoder."""
    dataset = StreamingDataset(place / "bad")
    iterator = iter(loader(dataset, num_workers=1))
    with pytest.raises(DecodeError, match=r"1\.cls.*decode_class"):
        next(iterator)
    # The traceback holds the loader in a circle, and torch waits 5 s for workers that the collector ends.
    iterator._shutdown_workers()
    gc.collect()
    dataset.close()


def test_a_forked_child_does_not_touch_the_parents_line(make):
    """A loop over a dataset goes on while forked workers read it: they do not use the parent's connection."""
    dataset = make(batch_size=BATCH)
    iterator = iter(dataset)
    head = [next(iterator) for _ in range(3)]
    assert len(flat(batches(loader(dataset, num_workers=2)))) == SAMPLES
    rest = [int(sample["npy"][0]) for sample in iterator]
    assert len(head) + len(rest) == SAMPLES


SPAWNED = """
import sys
from streamer import StreamingDataset
from torch.utils.data import DataLoader
dataset = StreamingDataset(sys.argv[1], batch_size=8)
print(sum(len(batch["npy"]) for batch in DataLoader(dataset, batch_size=8, num_workers=1)))
"""


@pytest.mark.slow
def test_a_script_ends_by_itself(place):
    """A script with workers that closes nothing ends by itself, with nothing on its error output."""
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", SPAWNED, str(place / "data")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (found.stdout.strip(), found.returncode) == (str(SAMPLES), 0), found.stderr
    assert "Error" not in found.stderr


def test_every_byte_comes_from_the_store_once(make, place):
    """The store sends each byte once for all epochs of a dataset that fits into the cache.

    This holds whatever the tests of this module did before.
    """
    for workers in (0, 2):
        assert len(flat(batches(loader(make(batch_size=BATCH), num_workers=workers)))) == SAMPLES
    settings = make()._opening.options.client_settings(Environment.read(), "probe")
    with EngineClient(settings) as client:
        stored = client.statistics()["store_bytes"]
    sizes = [path.stat().st_size for path in place.rglob("*.npy")]
    assert sum(sizes) <= stored <= sum(sizes) + len("dog")


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_killed_engine_changes_nothing(make, workers):
    """A DataLoader whose engine is killed in mid-epoch has the same batches without an error."""
    (first,) = in_order(make, 1)
    dataset = make(batch_size=BATCH)
    with dataset._opening.connections.for_requests() as line:
        engine = line._connect().welcome.pid
    found = []
    for step, batch in enumerate(loader(dataset, num_workers=workers)):
        found += batch["npy"][:, 0].tolist()
        if step == 2:
            os.kill(engine, signal.SIGKILL)
    assert found == first
    assert len(dataset) == SAMPLES
    assert dataset[0]["npy"][0] in range(SAMPLES), "the main process finds the new engine, too"


def test_a_cache_that_is_damaged_under_way_changes_nothing(make, place):
    """Chunk files that are damaged in mid-epoch are leased again, and the samples come in the same order."""
    (first,) = in_order(make, 1)
    found = []
    for number, sample in enumerate(make(batch_size=BATCH)):
        found.append(int(sample["npy"][0]))
        if number == 20:
            for path in (place / "cache" / "chunks").rglob("*.chunk"):
                with path.open("r+b") as chunk:
                    chunk.seek(300)
                    chunk.write(b"\xaa" * 8)
    assert found == first
