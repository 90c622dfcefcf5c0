"""FrameTable: the packets that are shown, in the order shown, and where the decoding of each begins."""

from __future__ import annotations

import msgspec
import numpy as np

from streamer.formats.failures import DamagedError
from streamer.media.containers.tables import Integers, Packets


class FrameTable(msgspec.Struct, frozen=True):
    """The frames of a track in the order shown.

    Attributes:
        packet: number of its packet.
        pts: when it is shown, ticks.
        duration: until the next one is shown, ticks.
        start: number of the key packet from which it is decoded.
        ascends: Whether the times of the packets only ascend: they may be times of decoding alone.
    """

    packet: Integers
    pts: Integers
    duration: Integers
    start: Integers
    ascends: bool = False

    def __len__(self) -> int:
        return len(self.packet)

    @classmethod
    def from_packets(cls, packets: Packets) -> FrameTable:
        """Finds the frames of a track.

        A frame is decoded from the last key packet that is stored before it and not shown after it: frames of an open
        GOP that are shown before its key frame are stored behind it and refer to the GOP before. Packets without a
        byte, of frames that an encoder has dropped, are no frames, and neither are those that are stored or shown
        before the first key packet, of which FFmpeg shows nothing either.

        Raises:
            DamagedError: two frames at one time, or no frame behind a key packet.
        """
        filled = packets.size > 0
        keys = np.flatnonzero(packets.key & filled)
        candidates = np.flatnonzero(packets.shown & filled)
        shown = candidates[:0]
        if len(keys):
            shown = candidates[(candidates >= keys[0]) & (packets.pts[candidates] >= packets.pts[keys[0]])]
        if len(candidates) and not len(shown):
            raise DamagedError("frames without a key frame before them")
        order = shown[np.argsort(packets.pts[shown], kind="stable")]
        pts = packets.pts[order]
        if (same := np.flatnonzero(np.diff(pts) == 0)).size:
            raise DamagedError(f"two frames at {pts[same[0]]} ticks")
        duration = np.diff(pts, append=pts[-1:] + packets.duration[order[-1:]])
        at = np.searchsorted(keys, order, "right") - 1
        while (later := packets.pts[keys[at]] > pts).any():
            at[later] -= 1
        ascends = bool((np.diff(packets.pts[filled]) >= 0).all())
        return cls(packet=order, pts=pts, duration=duration, start=keys[at], ascends=ascends)
