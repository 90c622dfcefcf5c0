"""What decoders have in common that write to given memory, draw, and need libraries. Imports none of these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# Returns a generator that depends on seed, epoch and sample alone; each call one that begins anew.
Draws = Callable[[], np.random.Generator]


class TargetDecoder(ABC):
    """Decodes a field, an array in the memory that is given where it fits."""

    @abstractmethod
    def decode(self, content: memoryview, out: Array | None = None, draws: Draws | None = None) -> object:
        """Decodes a field.

        Args:
            content: Bytes of the field.
            out: Array that is written and returned where it has the shape and type of the result.
            draws: Random numbers of the sample; where there are none, the middle is taken.

        Raises:
            ValueError: The bytes are others.
            ConfigError: A library is not installed.
        """

    def check(self, codecs: Collection[str] = ()) -> None:  # noqa: B027 - most need no library
        """Raises ConfigError if a library is missing, or does not decode one of these codecs of FFmpeg's names."""

    def __call__(self, content: bytes | memoryview) -> object:
        """Decodes a field of a sample that is in no epoch."""
        return self.decode(memoryview(content))
