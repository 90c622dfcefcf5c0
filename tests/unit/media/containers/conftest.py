"""Tracks of packets that are made of numbers, without a file."""

from __future__ import annotations

import numpy as np

from streamer.media.containers.tables import Packets

TIMESCALE = 100


def track(frames: int = 20, gop: int = 7, entry: np.ndarray | None = None) -> Packets:
    """Makes frames of 100 bytes and 10 ticks, 100 ticks a second, with a key frame every `gop` frames."""
    number = np.arange(frames)
    zero = np.zeros(frames, np.int64) if entry is None else entry
    return Packets(
        number * 100, np.full(frames, 100), number * 10, np.full(frames, 10), number % gop == 0, number >= 0, zero
    )
