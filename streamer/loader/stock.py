"""The ring under a stock `torch.utils.data.DataLoader`, as a collate function.

    DataLoader(dataset, batch_size=256, num_workers=8, collate_fn=RingCollate())

Each torch worker has a ring of its own and writes its batches there; what goes through torch's queue is a reference
of some 150 bytes, which *unpickles* in the consumer as the batch itself, its tensors views on the slot. So nothing
wraps the loader, and whatever is built around it (Lightning, Accelerate, StatefulDataLoader) gets ordinary tensors.

A slot has one state byte. Its worker alone turns it from free to taken, the consumer alone from taken to free, when
the last view has died: no lock, no message. A worker that finds no free slot returns the batch as torch would.
"""

from __future__ import annotations

import logging
import mmap
import os
import weakref
from collections.abc import Callable
from pathlib import Path

from torch.utils.data import default_collate, get_worker_info

from streamer.config import parse_bytes
from streamer.errors import WorkerError
from streamer.loader import memory
from streamer.loader.collate import collate
from streamer.loader.leaves import Bytes
from streamer.loader.ring import Shape, fit
from streamer.loader.slots import BatchReader, PackedBatch
from streamer.loader.source import Collate

logger = logging.getLogger(__name__)

# torch lets a worker have two batches outstanding (prefetch_factor), one is in the making, and the trainer and what
# is around it hold some.
_BATCHES = 5
# Per worker, unless told.
_RING_BYTES = 512 << 20

_FREE, _TAKEN = b"\0", b"\1"
# The states stand in the first page, the slots behind it.
_HEAD = mmap.PAGESIZE

# Where a worker's ring is: its pid, the descriptor there, and the ring's number (a worker makes more than one when
# batches grow; descriptors are used again).
RingKey = tuple[int, int, int]


class RingCollate:
    """A `collate_fn` for torch's DataLoader that hands batches over without copying or mapping.

    Same batches as `default_collate`, or as the `collate_fn` given. Without workers it only collates. Travels to
    workers by fork or by pickle.

    Args:
        collate_fn: list of samples -> batch; default: torch's rules.
        ring_bytes: memory for each worker's ring.
    """

    def __init__(self, collate_fn: Collate | None = None, ring_bytes: int | str = _RING_BYTES) -> None:
        self._collate_fn = collate_fn
        self._ring_bytes = parse_bytes(ring_bytes, "ring_bytes")
        self._ring: _WorkerRing | None = None
        self._owner = -1

    def __repr__(self) -> str:
        return f"RingCollate(ring_bytes={self._ring_bytes})"

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_ring": None, "_owner": -1}

    def __call__(self, samples: list[object]) -> object:
        """Collates; in a worker, into its ring."""
        if get_worker_info() is None:
            return self._plainly(samples)
        packed = PackedBatch(self._collate_fn(samples) if self._collate_fn else collate(samples))
        ring = self._ring_for(packed.nbytes)
        reference = ring.write(packed) if ring is not None else None
        return self._plainly(samples) if reference is None else reference

    def _plainly(self, samples: list[object]) -> object:
        return self._collate_fn(samples) if self._collate_fn else default_collate(samples)

    def _ring_for(self, nbytes: int) -> _WorkerRing | None:
        if self._owner != os.getpid():  # a fork of somebody else's
            self._ring, self._owner = None, os.getpid()
        if self._ring is None or nbytes > self._ring.shape.slot_bytes:
            shape = fit(nbytes, _BATCHES, self._ring_bytes)
            if shape is None:
                logger.warning("ring_bytes=%d does not hold two batches of %d bytes", self._ring_bytes, nbytes)
                return None
            self._ring = _WorkerRing(shape, self._ring.number + 1 if self._ring else 0)
        return self._ring


class _WorkerRing:
    """A worker's own ring; the consumer finds it through /proc."""

    def __init__(self, shape: Shape, number: int) -> None:
        self.shape = shape
        self.number = number
        self._descriptor = memory.create_sealed("streamer-stock", _HEAD + shape.nbytes)
        self._mapping = memory.map_shared(self._descriptor, _HEAD + shape.nbytes)

    def __del__(self) -> None:
        os.close(self._descriptor)

    def write(self, packed: PackedBatch) -> _Reference | None:
        """Writes a batch; None: no slot is free."""
        slot = bytes(self._mapping[: self.shape.slots]).find(_FREE)
        if slot < 0:
            return None
        self._mapping[slot : slot + 1] = _TAKEN
        packed.write(memory.window(self._mapping, _HEAD + slot * self.shape.slot_bytes, self.shape.slot_bytes))
        return _Reference(self, (os.getpid(), self._descriptor, self.number), slot, packed.description)


class _Reference:
    """A batch in a slot; unpickles as the batch. Keeps its ring until torch's queue has sent it."""

    def __init__(self, ring: _WorkerRing, key: RingKey, slot: int, description: tuple[int, int]) -> None:
        self._ring = ring
        self._arguments = key, slot, ring.shape.slot_bytes, description

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return open_batch, self._arguments


class _Opened:
    """A worker's ring as the consumer sees it."""

    def __init__(self, key: RingKey) -> None:
        pid, number = key[0], key[1]
        try:
            descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise WorkerError(
                f"DataLoader worker {pid} was gone before its batch was taken ({error.strerror})", pid=pid
            ) from error
        try:
            self._mapping = memory.map_shared(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)

    def lend(self, slot: int, slot_bytes: int) -> Bytes:
        """The slot's memory; free when the last view on it is gone."""
        lent = memory.window(self._mapping, _HEAD + slot * slot_bytes, slot_bytes)
        finalizer = weakref.finalize(lent, self._mapping.__setitem__, slice(slot, slot + 1), _FREE)
        finalizer.atexit = False
        return lent


class _OpenedRings:
    """The rings of the workers that live, mapped once each."""

    def __init__(self) -> None:
        self._rings: dict[RingKey, _Opened] = {}

    def get(self, key: RingKey) -> _Opened:
        """The ring of that key; the rings of workers that are gone are forgotten."""
        if key not in self._rings:
            self._rings = {k: ring for k, ring in self._rings.items() if Path(f"/proc/{k[0]}").exists()}
            self._rings[key] = _Opened(key)
        return self._rings[key]


# Unpickling has no context but this module: the one place in the loader where state belongs to the process.
_opened = _OpenedRings()


def open_batch(key: RingKey, slot: int, slot_bytes: int, description: tuple[int, int]) -> object:
    """What a reference unpickles to.

    Raises:
        WorkerError: the worker has died.
    """
    return BatchReader(_opened.get(key).lend(slot, slot_bytes)).read(description)
