"""Sends a loader to another process, as Lightning's ddp_spawn does: its arguments, and the epoch that comes next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cloudpickle  # type: ignore[import-untyped]

from streamer.errors import StateError
from streamer.loader.samples.sent_main import send_main_by_value

if TYPE_CHECKING:
    from streamer.loader.dataloader import StreamingDataLoader
    from streamer.loader.epoch_dataset import EpochDataset
    from streamer.loader.options import LoaderSettings

# The values of `pin_memory` of the settings.
_PINS = {"auto": "auto", "required": "required", "off": False}


def describe(settings: LoaderSettings, stateful: object, epoch: int, *, loaded: bool) -> bytes:
    """Returns what makes the same loader in another process of its dataset.

    Args:
        settings: Arguments of the loader.
        stateful: The object whose state travels in the loader's.
        epoch: The epoch of its next `iter()`.
        loaded: Whether it has a state from which it has not read yet.

    Raises:
        StateError: it has.
    """
    if loaded:
        raise StateError(
            "this StreamingDataLoader has loaded a state, and a copy in another process would begin elsewhere: send "
            "the state along, and call load_state_dict there"
        )
    workers = settings.workers
    arguments: dict[str, object] = {
        "batch_size": settings.batch_size,
        "num_workers": settings.worker_count,
        "drop_last": settings.last_batch == "drop",
        "device": settings.device,
        "device_transform": settings.device_transform,
        "collate_fn": settings.collate_fn,
        "ragged": settings.ragged,
        "worker_type": "process" if workers is None else workers.worker_type,
        "prefetch_batches": settings.span,
        "ring_bytes": settings.ring_bytes,
        "timeout": settings.timeout,
        "reports": settings.reports,
        "stateful": stateful,
        "pin_memory": _PINS[settings.pin],
        "multiprocessing_context": None if workers is None else workers.start,
    }
    send_main_by_value()
    # cloudpickle: functions may be lambdas or live in a notebook.
    described: bytes = cloudpickle.dumps((arguments, epoch))
    return described


def rebuild(kind: type[StreamingDataLoader], dataset: EpochDataset, described: bytes) -> StreamingDataLoader:
    """Makes the loader of another process again."""
    arguments: dict[str, Any]
    arguments, epoch = cloudpickle.loads(described)
    loader = kind(dataset, **arguments)
    if epoch:
        loader.set_epoch(epoch)
    return loader
