"""Tells accelerate where a loader's epoch ends, and keeps it from making a loader of its own over the dataset.

`accelerator.prepare` returns a StreamingDataLoader as it is. Accelerate's own loaders say by `DataLoaderStateMixin`
that the last batch has come: gradient accumulation then makes a step, and `gather_for_metrics` drops repeats.
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
# Messages by the function of accelerate: what it would make of a loader, and what to write instead.
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
        """Makes it the loader that is being iterated over."""

    def end(self) -> None:
        """Ends the iteration over it."""


class AccelerateEpochs:
    """Tells accelerate of the epochs of one loader, in a program that has an Accelerator. Used by its thread."""

    def __init__(self) -> None:
        # While an epoch runs.
        self._state: _LoaderState | None = None

    def begin(self) -> None:
        """Makes the loader the one that is being iterated over."""
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
        """Notes the delivery of a batch; of the last one, how many of its samples over all ranks are no repeats."""
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
            # -1: accelerate gives back what it gathered.
            state.remainder = -1
            logger.warning(
                "the repeats that fill the last batch are not its last samples here, so that accelerate's "
                "gather_for_metrics cannot drop them; drop those that loader.repeated marks, before you gather"
            )
        else:
            state.remainder = stream.global_batch - count

    def end(self) -> None:
        """Ends the epoch; idempotent."""
        if self._state is not None:
            self._state.end()
            self._state = None


def refuse_other_loader(depth: int = 2) -> None:
    """Refuses that a function of accelerate takes a loader's dataset to make a loader of its own.

    Args:
        depth: How many calls above this one it is that asks.

    Raises:
        ConfigError: one does.
    """
    frame = sys._getframe(depth)
    if frame.f_globals.get("__name__") == _MODULE:
        name = frame.f_code.co_name
        raise ConfigError(_INSTEAD.get(name, _INSTEAD[""]), field=name)
