"""Decides which rank reads which sample when, by pure functions of (seed, epoch, manifest, geometry).

`batches/` makes batches in this order, `loader/` sends the engine its schedule and keeps its state, and `tools/` plans
and checks it. An epoch has n samples in M chunks. They are cut into L lanes, in which K chunks are open together, k of
each lane. A global batch has B samples, which R ranks share. No module imports asyncio or torch.

hashing.py    splitmix64, the only source of chance, and a permutation of [0, n) without a table
spec.py       what fixes an order, and the automatic choice of lanes and window
cut.py        chunks to lanes; a piece is the part of a chunk that one lane has
deal.py       pieces of a lane to groups: the moving window of open chunks
decode.py     places in the lanes to ordinals
epoch.py      positions to ordinals: the order of one dataset
rank_split.py positions of a batch to ranks, also where caches hold parts of the data, and positions past the end
audit.py      digests of the samples of an epoch, and their comparison
protocol.py   what a rank asks of the order of a dataset or a mix
schedule.py   chunks to batches: the schedule for the engine
plan.py       one rank's epoch
state.py      where a run is: a few numbers
adopt.py      going on with a changed mix
quality.py    how good the shuffle is and what it costs, in words
kinds/        the kinds of order as objects: of one dataset, of a mix, of a growing dataset
mix/          the order of several datasets together
rows/         documents to rows of one length
row_order.py  the order of rows
level.py      rows of a lane to batches of equal cost
balanced_order.py  the order of equal cost per rank
growing/      the order of a dataset that is trained on while it arrives
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamer.order.epoch import EpochOrder
    from streamer.order.plan import BatchIndex, RankPlan, worker_batches
    from streamer.order.quality import explain, lane_spread, vif_bound
    from streamer.order.schedule import Schedule
    from streamer.order.spec import OrderSpec, shuffle_mode
    from streamer.order.state import Resume, State

__all__ = [
    "BatchIndex",
    "EpochOrder",
    "OrderSpec",
    "RankPlan",
    "Resume",
    "Schedule",
    "State",
    "explain",
    "lane_spread",
    "shuffle_mode",
    "vif_bound",
    "worker_batches",
]

# The modules are imported at the first use of one of their names, because a worker process needs few of them.
_MODULES = {
    "epoch": ("EpochOrder",),
    "plan": ("BatchIndex", "RankPlan", "worker_batches"),
    "quality": ("explain", "lane_spread", "vif_bound"),
    "schedule": ("Schedule",),
    "spec": ("OrderSpec", "shuffle_mode"),
    "state": ("Resume", "State"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
