"""The ring under torch's own DataLoader."""

from __future__ import annotations

import gc
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from streamer.loader import stock
from streamer.loader.stock import RingCollate

# fork warns when threads are alive, as torch's own pools are; what is tested is the ring.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


class Numbers(Dataset):
    def __init__(self, samples: int, small: int = 10**9) -> None:
        self.samples, self.small = samples, small

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, n: int) -> object:
        size = 300 if n < self.small else 9000
        return {"x": np.full(size, n, np.float32), "y": n, "key": f"k{n}", "t": torch.tensor([n, n])}


@pytest.fixture(autouse=True)
def _forget():
    yield
    gc.collect()
    stock._opened._rings.clear()


def equal(left, right) -> bool:
    return all(torch.equal(left[k], right[k]) if k != "key" else left[k] == right[k] for k in right)


def test_same_batches_on_the_ring():
    """Two epochs with two workers: torch's batches, in order, each a view on a worker's ring."""
    dataset = Numbers(40)
    loader = DataLoader(dataset, 4, num_workers=2, collate_fn=RingCollate())
    for _ in range(2):
        for number, batch in enumerate(loader):
            assert equal(batch, default_collate([dataset[n] for n in range(4 * number, 4 * number + 4)]))
            assert len(stock._opened._rings) >= 1
            del batch


def test_kept_batches():
    """Keeping all batches takes the ordinary path when the slots are used up; none changes."""
    dataset = Numbers(120)
    kept = list(DataLoader(dataset, 4, num_workers=1, collate_fn=RingCollate()))
    for number, batch in enumerate(kept):
        assert equal(batch, default_collate([dataset[n] for n in range(4 * number, 4 * number + 4)]))
    del kept, batch


def test_growing_batches():
    """A batch larger than its slots gets a larger ring."""
    dataset = Numbers(40, small=12)
    for number, batch in enumerate(DataLoader(dataset, 4, num_workers=1, collate_fn=RingCollate())):
        assert equal(batch, default_collate([dataset[n] for n in range(4 * number, 4 * number + 4)]))
        del batch


def test_without_workers_and_without_room():
    """No workers: plain collate. A budget below two batches: torch's own way."""
    dataset = Numbers(8)
    for workers, ring_bytes in ((0, "1MiB"), (1, 4096)):
        loader = DataLoader(dataset, 4, num_workers=workers, collate_fn=RingCollate(ring_bytes=ring_bytes))
        assert [int(batch["y"][0]) for batch in loader] == [0, 4]


def test_own_collate_fn_and_pickle():
    """A user's function is kept; the object travels by pickle without its ring."""
    again = pickle.loads(pickle.dumps(RingCollate(default_collate)))
    batch = next(iter(DataLoader(Numbers(4), 4, num_workers=1, collate_fn=again)))
    assert batch["y"].tolist() == [0, 1, 2, 3]
    del batch


def test_reference_is_small():
    """What torch's queue carries for a batch of 4.8 MB."""
    ring = stock._WorkerRing(stock.Shape(2, 8 << 20), 0)
    packed = stock.PackedBatch(stock.collate([{"x": np.zeros((100, 1500), np.float64)}] * 4))
    reference = ring.write(packed)
    assert len(pickle.dumps(reference)) < 256
    batch = pickle.loads(pickle.dumps(reference))
    assert batch["x"].shape == (4, 100, 1500)
    assert ring._mapping[0] == 1
    del batch
    assert ring._mapping[0] == 0
    del ring, reference


def test_stateful_dataloader():
    """torchdata's StatefulDataLoader gets the same tensors."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    dataset = Numbers(16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchdata 0.11 calls what torch 2.13 deprecates
        loader = stateful.StatefulDataLoader(dataset, 4, num_workers=2, collate_fn=RingCollate())
    assert [int(batch["y"][0]) for batch in loader] == [0, 4, 8, 12]
