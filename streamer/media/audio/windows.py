"""Windows of one length in a recording: which samples each has, and which parts of the bytes they share. No I/O."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class Windows(msgspec.Struct, frozen=True, array_like=True):
    """Windows of one recording, one after the other; numbers are of samples of all channels.

    Attributes:
        total: samples of the recording.
        length: of a window; the last one may end behind the recording.
        step: from the beginning of a window to that of the next one.
        first: number of the first window.
        count: number of windows.
        random: whether a window may begin with any sample until the next one begins.
    """

    total: int
    length: int
    step: int
    first: int
    count: int
    random: bool = False

    @classmethod
    def cut(cls, total: int, length: int, step: int, *, pad: bool, random: bool = False) -> Windows:
        """All windows of a recording; `pad`: until its end, else only those that are inside of it."""
        inside = max(0, (total - length) // step + 1)
        # A padded window follows where samples are left, unless it would begin behind the end.
        rest = pad and inside * step < total and (inside == 0 or (inside - 1) * step + length < total)
        return cls(total=total, length=length, step=step, first=0, count=inside + rest, random=random)

    def part(self, first: int, stop: int) -> Windows:
        """Windows `first` to `stop` of these."""
        return msgspec.structs.replace(self, first=self.first + first, count=stop - first)

    @property
    def starts(self) -> Integers:
        """(count,) the first sample of each window, or the first one with which it may begin."""
        return (self.first + np.arange(self.count, dtype=np.int64)) * self.step

    @property
    def places(self) -> Integers:
        """(count,) the samples with which each may begin, so that it is inside of the recording."""
        most = self.step if self.random else 1
        found: Integers = np.clip(self.total - self.length + 1 - self.starts, 1, most)
        return found

    @property
    def stops(self) -> Integers:
        """(count,) the sample behind all that each may have."""
        found: Integers = np.minimum(self.starts + self.places - 1 + self.length, self.total)
        return found


def cut_parts(lower: Integers, upper: Integers) -> tuple[Integers, Integers, Integers]:
    """Cuts what ranges `[lower, upper)` cover where one of them begins or ends.

    Args:
        lower: (N,) ascending.
        upper: (N,) ascending.

    Returns:
        Where the parts begin and where they end, and the half-open range of parts of each range: (N, 1, 2).
    """
    edges = np.unique(np.concatenate([lower, upper]))
    begin, end = np.searchsorted(edges, lower), np.searchsorted(edges, upper)
    depth = np.cumsum(np.bincount(begin, minlength=len(edges)) - np.bincount(end, minlength=len(edges)))
    used = depth[:-1] > 0
    number = np.concatenate([[0], np.cumsum(used)]).astype(np.int64)
    return edges[:-1][used], edges[1:][used], np.stack([number[begin], number[end]], 1)[:, None]
