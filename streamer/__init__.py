"""Trains on data in object storage that is larger than the local disk: the names that training programs import.

    from streamer import StreamingDataset, StreamingDataLoader

Importing this package imports neither torch nor numpy: the module of a name is imported when the name is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from streamer.version import VERSION

if TYPE_CHECKING:
    from streamer import errors as errors
    from streamer.annotations.options import Annotations as Annotations
    from streamer.batches.batch.ragged import Ragged as Ragged
    from streamer.batches.rows.balance import Balance as Balance
    from streamer.batches.rows.collate import collate_rows as collate_rows
    from streamer.batches.rows.options import Buckets as Buckets
    from streamer.batches.rows.options import Estimate as Estimate
    from streamer.batches.rows.options import Packing as Packing
    from streamer.decode.rule import Decode as Decode
    from streamer.loader.dataloader import StreamingDataLoader as StreamingDataLoader
    from streamer.loader.dataset import StreamingDataset as StreamingDataset
    from streamer.loader.device.prefetcher import DevicePrefetcher as DevicePrefetcher
    from streamer.loader.measure import measure_lengths as measure_lengths
    from streamer.loader.mixed_dataset import MixedDataset as MixedDataset
    from streamer.loader.options.arguments import Index as Index
    from streamer.loader.options.arguments import Order as Order
    from streamer.loader.options.arguments import Skip as Skip
    from streamer.order.growing.options import Growing as Growing
    from streamer.order.mix.shares import Weights as Weights
    from streamer.order.mix.spec import Homogeneous as Homogeneous
    from streamer.shards.pack import pack as pack

__version__ = VERSION

# The module of each public name.
_HOMES = {
    "Annotations": "streamer.annotations.options",
    "Balance": "streamer.batches.rows.balance",
    "Buckets": "streamer.batches.rows.options",
    "Decode": "streamer.decode.rule",
    "DevicePrefetcher": "streamer.loader.device.prefetcher",
    "Estimate": "streamer.batches.rows.options",
    "Growing": "streamer.order.growing.options",
    "Homogeneous": "streamer.order.mix.spec",
    "Index": "streamer.loader.options.arguments",
    "MixedDataset": "streamer.loader.mixed_dataset",
    "Order": "streamer.loader.options.arguments",
    "Packing": "streamer.batches.rows.options",
    "Ragged": "streamer.batches.batch.ragged",
    "Skip": "streamer.loader.options.arguments",
    "StreamingDataLoader": "streamer.loader.dataloader",
    "StreamingDataset": "streamer.loader.dataset",
    "Weights": "streamer.order.mix.shares",
    "collate_rows": "streamer.batches.rows.collate",
    "measure_lengths": "streamer.loader.measure",
    "pack": "streamer.shards.pack",
}

# Names of earlier releases that still work in this one. Using them warns: `measure` when called, `Reports` when given
# to a loader.
_OLD_HOMES = {
    "Reports": "streamer.loader.stall.reporter",
    "measure": "streamer.loader.measure",
}

__all__ = [
    "Annotations",
    "Balance",
    "Buckets",
    "Decode",
    "DevicePrefetcher",
    "Estimate",
    "Growing",
    "Homogeneous",
    "Index",
    "MixedDataset",
    "Order",
    "Packing",
    "Ragged",
    "Skip",
    "StreamingDataLoader",
    "StreamingDataset",
    "Weights",
    "__version__",
    "collate_rows",
    "errors",
    "measure_lengths",
    "pack",
]


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("streamer.errors")
    home = _HOMES.get(name) or _OLD_HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'streamer' has no attribute {name!r}")
    try:
        return getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise ImportError(
            f"streamer.{name} needs PyTorch; `pip install 'streamer-data[torch]'`, or torch itself"
        ) from error
    except AttributeError as error:
        # Modules for Linux use names that the standard library lacks elsewhere. `from streamer import name` would turn
        # this AttributeError into "cannot import name".
        raise ImportError(f"streamer.{name} cannot be imported on {sys.platform}: {error}") from error


def __dir__() -> list[str]:
    return sorted(__all__)
