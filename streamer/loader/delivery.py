"""A batch as the trainer gets it."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.loader.batch.buffers import Bytes
from streamer.loader.stall.causes import Trace


class Delivery(msgspec.Struct, frozen=True):
    """A batch as the trainer gets it, with what the loader must know of it.

    Attributes:
        content: the batch.
        epoch, batch: which one.
        repeated: bool (samples,): which samples are repeats that fill the batch.
        nbytes: what it takes in the ring; 0 inline.
        skipped: ordinal and cause of the samples whose place another one of the batch took.
        trace: how it came here.
        memory: the slot that its tensors are views on; None: they have memory of their own.
    """

    content: object
    epoch: int
    batch: int
    repeated: npt.NDArray[np.bool_]
    nbytes: int = 0
    skipped: tuple[tuple[int, str], ...] = ()
    trace: Trace | None = None
    memory: Bytes | None = None

    def with_content(self, content: object) -> Delivery:
        """The same batch, elsewhere: it holds the slot no longer."""
        return msgspec.structs.replace(self, content=content, memory=None)
