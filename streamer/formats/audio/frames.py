"""The bytes of a block in units that are not cut, samples of numbers or packets. No I/O."""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np

from streamer.formats.audio.sounds import Integers, encode_piece
from streamer.formats.failures import DamagedError


class Units(Protocol):
    """Units of a block."""

    def between(self, starts: Integers, stops: Integers) -> tuple[Integers, Integers]:
        """The half-open ranges of units with which samples `[start, stop)` are decoded; raises DamagedError."""
        ...

    def first(self, unit: int) -> int:
        """The number of the first sample of a unit."""
        ...

    def piece(self, begin: int, end: int) -> bytes | memoryview:
        """Units `begin` to `end` as a piece of a record."""
        ...


class Frames(msgspec.Struct, frozen=True):
    """Packets, one after the other.

    Attributes:
        content: the bytes.
        offsets: (n,) where packets begin.
        sizes: (n,) their bytes.
        firsts: (n + 1,) the first sample of each, and the one behind the last.
        lead: samples before the first wanted one that are decoded, too.
    """

    content: memoryview
    offsets: Integers
    sizes: Integers
    firsts: Integers
    lead: int = 0

    def between(self, starts: Integers, stops: Integers) -> tuple[Integers, Integers]:
        """The packets of samples and their lead."""
        if not len(self.sizes) or self.firsts[-1] < stops[-1] or self.firsts[0] > starts[0]:
            found = f"{self.firsts[0]} to {self.firsts[-1]}" if len(self.sizes) else "none"
            raise DamagedError(f"samples {starts[0]} to {stops[-1]} are wanted, there are {found}")
        lower = np.searchsorted(self.firsts, starts - self.lead, "right") - 1
        return np.maximum(lower, 0), np.searchsorted(self.firsts, stops, "left")

    def first(self, unit: int) -> int:
        """The first sample of a packet."""
        return int(self.firsts[unit])

    def piece(self, begin: int, end: int) -> bytes:
        """Some packets."""
        spans = zip(self.offsets[begin:end].tolist(), self.sizes[begin:end].tolist(), strict=True)
        return encode_piece([self.content[offset : offset + size] for offset, size in spans])
