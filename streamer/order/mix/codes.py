"""One number for a sample of a mix: which member, which of its passes in this epoch, which of its samples.

The loader carries samples as int64 ordinals through plans, workers and messages. A mix uses the same numbers as codes:

    code = member << 48 | turn * n + ordinal        n: samples of the member

`turn` counts the member's passes from the first one that the epoch touches: a sample that comes twice in an epoch has
two codes, so that its two uses get different random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamer.order.hashing import Integers

_SHIFT = 48
_MASK = (1 << _SHIFT) - 1


class SampleCodes:
    """Encodes and decodes the samples of a mix.

    Args:
        samples: n of each member, in the order of the mix; an ordinal counts in the member's selection.
    """

    def __init__(self, samples: Sequence[int]) -> None:
        self._samples = np.array(samples, np.int64)

    def encode(self, members: Integers, turns: Integers, ordinals: Integers) -> Integers:
        """Returns codes: (N,).

        Args:
            members: (N,) number of each member.
            turns: (N,) its pass, less its first pass of the epoch.
            ordinals: (N,) the sample in the member.
        """
        return (members << _SHIFT) + turns * self._samples[members] + ordinals

    def members(self, codes: Integers) -> Integers:
        """Returns the member of each code: (N,)."""
        return codes >> _SHIFT

    def turns(self, codes: Integers) -> Integers:
        """Returns the pass of each code, (N,), less the member's first pass of the epoch (`MixSpec.first_passes`)."""
        turns: Integers = (codes & _MASK) // self._samples[codes >> _SHIFT]
        return turns

    def ordinals(self, codes: Integers) -> Integers:
        """Returns the sample of each code in its member: (N,)."""
        ordinals: Integers = (codes & _MASK) % self._samples[codes >> _SHIFT]
        return ordinals
