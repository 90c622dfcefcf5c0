"""What decoders of videos and audio have in common. Imports no library, so that every worker may."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import ClassVar

import numpy as np

from streamer.decode.target import Array, TargetDecoder
from streamer.errors import ConfigError
from streamer.media.decode.contexts import check_codecs


class MediaDecoder(TargetDecoder):
    """Decodes a field of frames or audio."""

    needs_pyav: ClassVar[bool] = True

    def check(self, codecs: Collection[str] = ()) -> None:
        """Raises ConfigError if PyAV is needed and not installed, or does not decode one of these codecs.

        Imports it for them alone.
        """
        if self.needs_pyav:
            check_codecs(codecs)


def check_seconds(decoder: str, name: str, value: object, *, zero: bool = False) -> None:
    """Raises ConfigError unless the value is a finite number of seconds, positive or, if `zero`, 0."""
    if (
        not isinstance(value, int | float | np.integer | np.floating)
        or not 0 <= value < math.inf
        or (value == 0 and not zero)
    ):
        rule = "a time from 0 on" if zero else "a positive number"
        raise ConfigError(f"{decoder}: {name}={value!r} is not {rule}, finite and in seconds", field="decode")


def memory_for(shape: tuple[int, ...], dtype: type[np.generic], out: Array | None) -> Array:
    """Returns `out` if it has this shape and type, else new memory."""
    fits = out is not None and out.shape == shape and out.dtype == dtype
    return out if fits and out is not None else np.empty(shape, dtype)
