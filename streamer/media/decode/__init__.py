"""Videos and audio: packets to frames and samples, by PyAV. Only modules of this folder import it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamer.media.audio.windows import AUDIO, START
from streamer.media.lerobot.info import DEPTH, read_kind

if TYPE_CHECKING:
    from streamer.media.decode.decoder import MediaDecoder


def find_decoder(kind: str) -> MediaDecoder | None:
    """Returns the decoder of a kind, or None; see `streamer.decode.dispatch.ELSEWHERE`.

    The decoders are imported here: most workers decode neither videos nor audio.
    """
    if kind in (AUDIO, START):
        from streamer.media.decode.audio import WindowAudio, WindowStart

        return WindowAudio() if kind == AUDIO else WindowStart()
    if kind.startswith(DEPTH):
        from streamer.media.decode.video import DepthFrames

        return DepthFrames(depth=read_kind(kind))
    from streamer.media.decode.video import CLIP_DECODERS

    return CLIP_DECODERS[kind]() if kind in CLIP_DECODERS else None
