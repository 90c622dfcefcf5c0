"""Arguments that users know from `torch.utils.data.DataLoader`: what to write here instead."""

from __future__ import annotations

from collections.abc import Mapping

from streamer.errors import ConfigError

# Argument -> values that change nothing here and are accepted, and what to write instead of others.
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
    "pin_memory": ((True,), "the ring is pinned where there is CUDA; write pin=False to leave it unpinned"),
    "pin_memory_device": (("", None), "write device=, to which batches are then copied"),
    "prefetch_factor": ((None,), "write prefetch_batches=, the batches of all workers together"),
    "persistent_workers": ((True,), "workers always live as long as the loader; end them with loader.close()"),
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


def check_torch_arguments(given: Mapping[str, object]) -> None:
    """Checks the arguments that the loader does not have.

    Args:
        given: by name.

    Raises:
        ConfigError: one of torch's arguments, with a value that means something else here.
        TypeError: no loader has this argument.
    """
    for name, value in given.items():
        if name not in _INSTEAD:
            raise TypeError(f"StreamingDataLoader() got an unexpected keyword argument {name!r}")
        accepted, instead = _INSTEAD[name]
        if not any(value is same or (type(value) is type(same) and value == same) for same in accepted):
            raise ConfigError(f"{name}={value!r} is not an argument of StreamingDataLoader: {instead}", field=name)
