"""Tells accelerate where a loader's epoch ends, and keeps it from making a loader of its own over the dataset.

`accelerator.prepare` returns a StreamingDataLoader as it is. Accelerate's own loaders say by `DataLoaderStateMixin`
that the last batch has come: gradient accumulation then makes a step, and `gather_for_metrics` drops repeats. This
module does the same for a StreamingDataLoader (`dataloader.py`).
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Protocol

import numpy as np

from streamer.errors import ConfigError

if TYPE_CHECKING:
    from streamer.loader.rank.rank_stream import RankStream

logger = logging.getLogger(__name__)

_MODULE = "accelerate.data_loader"
# Messages by the name of the function of accelerate that asks for the dataset ("" for any other): what it would make of
# the loader, and what to write instead.
_INSTEAD = {
    "skip_first_batches": (
        "skip_first_batches would read the dataset from another place with a loader of its own; a StreamingDataLoader "
        "resumes by its state: accelerator.register_for_checkpointing(loader), or loader.load_state_dict(state) with "
        "loader.state_dict() of the run that was stopped; with transformers' Trainer set ignore_data_skip=True"
    ),
    "": (
        "accelerate would make a loader of its own over the dataset, and split the rank's share again; give the "
        "StreamingDataLoader to accelerator.prepare, which returns it as it is, or use it directly"
    ),
}


class _LoaderState(Protocol):
    """Names what is used of `DataLoaderStateMixin`, since accelerate may not be installed."""

    end_of_dataloader: bool
    remainder: int

    def begin(self) -> None:
        """Tells accelerate that this loader is being iterated over."""

    def end(self) -> None:
        """Tells accelerate that the iteration has ended."""


class AccelerateEpochs:
    """Tells accelerate when epochs of one loader begin and end. Does nothing in a program without an Accelerator.

    Used by the trainer's thread.
    """

    def __init__(self) -> None:
        # The object that tells accelerate about the running epoch, or None if none runs.
        self._state: _LoaderState | None = None

    def begin(self) -> None:
        """Tells accelerate that the loader is being iterated over, and ends the epoch before."""
        self.end()
        if _MODULE not in sys.modules:
            return
        from accelerate.data_loader import DataLoaderStateMixin  # type: ignore[import-untyped]
        from accelerate.state import GradientState, is_initialized  # type: ignore[import-untyped]

        # The program may have no Accelerator.
        if not is_initialized():
            return

        class LoaderState(DataLoaderStateMixin):  # type: ignore[misc]
            def __init__(self) -> None:
                self.gradient_state = GradientState()

        state: _LoaderState = LoaderState()
        state.begin()
        self._state = state

    def note(self, stream: RankStream, epoch: int, batch: int) -> None:
        """Notes the delivery of a batch. At the last one of an epoch accelerate learns that it ends.

        On several ranks it also learns how many samples of that batch, over all ranks, are no repeats: 0 if there are
        no repeats, and -1 if these are not its last samples, about which a warning is logged.

        Args:
            stream: Stream of the loader.
            epoch: Epoch of the batch.
            batch: Number of the batch in the epoch.
        """
        state = self._state
        if state is None or batch + 1 < stream.plan(epoch).batches:
            return
        state.end_of_dataloader = True
        state.remainder = 0
        repeated = stream.plan(epoch).order.repeats(stream.position(epoch, batch) + np.arange(stream.global_batch))
        count = int(np.count_nonzero(repeated))
        if not count or stream.rank_config.world_size == 1:
            return
        if stream.recipe().runs or not repeated[-count:].all():
            # Accelerate's `gather_for_metrics` returns all that it gathered if this is -1.
            state.remainder = -1
            logger.warning(
                "the repeats that fill the last batch are not its last samples here, so that accelerate's "
                "gather_for_metrics cannot drop them; drop those that loader.repeated marks, before you gather"
            )
        else:
            state.remainder = stream.global_batch - count

    def end(self) -> None:
        """Tells accelerate that the iteration has ended; idempotent."""
        if self._state is not None:
            self._state.end()
            self._state = None


def refuse_other_loader(depth: int = 2) -> None:
    """Refuses that a function of accelerate takes a loader's dataset to make a loader of its own.

    Args:
        depth: Number of calls above this one at which the function that asks is; 1 is the caller.

    Raises:
        ConfigError: the function that asks is one of accelerate.
    """
    frame = sys._getframe(depth)
    if frame.f_globals.get("__name__") == _MODULE:
        name = frame.f_code.co_name
        raise ConfigError(_INSTEAD.get(name, _INSTEAD[""]), field=name)
