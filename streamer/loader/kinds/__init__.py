"""The kinds of what is read: one dataset, a mix, or a growing dataset. What differs between them is here.

kind.py          what a rank asks of any kind
one.py           one dataset
mix.py           a mix
growing/         a growing dataset: its rounds and its session
step_session.py  the batches of one process as steps of a session
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamer.loader.kinds.one import OneDataset
    from streamer.loader.members.member import DatasetMember


def make_kind(member: DatasetMember) -> OneDataset:
    """Makes the kind of a dataset that is read alone: it grows if its user says how."""
    from streamer.loader.kinds.one import OneDataset
    from streamer.order.growing.options import Growing

    growing = member.options.growing
    if not isinstance(growing, Growing):
        return OneDataset(member)
    # Imported here, since other datasets do not need it.
    from streamer.loader.kinds.growing.ordering import GrowingDataset

    return GrowingDataset(member, growing)
