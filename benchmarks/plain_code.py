"""User code for `start.py` that needs no torch, in a module that imports none."""

from __future__ import annotations

from collections.abc import Sequence

Sample = dict[str, object]


def plain_collate(samples: Sequence[Sample]) -> Sample:
    """Samples -> columns of bytes."""
    return {name: [sample[name] for sample in samples] for name in samples[0]}
