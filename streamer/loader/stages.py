"""The time of one batch by stage."""

from __future__ import annotations

import msgspec


class Stages(msgspec.Struct, frozen=True, array_like=True):
    """A worker's time for one batch by stage, in nanoseconds.

    Attributes:
        load: read, decode, transform and everything in between.
        read: a part of `load`; like decode and transform 0 if the source does not measure it.
        decode: a part of `load`.
        transform: a part of `load`.
        collate: putting samples together, without the copy.
        write: the copy into the slot.
    """

    load: int = 0
    read: int = 0
    decode: int = 0
    transform: int = 0
    collate: int = 0
    write: int = 0
