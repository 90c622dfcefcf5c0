"""MixedDataset on a real engine: folders, tars and large arrays mixed, on any number of ranks and workers."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from streamer import MixedDataset, StreamingDataLoader, StreamingDataset, Weights
from tests.tars import tar_of

# Of members files, tars and large; a sample is its number, plus 1000 times that of its member.
SIZES = {"files": 130, "tars": 90, "large": 40}
BATCH = 24
WEIGHTS = {"files": 5, "tars": 2, "large": 1}


def array_of(number: int, length: int) -> bytes:
    import io

    sink = io.BytesIO()
    np.save(sink, np.full(length, number, np.int32))
    return sink.getvalue()


def same_length(sample: dict[str, object]) -> dict[str, object]:
    return {"npy": sample["npy"][:50], "__source__": sample["__source__"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, standing_engine: Callable[[Path], None]) -> Path:
    """Returns the data of the members, with an engine."""
    root = tmp_path_factory.mktemp("mix")
    for name, first, length in (("files", 0, 50), ("large", 2000, 300_000)):
        (root / name).mkdir()
        for number in range(SIZES[name]):
            (root / name / f"{number:03}.npy").write_bytes(array_of(first + number, length))
    (root / "tars").mkdir()
    for shard in range(3):
        numbers = range(shard * 30, shard * 30 + 30)
        entries = [(f"{number:03}.npy", array_of(1000 + number, 50)) for number in numbers]
        (root / "tars" / f"{shard}.tar").write_bytes(tar_of(entries))
    standing_engine(root / "files")
    return root


@pytest.fixture
def make(place: Path, closing: Callable[[StreamingDataset], StreamingDataset]) -> Callable[..., MixedDataset]:
    """Makes mixes that are closed after the test."""

    def mix(**options: object) -> MixedDataset:
        members = {name: StreamingDataset(place / name, transform=same_length) for name in SIZES}
        return closing(MixedDataset(members, **{"weights": Weights(WEIGHTS, epoch_samples=240), **options}))

    return mix


def taken(loader: object, steps: int | None = None) -> list[list[int]]:
    """Returns the samples of each batch."""
    with warnings.catch_warnings():
        # This machine has fewer cores than some tests have workers.
        warnings.simplefilter("ignore", UserWarning)
        found = []
        for batch in loader:
            found.append(batch["npy"][:, 0].tolist())
            if len(found) == steps:
                break
        return found


def stock(dataset: MixedDataset, kind: type[DataLoader] = DataLoader, **options: object) -> DataLoader:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return kind(dataset, batch_size=dataset._opening.options.batch_size, **options)


@pytest.fixture(scope="module")
def epochs(place: Path, standing_engine: Callable[[Path], None]) -> list[list[list[int]]]:
    """Returns three epochs of one rank, read by a bare loop: what all others must be."""
    members = {name: StreamingDataset(place / name, transform=same_length) for name in SIZES}
    data = MixedDataset(members, weights=Weights(WEIGHTS, epoch_samples=240), batch_size=BATCH)
    found = [[int(sample["npy"][0]) for sample in data] for _ in range(3)]
    data.close()
    return [[epoch[at : at + BATCH] for at in range(0, 240, BATCH)] for epoch in found]


def test_the_shares_are_exact(epochs):
    """A mix has its exact shares in each epoch and, within two samples, in each batch, and uses samples evenly.

    No sample of a member comes twice more than another.
    """
    for epoch in epochs:
        shares = np.array([[sum(number // 1000 == k for number in batch) for k in range(3)] for batch in epoch])
        assert shares.sum(axis=0).tolist() == [150, 60, 30]
        assert (abs(shares - np.array([15, 6, 3])) <= 2).all()
    uses = Counter(number for epoch in epochs for batch in epoch for number in batch)
    for k, size in enumerate(SIZES.values()):
        counts = [uses[1000 * k + number] for number in range(size)]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("ranks", "workers"),
    [(1, 2), (3, 1), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, 1), (2, 0), (4, 3)))],
)
def test_the_global_batches_are_the_same_for_ranks_and_workers(make, epochs, ranks, workers):
    """StreamingDataLoader makes the same global batches of a mix on any number of ranks and workers."""
    parts = []
    for rank in range(ranks):
        dataset = make(rank=rank, world_size=ranks)
        with StreamingDataLoader(dataset, BATCH // ranks, workers) as loader:
            parts.append([taken(loader) for _ in range(2)])
    for epoch in range(2):
        together = [sorted(sum(batches, [])) for batches in zip(*(part[epoch] for part in parts), strict=True)]  # noqa: RUF017
        assert together == [sorted(batch) for batch in epochs[epoch]]
    if ranks == 1:
        assert parts[0] == epochs[:2], "and in the same order"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("way", ["loader", "stock", "bare"])
def test_all_ways_on_all_ranks(make, epochs, ranks, way):
    """StreamingDataLoader, a stock DataLoader and a bare loop make the same global batches on 1 to 8 ranks.

    Ranks have 0 to 4 workers in turn.
    """
    parts = []
    for rank in range(ranks):
        dataset = make(rank=rank, world_size=ranks, batch_size=BATCH // ranks)
        workers = (rank + ranks) % 5
        if way == "loader":
            with StreamingDataLoader(dataset, BATCH // ranks, workers) as loader:
                parts.append(taken(loader))
        elif way == "stock":
            parts.append(taken(stock(dataset, num_workers=workers)))
        else:
            numbers = [int(sample["npy"][0]) for sample in dataset]
            parts.append([numbers[at : at + BATCH // ranks] for at in range(0, len(numbers), BATCH // ranks)])
    together = [sorted(sum(batches, [])) for batches in zip(*parts, strict=True)]  # noqa: RUF017
    assert together == [sorted(batch) for batch in epochs[0]]


@pytest.mark.parametrize(
    ("workers", "start"),
    [pytest.param(0, None, marks=pytest.mark.slow), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.slow)],
)
def test_a_stock_loader_has_the_same_batches(make, epochs, workers, start):
    """A stock DataLoader has the batches of StreamingDataLoader epoch after epoch, and after `set_epoch`."""
    dataset = make(batch_size=BATCH)
    loader = stock(dataset, num_workers=workers, multiprocessing_context=start)
    assert (len(dataset), len(loader)) == (240, 10)
    assert taken(loader) == epochs[0]
    assert taken(loader) == epochs[1]
    dataset.set_epoch(0)
    assert taken(loader) == epochs[0]


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_stateful_loader_resumes(make, epochs, workers):
    """torchdata's StatefulDataLoader resumes a mix in mid-epoch with the same number of workers."""
    before = stock(make(batch_size=BATCH), StatefulDataLoader, num_workers=workers)
    iterator = iter(before)
    head = [next(iterator)["npy"][:, 0].tolist() for _ in range(4)]
    assert head == epochs[0][:4]
    state = before.state_dict()
    del iterator, before
    after = stock(make(batch_size=BATCH), StatefulDataLoader, num_workers=workers)
    after.load_state_dict(state)
    assert taken(after) == epochs[0][4:]
    assert taken(after) == epochs[1]


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_killed_run_continues_on_other_ranks(make, epochs, ranks):
    """A mix saved by one of two ranks in mid-epoch continues on 1, 2 or 4 ranks with the rest of the epoch."""
    with StreamingDataLoader(make(rank=0, world_size=2), BATCH // 2, 1) as loader:
        iterator = iter(loader)
        for _ in range(13):
            next(iterator, None) or (iterator := iter(loader))
        state = loader.state_dict()
    done = state["position"] // BATCH + 10 * state["epoch"]
    rest = [batch for epoch in epochs for batch in epoch][done : (state["epoch"] + 1) * 10]
    parts = []
    for rank in range(ranks):
        with StreamingDataLoader(make(rank=rank, world_size=ranks), BATCH // ranks) as loader:
            loader.load_state_dict(state)
            parts.append(taken(loader))
    together = [sorted(sum(batches, [])) for batches in zip(*parts, strict=True)]  # noqa: RUF017
    assert together == [sorted(batch) for batch in rest]


def test_raw_arrays_and_strings_arrive_with_their_source(place, closing):
    """Samples of members without transforms go to the rows of one batch, decoded or as raw bytes, with their source."""
    members = {name: StreamingDataset(place / name) for name in ("files", "tars")}
    data = closing(MixedDataset(members, source_key="from"))
    with StreamingDataLoader(data, 20, 1) as loader:
        for epoch in range(2):
            found = [number for batch in loader for number in batch["npy"][:, 0].tolist()]
            assert sorted(found) == [*range(130), *range(1000, 1090)], epoch
        batches = list(loader)
        assert len(batches) == 11
        for batch in batches:
            assert batch["npy"].shape == (20, 50)
            assert all((row == row[0]).all() for row in batch["npy"])
            assert ["files" if row[0] < 1000 else "tars" for row in batch["npy"]] == list(batch["from"])
    raw = {name: StreamingDataset(place / name, decode=None) for name in ("files", "tars")}
    with StreamingDataLoader(closing(MixedDataset(raw)), 20, 1) as loader:
        for _ in range(3):
            batches = list(loader)
            assert len(batches) == 11
            for batch in batches:
                arrays = [np.frombuffer(content, np.int32)[-1] for content in batch["npy"]]
                assert ["files" if number < 1000 else "tars" for number in arrays] == list(batch["__source__"])


@pytest.mark.slow
def test_homogeneous_batches_need_no_common_shape(place, closing):
    """With batching="homogeneous" a batch has samples of one member, so that members need no common shape."""
    members = {name: StreamingDataset(place / name) for name in ("files", "large")}
    data = closing(
        MixedDataset(members, weights=Weights({"files": 2, "large": 1}, epoch_samples=180), batching="homogeneous")
    )
    with StreamingDataLoader(data, 10, 2) as loader:
        for _ in range(2):
            batches = list(loader)
            assert len(batches) == 18
            for batch in batches:
                assert batch["npy"].shape == ((10, 50) if batch["__source__"][0] == "files" else (10, 300_000))
                assert len(set(batch["__source__"])) == 1
                assert all((row == row[0]).all() for row in batch["npy"])


def test_statistics_by_member(make):
    """Statistics of a mix have what was drawn of each member, and its needs and hits in the engine."""
    with StreamingDataLoader(make(), BATCH, 1) as loader:
        names = Counter()
        for batch in loader:
            names.update(batch["__source__"])
        members = loader.stats().members
    assert {name: row.drawn for name, row in members.items()} == names
    for row in members.values():
        assert row.engine is not None
        assert row.engine.needs > 0
        assert 0 <= row.engine.hits <= row.engine.needs
