"""Clips of films in shards: small films of their packets, which are not encoded anew, with times and source."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streamer.decode.kinds import decoder_of
from streamer.formats.base import Field
from streamer.manifest.blocks import decode_hints
from streamer.manifest.table import Manifest
from streamer.media.containers.blocks import Needed, read_hint
from streamer.media.containers.mp4 import clip_mp4
from streamer.media.containers.tables import Integers
from streamer.media.video.format import CLIP, DURATION, PTS, Video

CLIP_KINDS = frozenset([CLIP, PTS, DURATION])
_FRAMES = "frames"


def clip_values(field: Field, key: str) -> Iterator[tuple[str, object]]:
    """Yields names and values of a field of the clip with this key: its film and where it is from, or times.

    Raises:
        ValueError: it cannot be an mp4.
    """
    if field.kind == CLIP:
        path, _, times = key.rpartition("#t=")
        yield ("mp4" if field.name == _FRAMES else f"{field.name}.mp4"), clip_mp4(field.content)
        yield "source", {"path": path, "time": [float(each) for each in times.split(",")]}
    elif (decode := decoder_of(field.kind)) is not None:
        yield field.name, np.asarray(decode(field.content)).tolist()


def are_films(manifest: Manifest) -> bool:
    """Whether samples are clips whose packets are films: they are not where GOPs between their frames are left out."""
    if manifest.format != Video.name:
        return False
    for needed in _blocks(manifest):
        gaps = np.cumsum(needed.behind_gap)
        if (gaps[needed.stop - 1] > gaps[needed.first]).any():
            return False
    return True


def clip_sizes(manifest: Manifest) -> Integers:
    """The bytes of the packets of each clip, which has those of its own of a GOP that several clips share."""
    found = [np.empty(0, np.int64)]
    for needed in _blocks(manifest):
        before = np.append(0, np.cumsum(needed.size))
        found.append(before[needed.stop] - before[needed.first])
    return np.concatenate(found)


def _blocks(manifest: Manifest) -> Iterator[Needed]:
    for number in range(manifest.chunks):
        for block in decode_hints(manifest.chunk(number).hint):
            yield read_hint(block.hint)[1]
