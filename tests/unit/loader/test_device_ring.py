"""Device memory that is used again: never under a live view, never before the training's stream is past it."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from streamer.errors import ConfigError
from streamer.loader.dataloader import StreamingDataLoader
from streamer.loader.device import check_slots
from streamer.loader.device_ring import DeviceRing
from streamer.loader.testing import FakeDataset

BATCH_BYTES = 1000


class Stream:
    """Work that is done when somebody pleases, in its own order; an event of another stream holds it up."""

    def __init__(self) -> None:
        self.work: list[Callable[[], bool]] = []
        self.given = 0
        self.over = 0

    def add(self, action: Callable[[], object], ready: Callable[[], bool] = lambda: True) -> None:
        self.given += 1

        def attempt() -> bool:
            if ready():
                action()
                self.over += 1
                return True
            return False

        self.work.append(attempt)

    def step(self) -> bool:
        """Does the next piece if it may."""
        if self.work and self.work[0]():
            self.work.pop(0)
            return True
        return False


class Event:
    def __init__(self, stream: Stream) -> None:
        self.stream, self.at = stream, stream.given

    def done(self) -> bool:
        return self.stream.over >= self.at

    def wait(self) -> None:
        while not self.done():
            assert self.stream.step()


class FakeMemory:
    """Host memory as a device's, with two streams whose work happens late and in any order that is allowed."""

    def __init__(self, fenced: bool = True) -> None:
        self.side, self.main = Stream(), Stream()
        self.fenced = fenced
        self.allocated: list[int] = []

    def allocate(self, nbytes: int) -> torch.Tensor:
        self.allocated.append(nbytes)
        return torch.zeros(nbytes, dtype=torch.uint8)

    def share(self, buffer: torch.Tensor) -> tuple[torch.Tensor, object]:
        owner = np.frombuffer(buffer.numpy(), np.uint8)
        return torch.from_numpy(owner), owner

    def mark(self) -> Event:
        return Event(self.main)

    def follow(self, marker: Event) -> None:
        if self.fenced:
            self.side.add(lambda: None, marker.done)


def at_address(tensor: torch.Tensor) -> np.ndarray:
    """As a kernel has it: an address, nothing that keeps the tensor alive."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * BATCH_BYTES).from_address(tensor.data_ptr()))


def train(memory: FakeMemory, ring: DeviceRing, batches: int, seed: int) -> tuple[int, int]:
    """Copies batch after batch and reads each twice, much later; returns wrong reads, and batches that got no slot."""
    chance, wrong, refused = random.Random(seed), 0, 0
    kept: list[torch.Tensor] = []

    def read(view: np.ndarray, number: int) -> None:
        nonlocal wrong
        wrong += bool((view != number % 251).any())

    for number in range(batches):
        target = ring.take(BATCH_BYTES)
        if target is not None:
            alias = at_address(target)
            memory.side.add(lambda alias=alias, number=number: alias.fill(number % 251))
            copied = Event(memory.side)
            memory.main.add(lambda: None, copied.done)
            for _ in range(2):
                memory.main.add(lambda alias=alias, number=number: read(alias, number))
            if chance.random() < 0.2:
                kept.append(target[10:20])
            if len(kept) > 3:
                kept.pop(0)
        else:
            refused += 1
            if kept:
                kept.pop()
        del target
        ring.fence()
        for _ in range(chance.randrange(4)):
            chance.choice([memory.side, memory.main]).step()
    while memory.side.step() or memory.main.step():
        pass
    assert not memory.side.work
    assert not memory.main.work
    return wrong, refused


@pytest.mark.parametrize("seed", range(20))
def test_every_read_sees_its_own_batch(seed):
    """300 batches through 6 slots, copies and reads as late as they may be, slices kept now and then."""
    memory = FakeMemory()
    ring = DeviceRing(6, memory)
    wrong, refused = train(memory, ring, 300, seed)
    assert wrong == 0
    assert refused < 10
    assert len(memory.allocated) == 6


def test_without_the_fence_reads_go_wrong():
    """The simulation finds the mistake: a side stream that does not wait overwrites what is still to be read."""
    assert sum(train(memory := FakeMemory(fenced=False), DeviceRing(6, memory), 300, n)[0] for n in range(5)) > 0


def test_a_slot_is_not_free_while_a_view_lives():
    """A slice of a slice counts; nothing is free before the fence."""
    memory = FakeMemory()
    ring = DeviceRing(2, memory)
    first, second = ring.take(100), ring.take(100)
    assert first is not None
    assert second is not None
    part = first.view(10, 10)[3, 4:6]
    assert ring.take(100) is None
    del first
    ring.fence()
    assert ring.free == 0
    part.fill_(7)
    del part
    assert ring.free == 0
    ring.fence()
    assert ring.free == 1
    del second


def test_a_larger_batch_gets_a_larger_buffer():
    """The slot's old buffer goes first; the smaller batches after it use the new one."""
    memory = FakeMemory()
    ring = DeviceRing(1, memory)
    for nbytes in (1000, 1100, 5000, 1000, 5600):
        lent = ring.take(nbytes)
        assert lent is not None
        assert lent.numel() == nbytes
        del lent
        ring.fence()
    assert memory.allocated == [1125, 5625]


def test_too_few_slots_are_refused():
    """As many as are ahead, in use and coming."""
    with pytest.raises(ConfigError, match="need 4"):
        StreamingDataLoader(FakeDataset(8, lambda epoch, ordinal: ordinal), device="cpu", device_slots=3)
    assert check_slots(0) == 0
