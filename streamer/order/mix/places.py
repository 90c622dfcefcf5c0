"""The places of an epoch of a mix, chosen by its batching; see `windows.py`."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from streamer.order.hashing import Integers
from streamer.order.mix.spec import MixSpec
from streamer.order.mix.tree import LaneShares
from streamer.order.mix.windows import GroupWindows, LaneWindows

Places: TypeAlias = LaneWindows | GroupWindows


def epoch_places(spec: MixSpec, epoch: int) -> Places:
    """The places of one epoch."""
    quotas = spec.places(epoch)
    if spec.batching != "homogeneous":
        shares = LaneShares(quotas, spec.lanes, spec.seed, epoch)
        stratified = spec.batching == "stratified"
        return LaneWindows(shares, (spec.slots, spec.window), (spec.seed, epoch), stratified=stratified)
    # A lane for each group, with equal quotas: all lanes of the mix take as much of a member's stream.
    groups = LaneShares([quota // spec.unit * spec.groups for quota in quotas], spec.groups, spec.seed, epoch)
    windows = LaneWindows(groups, (1, spec.window), (spec.seed, epoch), stratified=spec.groups > 1)
    return GroupWindows(windows, spec.lanes // spec.groups, spec.slots)


def lane_quotas(spec: MixSpec, epoch: int) -> Integers:
    """Samples of each member in each lane of an epoch, (M, L); its other places there repeat the last of them."""
    quotas, starts, turns = (
        np.array(column)[:, None] for column in (spec.quotas(epoch), spec.drawn(epoch), spec.turns(epoch))
    )
    found: Integers = (quotas + spec.lanes - 1 - (np.arange(spec.lanes) - starts - turns) % spec.lanes) // spec.lanes
    return found


def lane_ends(position: int, lanes: int) -> Integers:
    """Returns the places of each lane among the first `position` positions of an epoch: (L,)."""
    return (position + lanes - 1 - np.arange(lanes)) // lanes
