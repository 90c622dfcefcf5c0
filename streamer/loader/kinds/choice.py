"""Chooses the kind of a dataset alone."""

from __future__ import annotations

from streamer.loader.kinds.one import OneDataset
from streamer.loader.members.member import Member
from streamer.order.growing import Growing


def kind_of(member: Member) -> OneDataset:
    """Returns the kind of what is read of a dataset alone: it grows where its user says how."""
    growing = member.options.growing
    if not isinstance(growing, Growing):
        return OneDataset(member)
    # Only here: other datasets do not load it.
    from streamer.loader.kinds.growing.ordering import GrowingDataset

    return GrowingDataset(member, growing)
