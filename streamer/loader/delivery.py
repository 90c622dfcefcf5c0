"""A batch as the trainer receives it."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.batches.batch.buffers import Bytes
from streamer.batches.causes import Trace
from streamer.order.audit import Tally


class Delivery(msgspec.Struct, frozen=True):
    """A batch as the trainer receives it, with the loader's data about it.

    Attributes:
        content: the batch.
        epoch, batch: its numbers.
        repeated: bool (samples,): which samples are repeats that fill the batch.
        nbytes: its bytes in the ring; 0 without a ring.
        skipped: ordinal and cause of the samples that another sample of the batch replaces.
        trace: its timeline and stage times.
        tallies: its samples, without repeats.
        memory: the slot that its tensors are views on; None: they have memory of their own.
    """

    content: object
    epoch: int
    batch: int
    repeated: npt.NDArray[np.bool_]
    nbytes: int = 0
    skipped: tuple[tuple[int, str], ...] = ()
    trace: Trace | None = None
    tallies: tuple[Tally, ...] = ()
    memory: Bytes | None = None

    def with_content(self, content: object) -> Delivery:
        """The batch with other content, which does not hold the slot."""
        return msgspec.structs.replace(self, content=content, memory=None)

    def without_content(self) -> Delivery:
        """The data about the batch alone, which holds no memory of it."""
        return msgspec.structs.replace(self, content=None, memory=None, trace=None)
