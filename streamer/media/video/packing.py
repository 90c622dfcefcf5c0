"""Clips of videos in shards: small videos of their packets, which are not encoded anew, with times and source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from streamer.formats.base import Field
from streamer.manifest.blocks import decode_hints
from streamer.manifest.table import Manifest
from streamer.media.audio.window_records import TIME_MARK
from streamer.media.containers.blocks import Needed, read_hint
from streamer.media.containers.mp4 import clip_mp4
from streamer.media.containers.records import read_head
from streamer.media.containers.tables import Integers
from streamer.media.video.kinds import CLIP, DURATION, PTS

_FRAMES = "frames"


def pack_clip(field: Field, key: str) -> Iterable[tuple[str, object]] | None:
    """Returns names and values of a field of the clip with this key: its video and where it is from, or times.

    Raises:
        ValueError: it cannot be an mp4.
    """
    if field.kind == CLIP:
        path, _, times = key.rpartition(TIME_MARK)
        name = "mp4" if field.name == _FRAMES else f"{field.name}.mp4"
        source = {"path": path, "time": [float(each) for each in times.split(",")]}
        return [(name, clip_mp4(field.content)), ("source", source)]
    if field.kind in (PTS, DURATION):
        head, _ = read_head(field.content)
        return [(field.name, head.seconds(durations=field.kind == DURATION).tolist())]
    return None


def can_pack_clips(manifest: Manifest) -> bool:
    """Whether the packets of each clip are a video: they are not where GOPs between its frames are left out."""
    for needed in _blocks(manifest):
        gaps = np.cumsum(needed.behind_gap)
        if (gaps[needed.stop - 1] > gaps[needed.first]).any():
            return False
    return True


def find_clip_bytes(manifest: Manifest) -> Integers:
    """Returns the bytes of the packets of each clip, which has those of its own of a GOP that several clips share."""
    found = [np.empty(0, np.int64)]
    for needed in _blocks(manifest):
        before = np.append(0, np.cumsum(needed.size))
        found.append(before[needed.stop] - before[needed.first])
    return np.concatenate(found)


def _blocks(manifest: Manifest) -> Iterator[Needed]:
    for number in range(manifest.chunks):
        for block in decode_hints(manifest.chunk(number).hint):
            yield read_hint(block.hint)[1]
