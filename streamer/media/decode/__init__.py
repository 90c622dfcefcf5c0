"""Decodes videos and audio with PyAV, which only the modules of this folder import.

The decoding of samples (`decode/dispatch.py`) asks `find_decoder` for the kinds of the formats in `media/`. Users name
`AudioClip`, `Frames` and `VideoClip` themselves (`streamer.decode`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamer.media.audio.windows import AUDIO, START
from streamer.media.lerobot.info import DEPTH, read_kind

if TYPE_CHECKING:
    from streamer.media.decode.decoder import MediaDecoder


def find_decoder(kind: str) -> MediaDecoder | None:
    """Returns a decoder for the fields of a kind, or None if the kind is not one of videos or audio.

    A kind of depth cameras that says no distances is none. The decoders are imported here, because most workers decode
    neither. See `streamer.decode.dispatch.ELSEWHERE`.
    """
    if kind in (AUDIO, START):
        from streamer.media.decode.audio import WindowAudio, WindowStart

        return WindowAudio() if kind == AUDIO else WindowStart()
    if kind.startswith(DEPTH):
        from streamer.media.decode.video import DepthFrames

        depth = read_kind(kind)
        return None if depth is None else DepthFrames(depth=depth)
    from streamer.media.decode.video import CLIP_DECODERS

    return CLIP_DECODERS[kind]() if kind in CLIP_DECODERS else None
