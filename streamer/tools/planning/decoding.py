"""Measures how long a worker takes to decode a clip of a video, from a few clips. Used by `tools/plan_command.py`."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from streamer.batches.samples.maker import SampleMaker, SampleRules
from streamer.formats.base import DecodeCost
from streamer.formats.registry import restore_format
from streamer.loader.members.single_reads import StreamedBytes
from streamer.manifest.table import Manifest

# Clips that are decoded, and how often each.
_CLIPS = 3
_TIMES = 2


@dataclass(frozen=True)
class Decoding:
    """Says what decoding costs in a dataset of clips.

    Attributes:
        cost: mean cost of a sample, from the manifest.
        seconds: CPU seconds for a sample of this cost.
        nbytes: bytes of the arrays of the largest sample that was decoded.
    """

    cost: DecodeCost
    seconds: float
    nbytes: int


def measure_decode(manifest: Manifest, content: StreamedBytes) -> Decoding | None:
    """Decodes up to three clips on this machine, and scales their time to the mean cost of a sample.

    Args:
        manifest: manifest of the dataset.
        content: reads samples.

    Returns:
        The measurement, or None if the samples are no clips, or there are none.

    Raises:
        ConfigError, ManifestError: PyAV is not installed, or the dataset's format cannot be opened.
        DecodeError: a clip cannot be decoded.
        StreamerError: a clip cannot be read.
    """
    indexed = restore_format(manifest)
    mean = indexed.find_decode_cost(manifest) if manifest.samples else None
    if mean is None:
        return None
    maker = SampleMaker(manifest, content, SampleRules())
    seconds = 0.0
    work = 0.0
    nbytes = 0
    for place in maker.places(np.unique(np.linspace(0, manifest.samples - 1, _CLIPS).astype(np.int64))):
        record = content.read(place)
        spent = []
        # The first time includes the opening of a decoder, which workers keep, so that the shorter time counts.
        for _ in range(_TIMES):
            begun = time.process_time()
            sample = maker.decode(place, record)
            spent.append(time.process_time() - begun)
        seconds += min(spent)
        nbytes = max(nbytes, sum(value.nbytes for value in sample.values() if isinstance(value, np.ndarray)))
        if (cost := indexed.find_decode_cost(manifest, place.ordinal)) is not None:
            work += cost.work
    return Decoding(mean, seconds * mean.work / work, nbytes)
