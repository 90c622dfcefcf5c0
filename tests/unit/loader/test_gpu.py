"""Tests on a real CUDA device of what the simulated one shows, and of what only a real one can show: speed."""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator

import cloudpickle
import numpy as np
import pytest
import torch

from streamer.batches.ring import shared_memory as memory
from streamer.batches.ring.pinning import Pinner, TorchCuda
from streamer.batches.ring.ring import Limits, Ring
from streamer.loader.dataloader import StreamingDataLoader
from streamer.loader.device.prefetcher import CudaMover, DevicePrefetcher
from tests.fake_dataset import FakeDataset
from tests.inspection import copy_with, poison_freed_slots

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]

SIDE = 224
# A batch of 38.5 MB, as in benchmarks/loader.py.
BATCH = 256


def picture(epoch: int, ordinal: int) -> dict[str, object]:
    """Makes an image of bytes that say which sample they are, in every place."""
    value = (ordinal * 31 + epoch * 7) % 251
    return {"x": np.full((SIDE, SIDE, 3), value, np.uint8), "y": ordinal}


def small(epoch: int, ordinal: int) -> dict[str, object]:
    """Makes 64 KiB a sample, so that 100,000 batches are made in minutes."""
    return {"x": np.full(65536, (ordinal * 31 + epoch * 7) % 251, np.uint8), "y": ordinal}


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def copy_milliseconds(source: torch.Tensor, target: torch.Tensor) -> float:
    """Returns the median of 30 copies, by the device's clock."""
    spent = []
    for _ in range(35):
        start, stop = event(), event()
        start.record()
        target.copy_(source, non_blocking=True)
        stop.record()
        stop.synchronize()
        spent.append(start.elapsed_time(stop))
    return statistics.median(spent[5:])


def test_a_registered_ring_copies_as_fast_as_pinned_memory(device):
    """38.5 MB are copied from a slot of the ring as fast, within a tenth, as from torch's pinned memory.

    Both say that they are pinned.
    """
    nbytes = BATCH * SIDE * SIDE * 3
    pinner = Pinner(TorchCuda(), required=True)
    ring = Ring(Limits(4, 4, 1 << 30), lambda: None, pinner)
    try:
        slot = ring.take(late=False)
        assert slot is not None
        size = memory.align_to_page(nbytes)
        assert ring.adopt(slot, memory.create_memfd("test-slot", size), size)
        held = torch.from_numpy(ring.hold(slot))[:nbytes]
        pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        target = torch.empty(nbytes, dtype=torch.uint8, device=device)
        assert held.is_pinned()
        assert held.pin_memory().data_ptr() == held.data_ptr()
        ours, theirs = copy_milliseconds(held, target), copy_milliseconds(pinned, target)
        print(f"{nbytes / ours / 1e6:.1f} GB/s from the ring, {nbytes / theirs / 1e6:.1f} GB/s from pinned memory")
        assert ours < 1.1 * theirs
        del held
    finally:
        torch.cuda.synchronize()
        pinner.close()
        ring.close()


def test_copies_overlap_with_the_training(device):
    """A training step takes within 2 % as long with a loader as without, by medians of 100 steps."""
    weights = torch.randn(4096, 4096, device=device)

    def step(batch: object) -> None:
        out = weights
        for _ in range(12):
            out = out @ weights
            out = out / out.norm()
        torch.cuda.current_stream().synchronize()

    def spent(batches: Callable[[], Iterator[object]]) -> float:
        source, found = batches(), []
        for number in range(120):
            batch = next(source)
            started = time.perf_counter()
            step(batch)
            if number >= 20:
                found.append(time.perf_counter() - started)
        return statistics.median(found)

    fixed = picture(0, 1)
    alone = spent(lambda: iter(lambda: fixed, None))
    with StreamingDataLoader(FakeDataset(BATCH * 200, picture), BATCH, 4, device=device) as loader:
        fed = spent(lambda: iter(loader))
        assert loader.stats().pinned
    print(f"step {alone * 1e3:.2f} ms alone, {fed * 1e3:.2f} ms with the loader")
    assert fed < 1.02 * alone + 0.0002


def slowed(device: torch.device) -> CudaMover:
    """Makes copies that begin late, since the side stream has something else to do first."""

    class Slow(CudaMover):
        """Stands for a busy device: its side stream sleeps before each copy."""

        def move(self, batch, transform):
            with torch.cuda.stream(self._stream):
                torch.cuda._sleep(2_000_000)
            return super().move(batch, transform)

    return Slow(device)


@pytest.mark.parametrize("late", [False, True])
def test_every_batch_on_the_device_is_right(device, late):
    """3,000 batches on the device, some of them kept, have every value right when they come and later.

    Freed slots are poisoned; each batch is compared on the device.
    """
    check(device, 3000, late)


@pytest.mark.slow
def test_a_hundred_thousand_batches(device):
    """100,000 batches on the device have every value right when they come and later."""
    check(device, int(os.environ.get("STREAMER_GPU_BATCHES", "100000")), late=True)


def check(device: torch.device, count: int, late: bool) -> None:
    """Compares some batches on the device when they come, and parts of some that are kept; freed slots are poisoned."""
    chance, batch_size = random.Random(5), 16
    kept: deque[tuple[int, torch.Tensor]] = deque()
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    samples = batch_size * 1000
    loader = StreamingDataLoader(FakeDataset(samples, small), batch_size, 4, device=device)
    poison_freed_slots(loader)
    with loader:
        if late:
            copy_with(loader, slowed(device))
        done = 0
        while done < count:
            for batch in loader:
                # As the loader has delivered it: what is to be in it follows from the labels.
                epoch = loader.state_dict()["epoch"] - (loader.state_dict()["batch"] == 0)
                expected = (batch["y"] * 31 + epoch * 7) % 251
                wrong += (batch["x"] != expected.to(torch.uint8)[:, None]).sum()
                if chance.random() < 0.05:
                    kept.append((int(expected[3]), batch["x"][3, 100:200]))
                if len(kept) > 4:
                    value, part = kept.popleft()
                    wrong += (part != value).sum()
                done += 1
                if done == count:
                    break
        stats = loader.stats()
        assert stats.pinned
    del batch
    kept.clear()
    assert int(wrong) == 0


def test_the_users_own_copies_are_waited_for(device):
    """A slot is written again only after the user's own `to(device, non_blocking=True)` of its tensors."""
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    loader = StreamingDataLoader(FakeDataset(16 * 500, small), 16, 4)
    poison_freed_slots(loader)
    with loader:
        for _ in range(4):
            for batch in loader:
                torch.cuda._sleep(1_000_000)
                x, y = batch["x"].to(device, non_blocking=True), batch["y"].to(device, non_blocking=True)
                del batch
                first = x[:, :1]
                wrong += (x != first).sum()
                del x, y
        assert loader.stats().pinned
    assert int(wrong) == 0


def test_any_batches_are_prefetched(device):
    """Batches of tensors that do not come from a ring are moved to the device in order."""
    source = [{"x": torch.full((1000,), n), "name": str(n)} for n in range(50)]
    for number, batch in zip(range(50), DevicePrefetcher(source, device), strict=True):
        assert batch["name"] == str(number)
        assert batch["x"].device == device
        assert int(batch["x"].sum()) == 1000 * number
