"""Arguments of torch's DataLoader that `StreamingDataLoader` takes or refuses, and torch's worker info, without torch.

`loader/dataloader.py` checks its further keyword arguments here; the pinner and the worker pool of `streamer/batches`
take their values. Parts of the loader that may run in a worker of torch's own DataLoader ask for its worker info.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from streamer.errors import ConfigError

if TYPE_CHECKING:
    from torch.utils.data._utils.worker import WorkerInfo


Pin = Literal["auto", "required", "off"]
WorkerStart = Literal["forkserver", "spawn"]
V = TypeVar("V")

# The accepted values of pin_memory= and multiprocessing_context=, and what each means.
_PINS: dict[object, Pin] = {None: "auto", "auto": "auto", True: "auto", False: "off", "required": "required"}
_STARTS: dict[object, WorkerStart] = {None: "forkserver", "forkserver": "forkserver", "spawn": "spawn"}

# Other arguments of torch's DataLoader: the values that are accepted without effect, and what to write for others.
_INSTEAD: dict[str, tuple[tuple[object, ...], str]] = {
    "shuffle": ((None,), "the order belongs to the dataset: StreamingDataset(url, shuffle=True or False)"),
    "sampler": (
        (None,),
        "the order belongs to the dataset: shuffle= and seed= of StreamingDataset; for a part of it, dataset.select()",
    ),
    "batch_sampler": ((None,), "batches follow the dataset's order: batch_size= here, shuffle= of StreamingDataset"),
    "pin_memory_device": (("", None), "write device=, to which batches are then copied"),
    "prefetch_factor": ((None,), "write prefetch_batches=, the batches of all workers together"),
    "persistent_workers": ((True,), "workers always run as long as the loader; end them with loader.close()"),
    "worker_init_fn": (
        (None,),
        "initialise in the transform at its first call, or at the top of its module; generators are seeded per sample",
    ),
    "generator": ((None,), "write seed= of StreamingDataset; a transform's parameter `rng` is seeded from it"),
    "in_order": ((True,), "batches always arrive in the order of the dataset"),
    "threads_per_worker": ((None,), "a worker makes one batch at a time; use more num_workers"),
}


class TorchArguments(msgspec.Struct, frozen=True):
    """The arguments of `torch.utils.data.DataLoader` that have an effect in `StreamingDataLoader`.

    Attributes:
        pin: whether the ring is registered with CUDA. "auto" does that where there is CUDA, "required" raises an error
            where it fails, "off" never does it.
        start: how worker processes are started: from the fork server, or each by itself.
    """

    pin: Pin = "auto"
    start: WorkerStart = "forkserver"


def check_torch_arguments(given: Mapping[str, object]) -> TorchArguments:
    """Checks keyword arguments that `StreamingDataLoader` does not name itself, and returns those with an effect.

    Raises:
        ConfigError: a value is invalid, or arguments of torch's have no meaning here; it names all of them, with what
            to write instead.
        TypeError: torch's DataLoader has no such argument either.
    """
    rest = dict(given)
    # torch takes a context of `multiprocessing` as well, which names its start method.
    context = rest.pop("multiprocessing_context", None)
    method = getattr(context, "get_start_method", None)
    own = TorchArguments(
        pin=_value("pin_memory", rest.pop("pin_memory", None), _PINS, "None, 'auto', True, False or 'required'"),
        start=_value(
            "multiprocessing_context",
            method() if callable(method) else context,
            _STARTS,
            "None, 'forkserver' or 'spawn'; for threads write worker_type='thread'",
        ),
    )
    refused: dict[str, str] = {}
    for name, value in rest.items():
        if name not in _INSTEAD:
            raise TypeError(f"StreamingDataLoader() got an unexpected keyword argument {name!r}")
        accepted, instead = _INSTEAD[name]
        if not any(value is same or (type(value) is type(same) and value == same) for same in accepted):
            refused[name] = f"{name}={value!r} is not an argument of StreamingDataLoader: {instead}"
    if refused:
        raise ConfigError("; ".join(refused.values()), field=next(iter(refused)))
    return own


def _value(name: str, value: object, known: Mapping[object, V], allowed: str) -> V:
    # The numbers 1 and 0 are not accepted, although they are equal to True and False.
    if not isinstance(value, bool | str | None) or value not in known:
        raise ConfigError(f"{name}={value!r} must be {allowed}", field=name)
    return known[value]


def get_worker_info() -> WorkerInfo | None:
    """Returns torch's info of the worker of a torch DataLoader that runs this code, or None in any other process.

    It does not import torch, which every such worker has imported. Other processes begin seconds earlier without it.
    """
    data = sys.modules.get("torch.utils.data")
    found: WorkerInfo | None = None if data is None else data.get_worker_info()
    return found
