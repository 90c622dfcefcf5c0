"""Defines `Delivery`: a batch on its way to the trainer, with what the loader knows about it.

`loader/feed/supply.py` makes deliveries; `epoch.py` passes them on, by `loader/device/` if they go to a device.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.batches.batch.buffers import Bytes
from streamer.batches.causes import Trace
from streamer.order.audit import Tally


class Delivery(msgspec.Struct, frozen=True):
    """Holds a finished batch and the loader's data about it.

    Attributes:
        content: Batch as the training loop gets it.
        epoch, batch: Number of the epoch, and of the batch in it.
        repeated: bool (samples,): which samples are repeats that fill the batch.
        nbytes: Bytes of the batch in the ring; 0 without a ring.
        skipped: Code and cause of each sample that could not be made and was skipped.
        trace: Timeline and stage times of the batch, or None if they were dropped.
        tallies: Tallies of its samples for `streamer audit`, without repeats.
        memory: Slot that its tensors are views on, or None if they have memory of their own.
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

    def replace_content(self, content: object) -> Delivery:
        """Returns the batch with other content; the result does not hold the slot of the ring."""
        return msgspec.structs.replace(self, content=content, memory=None)

    def drop_content(self) -> Delivery:
        """Returns the data about the batch, without content, slot and trace."""
        return msgspec.structs.replace(self, content=None, memory=None, trace=None)
