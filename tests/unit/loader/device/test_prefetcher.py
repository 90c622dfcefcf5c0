"""Tests of batches that move to a device ahead of their use: order, lifetimes, errors, normalising.

A fake device copies as late as a real one may; with a GPU, one test uses CUDA.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch

from streamer.errors import ConfigError
from streamer.loader.dataloader import StreamingDataLoader
from streamer.loader.device.copying import SlotRange
from streamer.loader.device.prefetcher import CudaMover, DevicePrefetcher, Normalize, check_device, map_tensors
from tests.fake_dataset import FakeDataset
from tests.inspection import copy_with, poison_freed_slots

Pair = namedtuple("Pair", "left right")


def prefetch_with(batches: object, device: object, mover: object, depth: int = 3) -> DevicePrefetcher:
    """Makes a prefetcher that copies by `mover`."""
    made = DevicePrefetcher(batches, device, depth=depth)  # type: ignore[arg-type]
    made._mover = mover  # type: ignore[assignment]
    return made


class LateDevice:
    """Stands for a busy GPU: copies when it is forced to, not when it is told to.

    Copies are made on the CPU, from raw addresses, and the transform of a batch is not called.

    Args:
        every: a copy is over when so many later ones were begun, or the caller waits for it.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.begun: list[LateCopy] = []

    def move(self, batch, transform):
        copy = LateCopy(self, batch, transform)
        self.begun.append(copy)
        if len(self.begun) > self.every:
            self.begun.pop(0).run()
        return copy.target, copy

    def order_after(self, batch, marker):
        marker.wait()


class LateCopy:
    """Stands for an asynchronous copy and its event: reads raw addresses when it runs, and keeps no source alive."""

    def __init__(self, device, source, transform):
        self.device, self.transform = device, transform
        # Only the bytes' whereabouts, as a DMA engine has them: nothing here keeps the source alive.
        self.reads = []
        self.target = map_tensors(source, self._plan)

    def _plan(self, tensor):
        target = torch.empty_like(tensor)
        self.reads.append((tensor.data_ptr(), target))
        return target

    def run(self):
        for address, target in self.reads:
            ctypes.memmove(target.data_ptr(), address, target.nbytes)
        self.reads = []

    def is_done(self):
        return not self.reads

    def wait(self):
        while not self.is_done():
            self.device.begun.pop(0).run()


def sample(epoch: int, ordinal: int) -> dict[str, object]:
    numbers = np.full(2000, ordinal, np.int64)
    return {"x": numbers, "y": numbers, "key": str(ordinal)}


def poisoned(samples: int, **arguments: object) -> StreamingDataLoader:
    """Makes a loader whose freed slots are overwritten at once, so that a late read of one is seen."""
    settings = {"num_workers": 1, "worker_type": "thread", "prefetch_batches": 3, **arguments}
    loader = StreamingDataLoader(FakeDataset(samples, sample), 2, **settings)
    poison_freed_slots(loader)
    return loader


def test_no_slot_is_used_again_while_a_copy_is_pending():
    """No slot is written again while a copy of it is pending.

    600 batches are copied late, from raw addresses, out of slots that are poisoned when they are free.
    """
    with poisoned(1200) as loader:
        number = -1
        for number, batch in enumerate(prefetch_with(loader, "cpu", LateDevice(every=3))):
            assert batch["x"][:, 0].tolist() == [2 * number, 2 * number + 1]
            assert (batch["x"] == batch["x"][:, :1]).all()
        assert number + 1 == 600


class PackedLateDevice(LateDevice):
    """Stands for a busy GPU that copies a whole batch in one piece, late, from the address of its slot.

    `taken` counts the batches that could be copied so.
    """

    taken = 0

    def move(self, batch, transform):
        packed = SlotRange.find(batch)
        assert packed is not None
        self.taken += 1
        whole = torch.empty(packed.nbytes, dtype=torch.uint8)
        copy = LateCopy(self, None, transform)
        copy.reads.append((packed.source().data_ptr(), whole))
        self.begun.append(copy)
        if len(self.begun) > self.every:
            self.begun.pop(0).run()
        return packed.view_in(whole), copy


@pytest.mark.parametrize("careless", [False, True])
def test_a_slot_is_not_used_again_while_its_one_copy_is_pending(careless):
    """With `device=` a slot that is copied in one piece is not written again before the copy is over.

    A device that lets go too early reads poison.
    """
    device = PackedLateDevice(every=3)
    if careless:
        device.move = lambda batch, transform: Liar.hide(*PackedLateDevice.move(device, batch, transform))
    wrong = 0
    with poisoned(1200, device="cpu") as loader:
        copy_with(loader, device)
        for number, batch in enumerate(loader):
            wrong += batch["x"][:, 0].tolist() != [2 * number, 2 * number + 1]
            wrong += not (batch["x"] == batch["x"][:, :1]).all()
    assert device.taken == 600
    assert (wrong > 0) is careless


class Liar:
    """Stands for the event of a copy, and says too early that the copy is over."""

    def __init__(self, copy):
        self.copy = copy

    @classmethod
    def hide(cls, moved, copy):
        return moved, cls(copy)

    def is_done(self):
        return True

    def wait(self):
        self.copy.wait()


def test_the_late_device_finds_a_mistake():
    """The fake device reads poison where sources are let go too early, so that the tests of pending copies can fail."""

    class Careless(LateDevice):
        """Stands for a device that lets sources go before they are copied."""

        def move(self, batch, transform):
            return Liar.hide(*super().move(batch, transform))

    wrong = 0
    with poisoned(1200) as loader:
        for number, batch in enumerate(prefetch_with(loader, "cpu", Careless(every=3))):
            wrong += batch["x"][0, 0].item() != 2 * number
    assert wrong > 0


def test_slices_kept_over_many_batches():
    """Slices of delivered batches keep their values while the ring turns, although freed slots are poisoned."""
    with poisoned(600) as loader:
        kept = [(n, batch["x"][1, 10:20]) for n, batch in enumerate(loader) if n % 50 == 7]
        assert all((part == 2 * n + 1).all() for n, part in kept)
        assert len(kept) == 6
        del kept


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_ahead(ahead):
    """A prefetcher asks for as many batches ahead as its depth says, and for none with 0."""
    asked = []

    def batches():
        for n in range(6):
            asked.append(n)
            yield torch.tensor(n)

    found = [(int(batch), len(asked)) for batch in DevicePrefetcher(batches(), "cpu", depth=ahead)]
    assert [n for n, _ in found] == list(range(6))
    assert found[0][1] == ahead + 1


def test_structures():
    """Tensors in dicts, lists, named tuples and ordered dicts are moved, and everything else stays as it is."""
    pair, ordered = Pair(torch.ones(1), 5), OrderedDict(x=torch.ones(1))
    batch = {"a": torch.ones(2), "b": [torch.zeros(1), "text"], "c": pair, "d": ordered}
    moved = map_tensors(batch, lambda t: t + 1)
    assert moved["a"].tolist() == [2, 2]
    assert moved["b"][1] == "text"
    assert type(moved["c"]) is Pair
    assert type(moved["d"]) is OrderedDict
    assert moved["d"]["x"].item() == 2


def test_error_comes_in_its_turn():
    """A batch that fails is raised after those before it, and the others follow."""

    class Batches:
        """Stands for a loader whose second batch fails and whose fourth is the last."""

        def __init__(self):
            self.n = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.n += 1
            if self.n == 2:
                raise ValueError("bad batch")
            if self.n > 4:
                raise StopIteration
            return torch.tensor(self.n)

    found = iter(DevicePrefetcher(Batches(), "cpu", depth=3))
    assert int(next(found)) == 1
    with pytest.raises(ValueError, match="bad batch"):
        next(found)
    assert [int(b) for b in found] == [3, 4]


def test_loader_with_device():
    """`device="cpu"` gives the same batches, transformed, and a state at the batch delivered, not at one ahead."""
    transform = lambda batch: {**batch, "x": batch["x"].float() / 2}  # noqa: E731
    with StreamingDataLoader(
        FakeDataset(20, sample), 2, 1, worker_type="thread", device="cpu", device_transform=transform
    ) as loader:
        batches = iter(loader)
        assert next(batches)["x"][:, 0].tolist() == [0, 0.5]
        assert loader.state_dict()["batch"] == 1
        assert len(list(batches)) == 9
        assert loader.state_dict().items() >= {"epoch": 1, "batch": 0, "batch_size": 2}.items()


def test_no_cuda_is_an_error():
    """A device that is not there, or is no device, is a `ConfigError`; nothing falls back to the CPU."""
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ConfigError, match="no CUDA device"):
        DevicePrefetcher([], "cuda")
    with pytest.raises(ConfigError, match="not a device"):
        check_device("gpu")
    assert check_device(None) is None


def test_normalize():
    """`Normalize` makes (x / 255 - mean) / std of NHWC or NCHW bytes, in the memory format and dtype asked for."""
    images = torch.randint(0, 256, (2, 5, 4, 3), dtype=torch.uint8)
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    expected = (images.permute(0, 3, 1, 2) / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    batch = {"jpg": images, "cls": torch.tensor([1, 2])}
    out = Normalize(mean, std, key="jpg", channels_last=True)(batch)
    torch.testing.assert_close(out["jpg"], expected)
    assert out["jpg"].is_contiguous(memory_format=torch.channels_last)
    assert batch["jpg"] is images
    half = Normalize(mean, std, dtype=torch.float16, layout="NCHW")(images.permute(0, 3, 1, 2))
    assert half.dtype is torch.float16
    assert half.is_contiguous()
    torch.testing.assert_close(half.float(), expected, atol=2e-3, rtol=2e-3)
    assert Normalize(mean, std, key=0)([images, 1])[1] == 1


@pytest.mark.parametrize(
    ("key", "batch", "words"),
    [
        (None, {"image": 1, "label": 2}, "key=None fits no images; the batch is a dict: .* of image, label"),
        (3, {"image": 1, "label": 2}, "key=3 fits no images; the batch is a dict: .* of image, label"),
        (None, [1, 2], "the batch is a sequence: .* below 2"),
        (2, [1, 2], "key=2 fits no images; the batch is a sequence: .* below 2"),
        ("image", (1, 2), "key='image' fits no images; the batch is a sequence"),
        ("image", torch.zeros(1, 2, 2, 1, dtype=torch.uint8), "the batch is a tensor, which needs no key="),
        (0, "text", "the batch is a str, and neither a tensor, a dict nor a sequence"),
    ],
    ids=["a dict without key", "an index for a dict", "a list without key", "beyond", "a name", "a tensor", "a text"],
)
def test_normalize_says_which_key_a_batch_needs(key, batch, words):
    """`Normalize` refuses a batch that its `key` does not fit, and says which one the batch needs."""
    with pytest.raises(ConfigError, match=words):
        Normalize((0.5,), (0.5,), key=key)(batch)


@pytest.mark.parametrize("arguments", [((0.5,), (0.5, 0.5)), ((0.5,), (0.0,))])
def test_normalize_refuses(arguments):
    """`Normalize` refuses a mean and std of different lengths, a deviation of zero and an unknown layout."""
    with pytest.raises(ConfigError, match="must be of one length, std positive"):
        Normalize(*arguments)
    with pytest.raises(ConfigError, match="layout"):
        Normalize((0.5,), (0.5,), layout="HWC")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
def test_on_a_real_device():
    """On a CUDA device every value of 2,000 batches is right, and the ring is pinned.

    Freed slots are poisoned.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    with poisoned(4000, worker_type="process") as loader:
        for number, batch in enumerate(prefetch_with(loader, device, CudaMover(device))):
            assert batch["x"][:, 0].tolist() == [2 * number, 2 * number + 1]
            assert bool((batch["x"] == batch["x"][:, :1]).all())
        assert loader.stats().pinned
