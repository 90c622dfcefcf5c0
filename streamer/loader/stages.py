"""Where the time for one batch went."""

from __future__ import annotations

import msgspec


class Stages(msgspec.Struct, frozen=True, array_like=True):
    """Where a worker's time went for one batch, in nanoseconds.

    Attributes:
        load: all of read, decode, transform and what lies between.
        read: a part of `load`; 0 where the source does not measure it; so for decode and transform.
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
