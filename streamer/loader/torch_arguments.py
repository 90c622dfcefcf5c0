"""The replacements for arguments of `torch.utils.data.DataLoader` that this loader does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from streamer.errors import ConfigError
from streamer.order.plan import LastBatch

# Argument -> accepted values without effect, and the replacement for other values.
_INSTEAD: dict[str, tuple[tuple[object, ...], str]] = {
    "shuffle": ((None,), "the order belongs to the dataset: StreamingDataset(url, shuffle=True or False)"),
    "sampler": (
        (None,),
        "the order belongs to the dataset: shuffle= and seed= of StreamingDataset; for a part of it, dataset.select()",
    ),
    "batch_sampler": (
        (None,),
        "batches follow the dataset's order: batch_size= here, shuffle= of StreamingDataset",
    ),
    "pin_memory": ((True,), "the ring is pinned if there is CUDA; write pin=False to leave it unpinned"),
    "pin_memory_device": (("", None), "write device=, to which batches are then copied"),
    "prefetch_factor": ((None,), "write prefetch_batches=, the batches of all workers together"),
    "persistent_workers": ((True,), "workers always run as long as the loader; end them with loader.close()"),
    "worker_init_fn": (
        (None,),
        "initialise in the transform at its first call, or at the top of its module; generators are seeded per sample",
    ),
    "multiprocessing_context": ((None,), "write worker_start='forkserver' or 'spawn', or worker_type='thread'"),
    "generator": ((None,), "write seed= of StreamingDataset; a transform's parameter `rng` is seeded from it"),
    "in_order": ((True,), "batches always arrive in the order of the dataset"),
    "threads_per_worker": (
        (None,),
        "a worker makes one batch at a time; use more num_workers",
    ),
}


def last_batch_of(last_batch: LastBatch | None, drop_last: bool) -> LastBatch | None:
    """What becomes of the last batch, from its argument and from torch's; None: not said.

    Raises:
        ConfigError: an invalid value, or the two contradict each other.
    """
    if last_batch not in (None, *get_args(LastBatch)):
        raise ConfigError(f"last_batch={last_batch!r} is none of 'fill', 'short', 'drop'", field="last_batch")
    if not isinstance(drop_last, bool):
        raise ConfigError(f"drop_last={drop_last!r} is neither True nor False", field="drop_last")
    if drop_last and last_batch not in (None, "drop"):
        raise ConfigError(f"drop_last=True contradicts last_batch={last_batch!r}; give one of them", field="last_batch")
    return "drop" if drop_last else last_batch


def check_torch_arguments(given: Mapping[str, object]) -> None:
    """Checks the arguments that the loader does not have.

    Args:
        given: by name.

    Raises:
        ConfigError: some of torch's arguments, with values that mean something else here; names all of them.
        TypeError: no loader has this argument.
    """
    refused: dict[str, str] = {}
    for name, value in given.items():
        if name not in _INSTEAD:
            raise TypeError(f"StreamingDataLoader() got an unexpected keyword argument {name!r}")
        accepted, instead = _INSTEAD[name]
        if not any(value is same or (type(value) is type(same) and value == same) for same in accepted):
            refused[name] = f"{name}={value!r} is not an argument of StreamingDataLoader: {instead}"
    if refused:
        raise ConfigError("; ".join(refused.values()), field=next(iter(refused)))
