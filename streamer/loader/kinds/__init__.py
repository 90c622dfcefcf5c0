"""Holds what differs between one dataset, a mix, and a growing dataset. `loader/rank/` asks for it.

kind.py          the base classes: what a rank asks of any kind
one.py           one dataset
mix.py           a mix
growing/         a growing dataset: its rounds and its session
step_session.py  a consumer's session with the engine, in steps

`make_kind` is called by `loader/dataset.py`; `loader/mixed_dataset.py` makes a `Mix`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamer.loader.kinds.one import OneDataset
    from streamer.loader.members.member import DatasetMember


def make_kind(member: DatasetMember) -> OneDataset:
    """Returns the kind of a dataset that is read alone: a growing one if the user has given `growing=`."""
    from streamer.loader.kinds.one import OneDataset
    from streamer.order.growing.options import Growing

    growing = member.options.growing
    if not isinstance(growing, Growing):
        return OneDataset(member)
    # Imported here, since other datasets do not need it.
    from streamer.loader.kinds.growing.ordering import GrowingDataset

    return GrowingDataset(member, growing)
